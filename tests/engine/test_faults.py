"""Everything that can be killed, filled or turned back, while `up` is under way.

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
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import pytest

from sparkdeploy import labels
from sparkdeploy.node.container import ContainerSpec, Mount
from sparkdeploy.plan.container import GUARD_ENTRYPOINT, container_name
from sparkdeploy.runtime.health import ContainerDiedError, Readiness, wait_until_answering
from tests.engine.conftest import free_port, model_at, until
from tests.engine.faults import Ground, ground
from tests.engine.stand_in.engine import REFERENCE
from tests.engine.stand_in.replacing import put_in_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.node.host import DockerHost

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]

GIB = 1 << 30
LONGEST_KILL_S = 1.3
"""A replacement takes about a second here."""
NEVER = "--never-healthy"
PROGRAM = (sys.executable, "-m", "sparkdeploy")


@pytest.fixture(scope="module")
def place(
    host: DockerHost, python_base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ground]:
    root = tmp_path_factory.mktemp("faults")
    with ground(host, python_base_image, root, free_port()) as made:
        yield made


@pytest.fixture
def deployed(place: Ground) -> Ground:
    """The same, with a healthy deployment that answers `old`."""
    code, said = place.up("old")
    assert code == 0, said
    return place


# ---- the CLI --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(50))
def test_a_cli_killed_at_any_moment_is_recovered_from(place: Ground, seed: int) -> None:
    chance = random.Random(seed)
    if chance.random() < 0.2:
        assert place.cli.run("down")[0] == 0
    command = place.start(f"new-{seed}")
    time.sleep(chance.uniform(0, LONGEST_KILL_S))
    command.send(signal.SIGKILL)

    assert command.wait() in {-signal.SIGKILL, 0}
    assert place.servers() <= 1
    place.settle()
    code, said = place.cli.run("status")
    assert code == 0
    found = place.deployment()
    assert ("half replaced" in said) is (found is not None and found.is_half_replaced)
    if chance.random() < 0.3:
        code, said = place.cli.run("rollback")
        assert code == 0, said
    code, said = place.up(f"new-{seed}")
    assert code == 0, said
    place.check_whole(f"new-{seed}")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_cli_that_is_interrupted_puts_things_right_itself(
    deployed: Ground, name: str, seed: int
) -> None:
    command = deployed.start("new", behaviour="--log cpu-0.32-mtp --lines-per-s 300")
    time.sleep(random.Random(f"{name}{seed}").uniform(0.1, LONGEST_KILL_S))
    command.send(signal.Signals[name])

    code = command.wait()

    assert code in {130, 0}, command.said()
    assert "Traceback" not in command.said()
    # Interrupted after the answer, the new one stays all the same.
    deployed.check_whole(*(["new"] if code == 0 else ["old", "new"]))


def test_an_interrupted_first_start_goes_on(place: Ground) -> None:
    place.cli.run("down")
    command = place.start("first", behaviour="--log cpu-0.32-mtp --lines-per-s 150")
    until(lambda: place.servers() == 1, timeout_s=30)
    until(place.is_waited_for, timeout_s=30)
    command.send(signal.SIGHUP)

    assert command.wait() == 130
    assert "goes on starting" in command.said()
    place.check_whole("first")


# ---- another command ------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "left"), [("down", None), ("rollback", "old")])
def test_a_start_is_ended_by_another_command(deployed: Ground, word: str, left: str | None) -> None:
    command = deployed.start("new", behaviour=NEVER)
    until(deployed.is_waited_for, timeout_s=30)
    code, said = other_command(deployed, "status", "--json")
    assert code == 0
    (row,) = json.loads(said)
    assert row["state"] == "being replaced"
    assert "sparkdeploy up standin --name main" in row["half_done"]

    code, said = other_command(deployed, word)

    assert code == 0, said
    assert command.wait() == 7
    assert "stopped or replaced by another command" in command.said()
    if left is None:
        assert deployed.deployment() is None
        assert deployed.servers() == 0
    else:
        deployed.check_whole(left)


def other_command(place: Ground, *argv: str) -> tuple[int, str]:
    """Run a command beside the one under way, which the warm CLI cannot."""
    done = subprocess.run(
        [*PROGRAM, *argv],
        env={**os.environ, **place.cli.env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


# ---- vLLM and its container -----------------------------------------------------------------


def test_a_container_killed_while_it_starts_brings_the_old_one_back(deployed: Ground) -> None:
    command = deployed.start("new", behaviour=NEVER)
    until(deployed.is_waited_for, timeout_s=30)
    deployed.kill_container()

    assert command.wait() == 7
    assert "137" in command.said()
    deployed.check_whole("old")


def test_vllm_killed_while_it_starts_brings_the_old_one_back(deployed: Ground) -> None:
    command = deployed.start("new", behaviour=NEVER)
    until(deployed.is_waited_for, timeout_s=30)
    until(lambda: deployed.servers() == 1, timeout_s=30)
    os.kill(server_pid(deployed), signal.SIGKILL)

    assert command.wait() == 7
    assert "137" in command.said()
    deployed.check_whole("old")


def test_vllm_killed_after_it_was_healthy_is_started_again_in_place(deployed: Ground) -> None:
    before = deployed.deployment()
    time.sleep(2.5)  # the guard has to have seen it healthy, and asks every two seconds
    killed = server_pid(deployed)
    os.kill(killed, signal.SIGKILL)

    until(lambda: deployed.servers() == 1 and server_pid(deployed) != killed, timeout_s=30)
    deployed.check_whole("old")
    after = deployed.deployment()
    assert before is not None
    assert after is not None
    assert after.current.container_id == before.current.container_id


@pytest.mark.parametrize("name", ["KILL", "HUP", "TERM"])
def test_a_deployment_killed_from_outside_is_started_by_the_next_up(
    deployed: Ground, name: str
) -> None:
    deployed.kill_container(name)
    until(lambda: deployed.servers() == 0, timeout_s=40)

    code, said = deployed.up("new")

    assert code == 0, said
    deployed.check_whole("new")


def server_pid(place: Ground) -> int:
    (pid,) = place.engine.processes(b"/usr/local/bin/vllm")
    return pid


# ---- the engine -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
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

    code, said = deployed.cli.run("rollback")
    assert code == 0, said
    deployed.check_whole("old")
    assert deployed.up("new")[0] == 0
    deployed.check_whole("new")


def test_a_full_disk_of_ones_own_still_brings_the_old_one_back(deployed: Ground) -> None:
    state = deployed.root / "state"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(state)], check=True)
    try:
        (state / "filler").write_bytes(bytes(60 << 10))
        code, said = deployed.up("new", behaviour="--never-healthy --die-after-s 0.2 --exit-code 9")
        assert code == 7, said
        assert "is not kept" in said
        deployed.check_whole("old")
        assert deployed.up("new")[0] == 0
    finally:
        subprocess.run(["umount", str(state)], check=True)
    deployed.check_whole("new")


# ---- memory ---------------------------------------------------------------------------------


@pytest.fixture
def hog(place: Ground, tmp_path: Path) -> Iterator[ContainerSpec]:
    """A guarded server that takes 1 GiB a second; the guard's meminfo mirrors what it holds."""
    place.cli.run("down")
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
        command=(*options, "--", "vllm", "serve", "x", "--port", str(place.port)),
        env={},
        mounts=(Mount(str(meminfo), "/m/meminfo"),),
        user="65532:65532",
        gpus="none",
        tmpfs={},
        shm_size_bytes=64 << 20,
        labels={
            labels.KIND: "container",
            labels.DEPLOYMENT: "main",
            labels.PORT: str(place.port),
        },
    )
    is_over.set()
    thread.join()
    place.cli.run("down")


