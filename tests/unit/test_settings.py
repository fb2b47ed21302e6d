"""Where the program's folders are, whatever somebody has typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkdeploy.errors import RecipeError
from sparkdeploy.node.cluster import read_cluster
from sparkdeploy.settings import SHARED_LOCK_DIR, Settings, describe, load_settings
from tests.unit.program import Run

KINDS = ("config", "state", "cache", "data", "lock")


def folder_of(settings: Settings, kind: str) -> Path:
    found: Path = getattr(settings, f"{kind}_dir")
    return found


def variable(kind: str) -> str:
    return f"SPARKDEPLOY_{kind.upper()}_DIR"


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_folder_variable_counts_as_unset(kind: str) -> None:
    assert folder_of(load_settings({variable(kind): ""}), kind) == folder_of(
        load_settings({}), kind
    )
    assert load_settings({}).lock_dir == Path(SHARED_LOCK_DIR)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tilde_in_a_folder_variable_is_the_users_home(kind: str) -> None:
    assert folder_of(load_settings({variable(kind): "~/x"}), kind) == Path.home() / "x"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "typed", ["relative", ".", "./x", "\n/tmp/x", " /tmp/x", "~no-such-user/x", "\udcff\x1b[2J"]
)
def test_a_folder_that_changes_with_where_a_command_is_started_is_refused(
    kind: str, typed: str
) -> None:
    with pytest.raises(RecipeError, match=variable(kind)) as caught:
        load_settings({variable(kind): typed})
    assert caught.value.message.isprintable()
    assert "absolute path" in (caught.value.hint or "")


@pytest.mark.parametrize("key", ["data_dir", "cache_dir"])
def test_a_relative_folder_in_the_configuration_file_is_refused_alike(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.delenv(f"SPARKDEPLOY_{key.upper()}")
    file = tmp_path / "config" / "config.yaml"
    file.parent.mkdir()
    file.write_text(f"{key}: models\n")
    done = run("status")
    assert done.returncode == 3
    assert f"{key} in {file} is not an absolute path: 'models'" in done.stderr


WRONG = """\
default_recpie: v2
hub: 5
index_url:
  - https://ada:secret@pypi.lan/simple
cluster: v2
"""


def test_mistakes_in_the_configuration_file_are_located_and_in_plain_words(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(WRONG)
    with pytest.raises(RecipeError, match="not a valid configuration") as caught:
        load_settings({"SPARKDEPLOY_CONFIG_DIR": str(tmp_path)})
    assert sorted((caught.value.detail or "").splitlines()) == [
        f"{path}:1: default_recpie: unknown key; did you mean default_recipe?",
        f"{path}:2: hub: 5 is not a text",
        f"{path}:3: index_url: ['https://***@pypi.lan/simple'] is not a text",
        f"{path}:5: cluster: 'v2' is not a mapping of keys to values",
    ]


def test_mistakes_in_the_cluster_are_located_and_in_plain_words() -> None:
    section = {"nodes": [{"name": "a", "ssh": 3, "fabrik": 1, "fabric": [{"interface": "x"}]}]}
    with pytest.raises(RecipeError) as caught:
        read_cluster(section, "/none/config.yaml")
    assert sorted((caught.value.detail or "").splitlines()) == [
        *("cluster.nodes.0.fabric.0.address: it is missing", "cluster.nodes.0.fabrik: unknown key"),
        *("cluster.nodes.0.ssh: 3 is not a text", "cluster.nodes: 1 given, at least 2 wanted"),
    ]


def test_a_variable_of_another_program_is_named_as_where_a_value_came_from(tmp_path: Path) -> None:
    env = {
        "PIP_FIND_LINKS": str(tmp_path),
        "HF_HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
        "SPARKDEPLOY_CACHE_DIR": str(tmp_path),
        "HOME": str(tmp_path),
    }
    origins = {name: source for name, _, source in describe(load_settings(env))}
    assert origins["wheelhouse"] == "environment PIP_FIND_LINKS"
    assert origins["hub_cache"] == "environment HF_HOME"
    assert origins["state_dir"] == "environment XDG_STATE_HOME"
    assert origins["cache_dir"] == "environment SPARKDEPLOY_CACHE_DIR"
    assert origins["data_dir"] == origins["index_url"] == "default"


def test_the_nearest_word_counts_and_no_folder_on_this_machine_is_an_index(tmp_path: Path) -> None:
    text = "docker_host: unix:///file\nindex_url: https://file/simple\n"
    (tmp_path / "config.yaml").write_text(text)
    env = {
        "SPARKDEPLOY_CONFIG_DIR": str(tmp_path),
        "DOCKER_HOST": "unix:///variable",
        "PIP_INDEX_URL": "https://variable/simple",
        "PIP_EXTRA_INDEX_URL": "file:///wheels https://more/simple",
        # Of a program that is told of no file; it is not ours to refuse.
        "SSL_CERT_FILE": str(tmp_path / "missing.pem"),
        "SPARKDEPLOY_HUB": "https://ada:secret@hub.lan",
    }
    found = load_settings(env)
    assert (found.docker_host, found.build.index_url) == ("unix:///file", "https://file/simple")
    assert (found.build.extra_index_urls, found.build.ca_bundle) == (("https://more/simple",), None)
    assert "secret" not in repr(describe(found))
    nearer = load_settings({**env, "SPARKDEPLOY_DOCKER_HOST": "unix:///own"})
    assert nearer.docker_host == "unix:///own"


def test_a_folder_that_somebody_named_holds_more_than_what_is_ours(tmp_path: Path) -> None:
    """The removal of everything takes the others whole."""
    named = {"SPARKDEPLOY_DATA_DIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    settings = load_settings(named)
    owned = {kind: settings.is_own_folder(f"{kind}_dir") for kind in ("data", "state", "cache")}
    assert owned == {"data": False, "state": True, "cache": True}


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, "~/.cache/huggingface/hub"),
    ],
)
def test_downloads_are_where_the_hubs_own_tools_have_them(env: dict[str, str], place: str) -> None:
    assert load_settings(env).hub_cache == Path(place).expanduser()
