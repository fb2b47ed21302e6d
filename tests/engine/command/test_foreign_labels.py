"""The real commands on a real engine where somebody else has written sparkdeploy's labels."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import pytest

from sparkdeploy import labels
from tests.engine.program import Program
from tests.engine.small_engine import small_engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = pytest.mark.docker

IMAGE = "lab/nothing:1"
"""Its containers are made and never started: labels and names are all that is looked at."""
THEIRS = "postgres:17"
OURS = {labels.KIND: "container", labels.DEPLOYMENT: "main"}
HOSTILE = {
    labels.PORT: "8000@somewhere.test/",
    labels.MEMORY: "²",
    labels.KEEP: "9" * 5000,
    labels.STARTUP_TIMEOUT: "never",
    labels.EXPECTATION: "[" * 50_000,
    labels.RECIPE: "\x1b]0;owned\x07" + "x" * 100_000,
    labels.EXPOSURE: "public",
    labels.NODES: "../../x,\x1b[2J",
    labels.ROLE: "king",
    labels.USER: "\x1b[31mroot",
}
STRANGERS: Mapping[str, Mapping[str, str]] = {
    "postgres": OURS,
    "sparkdeploy-mainframe": OURS,
    "sparkdeploy-main-kept-": OURS,
    "sparkdeploy-main-kept-" + "9" * 4400: OURS,
    "sparkdeploy-x": {**OURS, labels.DEPLOYMENT: "../../../x"},
    "sparkdeploy-main-kept-3": {**OURS, labels.KIND: "image"},
    "unlabelled": {},
}
NOBODY = 61236

AS_ANOTHER_USER = """
import importlib, os, pkgutil, sys
import docker.transport, sparkdeploy
for module in pkgutil.walk_packages(sparkdeploy.__path__, "sparkdeploy."):
    if "vllm_plugin" not in module.name and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from sparkdeploy.cli.main import main
uid = int(sys.argv.pop(1))
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
main()
"""
"""Everything is loaded as root: its files may be root's alone."""


@dataclass
class Place:
    """An engine of its own, its client, and a user."""

    client: docker.DockerClient
    program: Program

    def make(self, name: str, marks: Mapping[str, str]) -> None:
        self.client.api.create_container(IMAGE, ["/x"], name=name, labels=dict(marks))

    def names(self) -> dict[str, str]:
        """Return all containers by name, with their states."""
        return {str(item.name): item.status for item in self.client.containers.list(all=True)}

    def run_as(self, uid: int, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the program as another user with a home of their own."""
        env = {**self.program.env, "HOME": str(home)}
        env |= {name: str(home / name) for name in env if name.startswith("SPARKDEPLOY_")}
        env |= {"SPARKDEPLOY_LOCK_DIR": self.program.env["SPARKDEPLOY_LOCK_DIR"]}
        argv = [sys.executable, "-c", AS_ANOTHER_USER, str(uid), *arguments]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def place() -> Iterator[Place]:
    # Not below pytest's folders: whenever a pytest starts, only their owner may enter them again.
    with tempfile.TemporaryDirectory(prefix="sparkdeploy-users-") as name, small_engine() as engine:
        root = Path(name)
        root.chmod(0o755)
        program = Program(
            root / "home",
            {"DOCKER_HOST": engine.address, "SPARKDEPLOY_LOCK_DIR": str(root / "locks")},
        )
        with contextlib.closing(docker.DockerClient(base_url=engine.address)) as client:
            for tag, marks in ((IMAGE, {}), (THEIRS, {labels.STAGE: "engine"})):
                client.images.build(
                    fileobj=io.BytesIO(f"FROM scratch\nLABEL of={tag}\n".encode()),
                    tag=tag,
                    rm=True,
                    labels={labels.KIND: "image", **marks} if marks else {},
                )
            yield Place(client, program)


def test_what_carries_our_labels_and_is_not_ours_stays_as_it_is(place: Place) -> None:
    for name, marks in STRANGERS.items():
        place.make(name, {**HOSTILE, **marks})
    strangers = place.names()
    ours = ("sparkdeploy-main", "sparkdeploy-main-replaced", "sparkdeploy-main-kept-1")
    for name in ours:
        place.make(name, {**HOSTILE, **OURS})

    commands = (
        ("status",),
        ("status", "--json"),
        ("logs", "main"),
        ("clean", "--yes"),
        ("rollback", "main"),
        ("down", "main"),
        ("down", "--all"),
    )
    done = {" ".join(words): place.program.run(*words) for words in commands}

    said = {name: item.stdout + item.stderr for name, item in done.items()}
    assert {name: item.returncode for name, item in done.items() if item.returncode == 70} == {}
    assert all("\x1b" not in text and "Traceback" not in text for text in said.values())
    assert all(len(text) < 5000 for text in said.values())
    assert [row["name"] for row in json.loads(done["status --json"].stdout)] == ["main"]
    assert "left alone, for they carry sparkdeploy's labels and other names" in said["status"]
    assert place.names() == strangers
    assert THEIRS in {tag for image in place.client.images.list() for tag in image.tags}
    assert sorted(path.name for path in place.program.root.iterdir()) == ["cache", "state"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user as well")
def test_another_user_of_the_engine_is_told_whose_a_deployment_is(place: Place) -> None:
    place.make("sparkdeploy-main", {**OURS, labels.PORT: "8000", labels.USER: "anna"})
    root = place.program.root.parent
    home, locks = root / "bob", root / "locks"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    socket = Path(place.program.env["DOCKER_HOST"].removeprefix("unix://"))
    socket.parent.chmod(0o755)
    socket.chmod(0o666)
    locks.mkdir(exist_ok=True)
    locks.chmod(0o1777)

    seen = place.run_as(NOBODY, home, "status")
    removed = place.run_as(NOBODY, home, "down", "main")

    assert (seen.returncode, removed.returncode) == (0, 0), removed.stderr
    assert "deployed by anna" in seen.stdout
    assert "main was deployed by anna" in removed.stderr
    assert place.names() == {}
    assert (home / "SPARKDEPLOY_STATE_DIR").stat().st_uid == NOBODY
    assert (home / "SPARKDEPLOY_STATE_DIR").stat().st_mode & 0o7777 == 0o700
