"""What a build gets of the network, and with which logins."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker.auth
import pytest
import requests

from sparkdeploy.errors import NodeError, RecipeError
from sparkdeploy.image import network
from sparkdeploy.image.context import ContextFile
from sparkdeploy.image.network import login_of
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.connection import refuse_unreadable_logins, translated
from sparkdeploy.settings import BuildNetwork, Settings, load_settings
from tests.unit.conftest import GiveProgram

Sent = Callable[[BuildNetwork], dict[str, ContextFile]]
TORCH = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.fixture
def sent(stages: tuple[Stage, ...], settings: Settings) -> Sent:
    """What travels with the engine's stage where a network is like that, by its path."""

    def files(build: BuildNetwork) -> dict[str, ContextFile]:
        found = network.files(stages[1], replace(settings, build=build))
        return {file.path: file for file in found}

    return files


def environment(files: dict[str, ContextFile]) -> dict[str, str]:
    with files["network/environment"].open() as stream:
        lines = stream.read().decode().splitlines()
    return dict(line.removeprefix("export ").split("=", 1) for line in lines)


def test_the_ca_bundle_travels_and_every_tool_is_told(sent: Sent, tmp_path: Path) -> None:
    bundle = tmp_path / "my.pem"
    bundle.write_text("a certificate")
    files = sent(BuildNetwork(ca_bundle=bundle))
    said = environment(files)
    assert said["SSL_CERT_FILE"] == said["PIP_CERT"] == "/network/ca.pem"
    assert said["APT_CONFIG"] == "/network/apt.conf"
    assert files["network/ca.pem"].content == b"a certificate"
    assert files["network/apt.conf"].content == b'Acquire::https::CAInfo "/network/ca.pem";\n'


def test_only_wheels_that_the_lock_pins_travel(sent: Sent, tmp_path: Path) -> None:
    wanted = (TORCH, "idna-3.20-py3-none-any.whl")
    unwanted = (
        "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl",
        "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl",
        "torch-2.12.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "something_else-1.0-py3-none-any.whl",
        "not-a-wheel.whl",
    )
    for name in (*wanted, *unwanted):
        (tmp_path / name).write_bytes(b"")
    files = sent(BuildNetwork(find_links=(tmp_path,)))
    travelling = {path: file.content for path, file in files.items() if path.endswith(".whl")}
    assert travelling == {f"network/wheels/{name}": tmp_path / name for name in wanted}


def test_torch_comes_from_its_own_index_unless_its_wheel_travels(
    sent: Sent, tmp_path: Path
) -> None:
    nothing = environment(sent(BuildNetwork()))
    assert nothing["TORCH_SOURCE"] == "'--default-index https://torch.test/cpu'"
    (tmp_path / TORCH).write_bytes(b"")
    with_wheel = environment(sent(BuildNetwork(find_links=(tmp_path,))))
    assert with_wheel["TORCH_SOURCE"] == "--no-index"
    assert "UV_OFFLINE" not in with_wheel


def test_a_complete_wheelhouse_needs_no_index(
    stages: tuple[Stage, ...], sent: Sent, tmp_path: Path
) -> None:
    for pin in stages[1].pins:
        name = pin.name.replace("-", "_")
        (tmp_path / f"{name}-{pin.version}-py3-none-any.whl").write_bytes(b"")
    said = environment(sent(BuildNetwork(find_links=(tmp_path,))))
    assert said["UV_OFFLINE"] == said["PIP_NO_INDEX"] == "1"


def test_every_tool_is_told_the_indexes(sent: Sent) -> None:
    build = BuildNetwork(index_url="https://own.test", extra_index_urls=("https://more.test",))
    said = environment(sent(build))
    assert said["UV_DEFAULT_INDEX"] == said["PIP_INDEX_URL"] == "https://own.test"
    assert said["UV_INDEX"] == said["PIP_EXTRA_INDEX_URL"] == "https://more.test"


def test_the_plugin_stage_needs_no_network(stages: tuple[Stage, ...], settings: Settings) -> None:
    proxies = {"https_proxy": "http://proxy.test"}
    behind = replace(settings, build=BuildNetwork(proxies=proxies))
    assert network.files(stages[2], behind) == ()
    assert network.build_args(stages[2], behind) == {}
    base = {"BASE_IMAGE": "registry.test/library/debian:bookworm-slim"}
    assert network.build_args(stages[0], behind) == {**proxies, **base}


