"""A crash folder holds what explains the crash, and no secret wherever it stood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sparkdeploy.deploy.evidence import ROOT_CAUSE, save_evidence
from sparkdeploy.secret_shapes import REMOVED
from tests.fakes.containers import Crashed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = "Pl4nted-k3y_of-main"
TOKEN = "hf_abcdefghijklmnopqrst"
OF_THE_SHELL = "Pl4in-words.of_a-shell"
"""Known only as the value of a variable that is named like a secret."""
LOG = "INFO a line before\nERROR got {} there\nRuntimeError: got {} again\n"


def coloured(secret: str) -> str:
    return f"{secret[:6]}\x1b[1m{secret[6:]}"


STANDS_IN: dict[str, Callable[[str], tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "the log": lambda secret: (LOG.format(secret, secret), {}, {}),
    "the log, with a colour in its middle": lambda secret: (
        LOG.format(coloured(secret), ""),
        {},
        {},
    ),
    "a line of the guard's": lambda secret: (
        f'sparkdeploy-guard {{"event": "x {secret}"}}',
        {},
        {},
    ),
    "a variable": lambda secret: ("", {"Config": {"Env": [f"COLOUR={secret}"]}}, {}),
    "the command": lambda secret: ("", {"Config": {"Cmd": ["serve", secret]}}, {}),
    "Docker's error": lambda secret: ("", {"State": {"Error": f"no {secret}", "ExitCode": 1}}, {}),
    "the image": lambda secret: ("", {"Config": {"Image": secret}}, {}),
    "the cause": lambda secret: ("", {}, {"cause": {"name": "x", "line": f"got {secret}"}}),
    "the plan": lambda secret: ("", {}, {"plan": {"env": [secret], "api_key": secret}}),
}


@pytest.mark.parametrize("secret", [KEY, TOKEN, OF_THE_SHELL])
@pytest.mark.parametrize("place", STANDS_IN)
def test_a_secret_is_in_no_file_of_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, secret: str
) -> None:
    monkeypatch.setenv("BIRDS_TOKEN", OF_THE_SHELL)
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "main").write_text(f"{KEY}\n")
    log, record, details = STANDS_IN[place](secret)

    engine = Crashed(log=log, record=record)
    folder = save_evidence(
        engine.host, "c1", tmp_path / "crashes", deployment="main", details=details
    )

    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert {name for name, text in files.items() if secret in text} == set()
    assert any(REMOVED in text for text in files.values())
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_is_no_secret_is_all_there(tmp_path: Path) -> None:
    engine = Crashed(log=LOG.format("this", "that"), record={"Config": {"Env": ["COLOUR=red"]}})
    folder = save_evidence(engine.host, "c1", tmp_path / "crashes", deployment="main")

    assert (folder / "container.log").read_text() == engine.log
    assert "ERROR got this there" in (folder / ROOT_CAUSE).read_text()
    assert "COLOUR=red" in (folder / "inspect.json").read_text()
    assert {path.name for path in folder.iterdir()} >= {"guard.json", "versions.json"}
