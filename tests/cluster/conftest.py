"""Two machines for all tests of this folder, and the program on the first of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkdeploy.checkpoint.tiny_model.build import build_tiny_model
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.connection import NotInDockerError
from sparkdeploy.node.host import DockerHost
from tests.cluster.lending import lend
from tests.cluster.machines import HOME, Machine, cluster_section, two_machines
from tests.cluster.stand_in.image import build_stand_in_engine, fetch_ray
from tests.engine.conftest import DEADLINE_S, WITHOUT_DOCKER, interrupts_are_heard, until
from tests.engine.forks import fork_server
from tests.engine.shipped_stages import REHEARSAL, build_all, shipped_stages
from tests.engine.small_python import small_base
from tests.engine.turns import vllm_turn
from tests.unit.conftest import REPOSITORY

__all__ = ["interrupts_are_heard"]  # a fixture for all tests of this folder
RUN_TIMEOUT_S = 1000
SAID_WITHIN_S = 15.0
"""How long after it can be known a fault may take to be said (on a machine without other load)."""
MODEL = f"{HOME}/model"
RECIPE = f"""\
schema: 1
name: tiny
title: a stock twin on two machines
extends: baseline
engine: cpu-0.32
model: {{path: {MODEL}}}
serve: {{port: 18700, attention_backend: null, max_model_len: 1024}}
limits: {{memory_floor_gib: 1, startup_timeout_s: 300}}
"""


@dataclass(frozen=True)
class Program:
    """`sparkdeploy` on one machine, with its folders where that machine has its own."""

    machine: Machine
    package: Path = REPOSITORY
    """Where the package is imported from."""

    @property
    def env(self) -> dict[str, str]:
        """What makes it use its own folders."""
        folders = {
            f"SPARKDEPLOY_{kind.upper()}_DIR": f"{HOME}/{kind}"
            for kind in ("config", "state", "data", "cache")
        }
        return {
            **folders,
            "HOME": "/root",
            "HF_HUB_CACHE": f"{HOME}/hub",
            "PYTHONPATH": str(self.package),
            "SPARKDEPLOY_RESOURCES": str(REPOSITORY),
            "SPARKDEPLOY_REHEARSAL_ENGINE": REHEARSAL,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it and return at once."""
        return self.start_python("-m", "sparkdeploy", *arguments)

    def start_python(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a Python with the program's folders and return at once."""
        return subprocess.Popen(
            self.machine.command(sys.executable, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # As a terminal has it: Ctrl-C is for all of them.
            process_group=0,
            env={**os.environ, **self.env},
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end, in a fork of a process that has imported it there."""
        if self.package != REPOSITORY:
            return self.finish(self.start(*arguments))
        server = fork_server(*self.machine.command())
        return server.run(arguments, {**os.environ, **self.env}, RUN_TIMEOUT_S)

    def finish(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        """Wait for its end."""
        try:
            stdout, stderr = process.communicate(timeout=RUN_TIMEOUT_S)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def answer(self, *arguments: str) -> Any:
        """Run it, expect success, and return its JSON answer."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def machines() -> Iterator[tuple[Machine, Machine]]:
    """Both machines, made once for all files."""
    if os.geteuid() != 0:
        pytest.skip("making machines needs root")
    if os.environ.get(WITHOUT_DOCKER):
        pytest.skip(f"{WITHOUT_DOCKER} is set")
    with two_machines() as both:
        yield both


@pytest.fixture(scope="session")
def head(machines: tuple[Machine, Machine]) -> Machine:
    """The machine the program runs on."""
    return machines[0]


@pytest.fixture(scope="session")
def worker(machines: tuple[Machine, Machine]) -> Machine:
    """The other one."""
    return machines[1]


@pytest.fixture(scope="session")
def program(head: Machine) -> Program:
    """The program on the head."""
    return Program(head)


@pytest.fixture(scope="module", autouse=True)
def as_made(machines: tuple[Machine, Machine]) -> None:
    """Whatever another file left: no files but the configuration of the first as head of both."""
    for machine in machines:
        machine.empty_folders()
    config = machines[0].own / "home" / "config"
    config.mkdir()
    (config / "config.yaml").write_text(yaml.safe_dump({"cluster": cluster_section(machines)}))


@pytest.fixture(scope="module")
def stand_in(head: Machine, worker: Machine) -> str:
    """The stand-in as the head's CPU engine; the worker gets it from the head."""
    return give_stand_in(head, worker)


@pytest.fixture(scope="module")
def turn() -> Iterator[None]:
    """The turn to use a real vLLM."""
    with vllm_turn():
        yield


@pytest.fixture(scope="module")
def cpu_engine(machines: tuple[Machine, Machine], turn: None) -> None:
    """The real CPU engine with its plugin on both machines."""
    for machine in machines:
        give_only(machine, shipped_stages())


@pytest.fixture(scope="module")
def ray_stand_in(head: Machine, worker: Machine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same with Ray in it, for Ray's own part of a launch."""
    packages = tmp_path_factory.mktemp("ray")
    fetch_ray(packages)
    return give_stand_in(head, worker, packages)


@pytest.fixture(scope="module")
def recipe(head: Machine) -> None:
    """A user's own recipe on the head, which is the default there, and its model."""
    config = head.own / "home" / "config"
    with (config / "config.yaml").open("a") as file:
        file.write("default_recipe: tiny\n")
    folder = config / "recipes"
    folder.mkdir()
    (folder / "tiny.yaml").write_text(RECIPE)
    give_model(head)


@pytest.fixture(scope="module")
def on_both(stand_in: str, head: Machine, worker: Machine) -> None:
    """The engine is on both machines already, as after an earlier `up`."""
    lend_engine(head, worker, stand_in)


@pytest.fixture(scope="module")
def both_end_empty(program: Program, head: Machine, worker: Machine) -> Iterator[None]:
    """In the end `down` leaves nothing of ours on either machine."""
    yield
    done = program.run("down", "--yes", "--all")
    assert done.returncode == 0, done.stderr
    assert ours(head) == ours(worker) == []


@pytest.fixture
def nothing_stays(program: Program, head: Machine, worker: Machine) -> Iterator[None]:
    """After every test `down` leaves nothing of ours on either machine."""
    yield
    done = program.run("down", "--yes", "--all")
    assert done.returncode == 0, done.stderr
    for machine in (head, worker):
        assert ours(machine) == [], machine.name


def give_model(machine: Machine) -> None:
    """Make the model of the tests' own recipe there, at MODEL."""
    build_tiny_model(machine.own / "home" / Path(MODEL).name, TinyShape(), seed=20261121)


def give_only(machine: Machine, stages: tuple[Stage, ...], *, is_small: bool = False) -> None:
    """Let a machine have these stages of the real one's Docker Engine, and no other image.

    The stand-ins and the real engine carry the same tags. What is missing is built first; a small
    base stage has hardly more than Python.
    """
    with DockerHost(os.environ.get("DOCKER_HOST")) as ours:
        images = {stage.tag: image.image_id for stage, image in build_all(ours, stages)}
        if is_small:
            images[stages[0].tag] = small_base(ours, stages[0])
        machine.remove_containers()
        machine.stop("dockerd")
        root = machine.empty_docker()
        is_there = lend(images, Path(ours.info().root_dir), root)
        machine.start_dockerd()
        if not is_there:
            with docker_of(machine) as theirs:
                theirs.load_images(ours.save_images(list(images)))


def give_stand_in(head: Machine, worker: Machine, packages: Path | None = None) -> str:
    """Build the stand-in on the head's base stage; the worker has no image at all."""
    give_only(worker, ())
    # The worker is sent all of it.
    give_only(head, shipped_stages()[:1], is_small=packages is None)
    with docker_of(head) as host:
        return build_stand_in_engine(host, packages)


def lend_engine(lender: Machine, borrower: Machine, tag: str) -> None:
    """Let a machine have another one's engine image; that it is sent is proved elsewhere."""
    with docker_of(lender) as host:
        image = host.find_image(tag)
    assert image is not None, tag
    borrower.stop("dockerd")
    lend({tag: image.image_id}, lender.own / "docker", borrower.empty_docker())
    borrower.start_dockerd()


def docker_of(machine: Machine) -> DockerHost:
    """A machine's Docker Engine, reached from the real machine."""
    return DockerHost(f"unix:///proc/{machine.pid}/root/run/docker.sock")


def ours(machine: Machine) -> list[str]:
    """Return the names of sparkdeploy's containers on a machine."""
    with docker_of(machine) as host:
        return [fact.name for fact in host.own_containers()]


def up(program: Program, *more: str) -> subprocess.CompletedProcess[str]:
    """Deploy the tests' own recipe over both machines."""
    return program.run("up", "tiny", "--cluster", "--yes", *more)


SLOW_S = 200
SLOW = f"serve.env={{STAND_IN_LOAD_S: '{SLOW_S}'}}"


def start_loading(program: Program, worker: Machine) -> subprocess.Popen[str]:
    """Start an `up` that loads for long, and wait until all of its containers run."""
    process = program.start("up", "tiny", "--cluster", "--yes", "--set", SLOW)
    with docker_of(worker) as host:

        def is_loading() -> bool:
            assert process.poll() is None, program.finish(process).stderr
            with contextlib.suppress(NotInDockerError):  # It was removed since it was listed.
                return any(
                    b"Loading weights" in b"".join(host.logs(fact.container_id))
                    for fact in host.own_containers()
                    if fact.name == "sparkdeploy-main" and loads_slowly(fact.container_id)
                )
            return False

        def loads_slowly(container_id: str) -> bool:
            return f"STAND_IN_LOAD_S={SLOW_S}" in host.inspect(container_id)["Config"]["Env"]

        until(is_loading, timeout_s=300)
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """End the program itself as `kill -9` does: what was started here only stands before it."""
    for pid in _program(process):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)


def press_ctrl_c(process: subprocess.Popen[str]) -> None:
    """Interrupt what is in the program's process group, as its terminal would."""
    for pid in _program(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)


def _program(process: subprocess.Popen[str]) -> list[int]:
    """The processes of the program's group, but for the one that only stands before it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with contextlib.suppress(ProcessLookupError):
            if pid != process.pid and os.getpgid(pid) == process.pid:
                found.append(pid)
    return found


def said_in_time(fault: str, since_s: float) -> None:
    """Fail when a fault is said too late after `since_s`, the moment when it could be known.

    That is the fault itself for a command that watches, else the start of the command that asks.
    It may take twice as long, and as much longer as others load the machine beyond our own two
    programs a core.
    """
    took_s = time.monotonic() - since_s
    others = max(2.0, os.getloadavg()[0] / (os.cpu_count() or 1) - 1)
    print(f"FIGURE {fault}: {took_s:.1f} s, load {os.getloadavg()[0]:.1f}")
    assert took_s < SAID_WITHIN_S * others, fault
