"""Where the program's folders are, whatever somebody has typed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.errors import RecipeError
from sparkdeploy.settings import SHARED_LOCK_DIR, Settings, load_settings

if TYPE_CHECKING:
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
    assert f"{key} in {file} is no absolute path: 'models'" in done.stderr
