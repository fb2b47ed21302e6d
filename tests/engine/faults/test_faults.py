"""Everything beneath the program that can be killed or filled while `up` is under way.

The stand-in runs in the real container under the real guard, on an engine of the test's own that
may be killed; a start takes a second. After each fault: nothing is half done once the next command
has run, no server is left over, never do two run, and the next `up` works.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from sparkdeploy import labels
from sparkdeploy.node.container import ContainerSpec, Mount
from sparkdeploy.plan.container import GUARD_ENTRYPOINT, container_name
from sparkdeploy.recipe.image_pins import CONTENTS_FOLDER
from sparkdeploy.server.health import ContainerDiedError, Readiness, wait_until_answering
from tests.engine.conftest import DEADLINE_S, model_at, until
from tests.engine.ground import LONGEST_KILL_S, NEVER, Ground, seeds
from tests.engine.stand_in.engine import REFERENCE
from tests.engine.stand_in.replacing import put_in_place

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.runs("new", "down", "rollback", "status", "up"),
]

GIB = 1 << 30
SHIM = b"containerd-shim"


# ---- vLLM and its container -----------------------------------------------------------------


@pytest.mark.parametrize("victim", ["container", "vllm"])
def test_what_is_killed_while_it_starts_brings_the_old_one_back(
    deployed: Ground, victim: str
) -> None:
    command = deployed.start("new", behaviour=NEVER)
    until(deployed.is_waited_for)
    if victim == "container":
        deployed.kill_container()
    else:
        os.kill(only_server(deployed), signal.SIGKILL)
    assert command.wait() == 7
    assert "137" in command.said()
    deployed.check_whole("old")


def test_vllm_that_dies_of_its_first_request_is_not_tried_with_it_again(deployed: Ground) -> None:
    behaviour = "--die-of-request --exit-code 9 --wait-for ask"
    command = deployed.start("new", behaviour=behaviour)
    until(deployed.is_waited_for)
    deployed.tell_servers("ask")
    assert command.wait() == 7, command.said()
    assert "died of its first request (exit code 9)" in command.said()
    deployed.check_whole("old")


def test_vllm_killed_after_it_was_healthy_is_started_again_in_place(deployed: Ground) -> None:
    before = deployed.deployment()
    until(deployed.guard_has_seen_health)
    killed = only_server(deployed)
    os.kill(killed, signal.SIGKILL)
    until(lambda: only_server(deployed) != killed)
    deployed.check_whole("old")
    after = deployed.deployment()
    assert before is not None
    assert after is not None
    assert after.current.container_id == before.current.container_id


@pytest.mark.parametrize(
    "name", ["KILL", *(pytest.param(it, marks=pytest.mark.slow) for it in ("HUP", "TERM"))]
)
def test_a_deployment_killed_from_outside_is_started_by_the_next_up(
    deployed: Ground, name: str
) -> None:
    deployed.kill_container(name)
    until(lambda: deployed.servers() == 0)
    code, said = deployed.up("new")
    assert code == 0, said
    deployed.check_whole("new")


def only_server(place: Ground) -> int:
    """Wait until just one server runs, and return its process."""
    found: list[int] = []

    def is_alone() -> bool:
        found[:] = place.server_pids()
        return len(found) == 1

    until(is_alone)
    return found[0]


# ---- the engine -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(4, in_ci=1))
def test_an_engine_killed_at_any_moment_is_recovered_from(deployed: Ground, seed: int) -> None:
    command = deployed.start("new")
    time.sleep(random.Random(seed).uniform(0.05, LONGEST_KILL_S))
    deployed.engine.kill()
    code = command.wait()
    assert code in {0, 4, 7}, command.said()
    assert "Traceback" not in command.said()
    assert deployed.cli.run("status")[0] == 4
    deployed.engine.start()
    code, said = deployed.up("next")
    assert code == 0, said
    deployed.check_whole("next")


def test_a_full_disk_of_the_engine_is_recovered_from(deployed: Ground) -> None:
    deployed.engine.fill(leave_bytes=16 << 10)
    try:
        code, said = deployed.up("new")
        assert code in {4, 7}, said
        assert "Traceback" not in said
        assert deployed.servers() <= 1
    finally:
        deployed.engine.free()
    found = deployed.deployment()
    assert found is not None
    # Where a full disk did not let the old one start again, the next command does that.
    if found.is_half_replaced:
        code, said = deployed.cli.run("rollback", "--yes")
        assert code == 0, said
    deployed.check_whole("old")
    assert deployed.up("new")[0] == 0
    deployed.check_whole("new")


@pytest.mark.parametrize(
    ("free_bytes", "code", "words"),
    [(4 << 10, 7, "is not kept"), (0, 4, "No space left on device")],
    ids=["nearly", "wholly"],
)
def test_a_full_disk_of_ones_own_still_brings_the_old_one_back(
    deployed: Ground, free_bytes: int, code: int, words: str
) -> None:
    state, contents = deployed.root / "state", deployed.root / "state" / CONTENTS_FOLDER
    known = {path.name: path.read_bytes() for path in contents.iterdir()}
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(state)], check=True)
    try:
        contents.mkdir()
        for name, content in known.items():
            (contents / name).write_bytes(content)
        free = os.statvfs(state).f_bavail * os.statvfs(state).f_bsize
        (state / "filler").write_bytes(bytes(free - free_bytes))
        dies = "--never-healthy --die-after-s 0.2 --exit-code 9"
        found, said = deployed.up("new", behaviour=dies)
        assert found == code, said
        assert words in said
        deployed.check_whole("old")
        (state / "filler").write_bytes(bytes(free - (4 << 10)))
        assert deployed.up("new")[0] == 0
    finally:
        subprocess.run(["umount", str(state)], check=True)
    deployed.check_whole("new")


# ---- memory ---------------------------------------------------------------------------------


NAMED = ("--served-model-name", "x")


@pytest.fixture
def hog(place: Ground, tmp_path: Path) -> Iterator[ContainerSpec]:
    """A guarded server that takes 1 GiB a second; the guard's meminfo mirrors what it holds."""
    place.cli.run("down", "--yes")
    meminfo, is_over = tmp_path / "meminfo", threading.Event()
    show(meminfo, 2 * GIB)
    thread = threading.Thread(target=mirror, args=(place, meminfo, is_over))
    thread.start()
    options = ["--memory-floor-bytes", str(GIB // 2), "--meminfo", "/m/meminfo"]
    options += ["--health-url", f"http://127.0.0.1:{place.port}/health", "--max-restarts", "3"]
    yield ContainerSpec(
        name=container_name("main"),
        image=REFERENCE,
        entrypoint=GUARD_ENTRYPOINT,
        command=(*options, "--", "vllm", "serve", "x", "--port", str(place.port), *NAMED),
        env={},
        mounts=(Mount(str(meminfo), "/m/meminfo"),),
        user="65532:65532",
        gpus="none",
        tmpfs={},
        shm_size_bytes=64 << 20,
        labels={labels.KIND: "container", labels.DEPLOYMENT: "main", labels.PORT: str(place.port)},
    )
    is_over.set()
    thread.join()
    place.cli.run("down", "--yes")


def test_a_model_that_eats_the_machine_is_stopped_and_the_old_one_comes_back(
    deployed: Ground, hog: ContainerSpec
) -> None:
    assert deployed.up("old")[0] == 0
    spec = with_behaviour(hog, "--never-healthy --hog-after-s 0")

    def wait(container_id: str) -> Readiness:
        with model_at(deployed.port) as model, deployed.host() as own:
            return wait_until_answering(own, container_id, model, deadline_s=DEADLINE_S)

    with deployed.host() as own, pytest.raises(ContainerDiedError) as caught:
        put_in_place(own, spec, crashes_dir=deployed.root / "crashes", wait=wait)
    assert caught.value.cause.name == "memory_floor"
    assert "exit code 86" in caught.value.message
    deployed.check_whole("old")


def with_behaviour(spec: ContainerSpec, behaviour: str) -> ContainerSpec:
    return dataclasses.replace(spec, env={"STAND_IN": behaviour})


def mirror(place: Ground, meminfo: Path, is_over: threading.Event) -> None:
    while not is_over.wait(0.005):
        held = 0
        for pid in place.server_pids():
            with contextlib.suppress(OSError):
                pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
                held += int(pages) * os.sysconf("SC_PAGE_SIZE")
        show(meminfo, 2 * GIB - held)


def show(meminfo: Path, available_bytes: int) -> None:
    text = f"MemAvailable: {max(available_bytes, 0) // 1024:>12} kB\n"
    with meminfo.open("r+b" if meminfo.exists() else "wb") as file:
        file.write(text.encode())


# ---- a week in minutes ----------------------------------------------------------------------


@pytest.mark.parametrize("count", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_many_ups_and_downs_leave_nothing_behind(place: Ground, count: int) -> None:
    place.cli.run("down", "--yes")
    # One whose engine was killed by an earlier test may stay for good.
    shims = set(place.engine.processes(SHIM))
    before = left_on_the_engine(place)
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.stand_in.cycles", str(count)],
        env={**os.environ, **place.cli.env},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    process = json.loads(done.stdout)
    # A shim ends a moment after its container.
    until(lambda: shims.issuperset(place.engine.processes(SHIM)))
    after = left_on_the_engine(place)
    print(f"{count} cycles; the process: {process}; the engine: {before} -> {after}")
    assert {**after, "engine_open_files": 0} == {**before, "engine_open_files": 0}
    assert after["engine_open_files"] <= before["engine_open_files"] + 3
    assert process["after"]["open_files"] <= process["before"]["open_files"]
    assert process["after"]["threads"] <= process["before"]["threads"]
    grown_kib = process["after"]["resident_kib"] - process["before"]["resident_kib"]
    assert grown_kib < 8 * 1024


def left_on_the_engine(place: Ground) -> dict[str, int]:
    client = docker.DockerClient(base_url=place.engine.address)
    try:
        return {
            "containers": len(client.containers.list(all=True)),
            "volumes": len(client.volumes.list()),
            "networks": len(client.networks.list()),
            "servers": place.servers(),
            "engine_open_files": place.engine.open_files(),
        }
    finally:
        client.close()