@pytest.mark.parametrize(
    "build",
    [
        BuildNetwork(index_url="https://me:secret@index.test/simple"),
        BuildNetwork(index_url="https://token@index.test/simple"),
        BuildNetwork(extra_index_urls=("https://fine.test", "https://me:secret@index.test")),
    ],
)
def test_an_index_with_credentials_is_refused_without_repeating_them(
    stages: tuple[Stage, ...], sent: Sent, settings: Settings, build: BuildNetwork
) -> None:
    with pytest.raises(RecipeError, match=r"index\.test has credentials") as caught:
        sent(build)
    assert "secret" not in f"{caught.value.message}{caught.value.hint}{caught.value.detail}"
    for name in ("torch_cpu_index", "torch_cuda_index"):
        hosts = replace(settings.hosts, **{name: "https://me:secret@torch.test"})
        with pytest.raises(RecipeError, match=r"torch\.test has credentials"):
            network.files(stages[1], replace(settings, hosts=hosts))


@pytest.mark.parametrize("name", ["ca_bundle", "wheelhouse"])
def test_a_path_that_the_user_named_is_never_left_out_without_a_word(
    stages: tuple[Stage, ...], tmp_path: Path, name: str
) -> None:
    folders = {
        f"SPARKDEPLOY_{kind}_DIR": str(tmp_path) for kind in ("CONFIG", "STATE", "DATA", "CACHE")
    }
    settings = load_settings({**folders, f"SPARKDEPLOY_{name.upper()}": "~/not here"})
    with pytest.raises(RecipeError, match=f"{name}: .*is not there") as refused:
        network.files(stages[1], settings)
    assert "~" not in refused.value.message
    assert refused.value.hint == f"it is set by environment SPARKDEPLOY_{name.upper()}"


def test_a_value_with_shell_characters_stays_one_value(sent: Sent) -> None:
    build = BuildNetwork(proxies={"https_proxy": "http://u:p$(id)'@proxy.test"})
    said = environment(sent(build))
    assert said["https_proxy"] == "'http://u:p$(id)'\"'\"'@proxy.test'"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("debian:bookworm-slim", "registry.test/library/debian:bookworm-slim"),
        ("nvidia/cuda:13.0", "registry.test/nvidia/cuda:13.0"),
        ("other.test/a/b:1", "other.test/a/b:1"),
        ("localhost:5000/a", "localhost:5000/a"),
        ("localhost/a", "localhost/a"),
    ],
)
def test_an_image_is_looked_for_at_the_configured_registry(image: str, expected: str) -> None:
    assert network.registry_reference(image, "registry.test") == expected


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


@pytest.mark.parametrize(
    "entry", [{"auth": "?"}, {"auth": "b3ds"}, {"auth": "/w=="}, {"auth": None}, "owl"]
)
def test_a_login_that_is_none_is_named(logins: Path, entry: Any) -> None:
    logins.write_text(json.dumps({"auths": {"lab.example": entry, "other": {}}}))
    with pytest.raises(NodeError) as caught:
        refuse_unreadable_logins()
    assert f"the login for lab.example could not be read from {logins}: it" in caught.value.message
    assert "docker login lab.example" in (caught.value.hint or "")


@pytest.mark.filterwarnings("ignore:docker-credential")
@pytest.mark.parametrize("helper", ["missing", "exits"])
def test_a_helper_that_fails_is_named(logins: Path, give_program: GiveProgram, helper: str) -> None:
    give_program("docker-credential-exits", "echo locked\nexit 1")
    store = {"credsStore": helper}
    with pytest.raises(NodeError) as caught, translated("pull lab.example/x"):
        docker.auth.load_config(config_dict=dict(store)).resolve_authconfig("lab.example")
    said = caught.value.message
    assert said.startswith(f"pull lab.example/x: its login could not be read from {logins}: ")
    assert ("locked" if helper == "exits" else "docker-credential-missing not installed") in said


def test_a_host_is_known_by_the_usual_certificates_or_by_those_of_the_bundle(
    settings: Settings,
) -> None:
    refused = network.refusal("https://127.0.0.1:9", settings)
    assert isinstance(refused, requests.ConnectionError)
    own = replace(settings, build=BuildNetwork(ca_bundle=Path("/nowhere.pem")))
    assert "/nowhere.pem" in str(network.refusal("https://127.0.0.1:9", own))


@pytest.fixture(autouse=True)
def netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A login for every host, which the HTTP library sends by itself."""
    path = tmp_path / "netrc"
    path.write_text("machine index.test login n password n\ndefault login n password n\n")
    monkeypatch.setenv("NETRC", str(path))


@pytest.mark.parametrize("index", ["https://index.test/s", "https://a:b@index.test/s"])
def test_an_index_gets_its_own_login_and_nothing_of_netrc(index: str) -> None:
    url = "https://index.test/s/idna/"
    with requests.Session() as session:
        asked = session.prepare_request(requests.Request("GET", url, auth=login_of(index)))
    assert asked.headers.get("Authorization") == ("Basic YTpi" if "@" in index else None)
