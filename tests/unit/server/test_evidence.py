"""What is kept of a crash: no secret, everything else, and not for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.deploy import evidence
from sparkdeploy.deploy.evidence import (
    ROOT_CAUSE,
    record_without_secrets,
    save_evidence,
    value_without_secrets,
)
from sparkdeploy.secret_shapes import REMOVED
from tests.fakes.containers import Crashed

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
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "short").write_text("a\n")
    engine = Crashed(log=LOG.format("this", "that"), record={"Config": {"Env": ["COLOUR=red"]}})
    folder = save_evidence(engine.host, "c1", tmp_path / "crashes", deployment="main")
    assert (folder / "container.log").read_text() == engine.log
    assert "ERROR got this there" in (folder / ROOT_CAUSE).read_text()
    assert "COLOUR=red" in (folder / "inspect.json").read_text()
    assert {path.name for path in folder.iterdir()} >= {"guard.json", "versions.json"}


PLANTED = "Pl4nted-s3cret_value"


def test_variables_of_a_container_are_emptied_by_name() -> None:
    record = {"Config": {"Env": ["HF_TOKEN=abc", "VLLM_API_KEY=def", "HOME=/cache", "BARE"]}}
    kept = record_without_secrets(record)
    assert kept["Config"]["Env"] == [
        "HF_TOKEN=(removed)",
        "VLLM_API_KEY=(removed)",
        "HOME=/cache",
        "BARE",
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
        ),
        max_leaves=10,
    )
)
def test_a_known_secret_is_nowhere_in_any_value(value: object) -> None:
    hidden = {"plan": [value, f"x{PLANTED}y", {"token": PLANTED}]}
    assert PLANTED not in repr(value_without_secrets(hidden, (PLANTED,)))


def test_the_newest_folders_of_evidence_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "write_evidence", lambda *_, **__: None)
    folders = []
    for age_s in range(evidence.KEPT_CRASHES + 3, 0, -1):
        folder = evidence.save_evidence(cast("Any", None), "c", tmp_path, deployment="main")
        os.utime(folder, (1e9 - age_s, 1e9 - age_s))
        folders.append(folder)
    newest = evidence.save_evidence(cast("Any", None), "c", tmp_path, deployment="main")
    assert sorted(tmp_path.iterdir()) == sorted([*folders[-evidence.KEPT_CRASHES + 1 :], newest])
    assert evidence.newest_crash(tmp_path, "main") == newest
