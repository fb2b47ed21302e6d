"""Every unit test has its own folders and no network settings of this machine."""

from __future__ import annotations

import functools
import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.main

from sparkdeploy import yaml_text
from sparkdeploy.recipe.load import Library
from sparkdeploy.terminal.console import console
from tests.hub.double import HubDouble, hub_double
from tests.unit.program import Run

REPOSITORY = Path(__file__).parents[2]
GiveProgram = Callable[[str, str], Path]
SHIPPED = Library((REPOSITORY / "recipes",))
_homes = itertools.count()


@pytest.fixture(autouse=True)
def isolated_folders(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Point every folder of the user at the test's own; most tests never make one."""
    home = tmp_path_factory.getbasetemp() / f"home-{next(_homes)}"
    if "tmp_path" in request.fixturenames:
        home = request.getfixturevalue("tmp_path")
    for kind in ("config", "state", "data", "cache"):
        monkeypatch.setenv(f"SPARKDEPLOY_{kind.upper()}_DIR", str(home / kind))
    monkeypatch.setenv("SPARKDEPLOY_LOCK_DIR", str(home / "locks"))
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "hub"))
    # Nobody listens there: a test that asks a hub says which.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    # What `--offline` sets is put back after the test.
    monkeypatch.setenv("HF_HUB_OFFLINE", "")


@pytest.fixture(autouse=True)
def talking_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no command's --quiet outlive its test, in whatever order they run."""
    monkeypatch.setattr(console, "quiet", False)


@pytest.fixture(autouse=True, scope="session")
def swift_disk() -> Iterator[None]:
    """Wait for no disk: what fsync promises shows after a power cut only, and it is slow."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, os.fstat)
        yield


@pytest.fixture(autouse=True, scope="session")
def swift_commands() -> Iterator[None]:
    """Read the signatures of all commands once, as a process of its own does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True, scope="session")
def swift_recipes() -> Iterator[None]:
    """Parse each YAML text once: recipes that extend one another are read thousands of times.

    Every reader gets a copy of its own, whatever another test did to its.
    """
    load_mapping = yaml_text.load_mapping

    @functools.lru_cache(maxsize=1000)
    def parsed(text: str, where: str) -> bytes:
        return pickle.dumps(load_mapping(text, where))

    def copied(text: str, where: str) -> yaml_text.Marked:
        marked: yaml_text.Marked = pickle.loads(parsed(text, where))
        return marked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_text, "load_mapping", copied)
        yield


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program as a user runs it."""
    return Run(monkeypatch, capsys)


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Point the SDK at a socket nobody listens on."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")


@pytest.fixture
def give_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GiveProgram:
    """Puts a shell script before the machine's programs: `give_program("uv", "exit 1")`."""
    folder = tmp_path / "bin"

    def give(name: str, script: str) -> Path:
        folder.mkdir(exist_ok=True)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        program = folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program

    return give


@pytest.fixture
def shipped() -> Library:
    """The recipes of this checkout."""
    return SHIPPED


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubDouble]:
    """A hub that commands ask, for as long as a busy machine takes."""
    with hub_double() as double:
        monkeypatch.setenv("HF_ENDPOINT", double.endpoint)
        monkeypatch.setattr("sparkdeploy.checkpoint.published.ASKING_LIMIT_S", 120.0)
        yield double