def test_a_model_that_eats_the_machine_is_stopped_and_the_old_one_comes_back(
    deployed: Ground, hog: ContainerSpec
) -> None:
    assert deployed.up("old")[0] == 0
    spec = with_behaviour(hog, "--never-healthy --hog-after-s 0")

    def wait(container_id: str) -> Readiness:
        with model_at(deployed.port) as model, deployed.host() as own:
            return wait_until_answering(own, container_id, model, deadline_s=60)

    with deployed.host() as own, pytest.raises(ContainerDiedError) as caught:
        put_in_place(own, spec, crashes_dir=deployed.root / "crashes", wait=wait)

    assert caught.value.cause.name == "memory_floor"
    assert "exit code 86" in caught.value.message
    deployed.check_whole("old")


def test_the_guard_needs_nobody_who_waits(place: Ground, hog: ContainerSpec) -> None:
    with place.host() as own:
        container_id = own.create(with_behaviour(hog, "--hog-after-s 2.5"))
        own.start(container_id)
        until(lambda: not own.inspect(container_id)["State"]["Running"], timeout_s=60)
        log = b"".join(own.logs(container_id)).decode()

    found = place.deployment()
    assert found is not None
    assert found.current.exit_code == 86
    assert log.count("memory_floor") == 1
    assert '"restart"' not in log
    assert place.servers() == 0
    assert place.up("new")[0] == 0
    place.check_whole("new")


def with_behaviour(spec: ContainerSpec, behaviour: str) -> ContainerSpec:
    return dataclasses.replace(spec, env={"STAND_IN": behaviour})


def mirror(place: Ground, meminfo: Path, is_over: threading.Event) -> None:
    while not is_over.wait(0.005):
        held = 0
        for pid in place.engine.processes(b"/usr/local/bin/vllm"):
            with contextlib.suppress(OSError):
                pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
                held += int(pages) * os.sysconf("SC_PAGE_SIZE")
        show(meminfo, 2 * GIB - held)


def show(meminfo: Path, available_bytes: int) -> None:
    text = f"MemAvailable: {max(available_bytes, 0) // 1024:>12} kB\n"
    with meminfo.open("r+b" if meminfo.exists() else "wb") as file:
        file.write(text.encode())


# ---- the clock ------------------------------------------------------------------------------


@pytest.mark.parametrize("offset_s", [-86400.0, 86400.0])
def test_a_clock_that_jumps_leaves_every_way_open(deployed: Ground, offset_s: float) -> None:
    command = deployed.start("new", behaviour=NEVER)
    until(deployed.is_waited_for, timeout_s=30)
    command.send(signal.SIGKILL)
    command.wait()

    code, said = deployed.cli.run("status", "--json", clock_offset_s=offset_s)
    assert code == 0
    assert json.loads(said)[0]["uptime_s"] >= 0
    code, said = deployed.cli.run("rollback", clock_offset_s=offset_s)
    assert code == 0, said
    deployed.check_whole("old")
    code, said = deployed.cli.run("up", "standin", "--yes", clock_offset_s=offset_s)
    assert code == 0, said
    deployed.check_whole(" Paris")


# ---- a week in minutes ----------------------------------------------------------------------


@pytest.mark.parametrize("count", [100])
def test_many_ups_and_downs_leave_nothing_behind(place: Ground, count: int) -> None:
    place.cli.run("down")
    before = left_on_the_engine(place)
    done = subprocess.run(
        [PROGRAM[0], "-m", "tests.engine.stand_in.cycles", str(count)],
        env={**os.environ, **place.cli.env},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    process = json.loads(done.stdout)
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
            "shims": len(place.engine.processes(b"containerd-shim")),
            "engine_open_files": place.engine.open_files(),
        }
    finally:
        client.close()
