"""Each fault for real, on two machines, with a stand-in for vLLM and the product for all else.

The tests build on one another in the order in which they stand: the first one brings the images.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sparkdeploy import labels
from tests.cluster.conftest import Program, docker_of
from tests.cluster.machines import HOME, TWINS, Machine, configure
from tests.engine.conftest import until
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.docker,
    # Minutes of two machines' starts: the suite that everybody waits for has thirty in all.
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("stand_in", "recipe"),
]
MODEL = f"{HOME}/model"
LISTED_FILE = "tokenizer.json"
SPOKEN_WITHIN_S = 120.0
"""A bar for a machine that is busy; without other load each fault is said within 15 s."""
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


@pytest.fixture(scope="module")
def recipe(program: Program, head: Machine) -> None:
    """A user's own recipe on the head, and its model."""
    folder = head.own / "home" / "config" / "recipes"
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(RECIPE)
    done = program.run("checkpoint", "twin", MODEL)
    assert done.returncode == 0, done.stderr


@pytest.fixture(autouse=True)
def nothing_stays(program: Program, head: Machine, worker: Machine) -> Iterator[None]:
    """After every test `down` leaves nothing of ours on either machine."""
    yield
    done = program.run("down", "main")
    assert done.returncode == 0, done.stderr
    for machine in (head, worker):
        assert ours(machine) == [], machine.name


def ours(machine: Machine) -> list[str]:
    with docker_of(machine) as host:
        return [fact.name for fact in host.own_containers()]


def up(program: Program, *more: str) -> subprocess.CompletedProcess[str]:
    return program.run("up", "tiny", "--cluster", "--yes", *more)


def start_loading(program: Program, worker: Machine) -> subprocess.Popen[str]:
    """Start an `up` that loads for long, and wait until the worker's container runs."""
    process = program.start(
        *("up", "tiny", "--cluster", "--yes", "--set", "serve.env={STAND_IN_LOAD_S: '200'}")
    )
    with docker_of(worker) as host:

        def is_loading() -> bool:
            found = host.own_containers()
            log = b"".join(b"".join(host.logs(fact.container_id)) for fact in found)
            return b"Loading weights" in log

        until(is_loading, timeout_s=300)
    return process


def spoken(program: Program, process: subprocess.Popen[str]) -> str:
    """What `up` says when it ends by itself, soon."""
    started_s = time.monotonic()
    done = program.finish(process)
    assert done.returncode == 7, done.stderr
    assert time.monotonic() - started_s < SPOKEN_WITHIN_S
    return done.stderr


def test_the_first_up_sends_what_the_second_does_not(program: Program) -> None:
    first = up(program)
    assert first.returncode == 0, first.stderr
    assert "main answers at http://127.0.0.1:18700" in first.stdout
    assert "weights 0 B" not in first.stderr
    assert "engine 0 B" not in first.stderr
    again = up(program)
    assert "nothing to do" in again.stderr
    assert program.run("down", "main").returncode == 0
    third = up(program)
    assert "spark-b: 0 B sent" in third.stderr


def test_a_plan_shows_every_nodes_part_and_does_nothing(
    program: Program, head: Machine, worker: Machine
) -> None:
    plan = program.answer("plan", "tiny", "--cluster")
    assert list(plan["nodes"]) == ["spark-a", "spark-b"]
    assert "--headless" in plan["nodes"]["spark-b"]["command"]
    assert plan["nodes"]["spark-b"]["env"]["GLOO_SOCKET_IFNAME"] == TWINS[0][0]
    text = program.run("up", "tiny", "--cluster", "--dry-run").stdout
    assert "rank 1, worker, 10.77.0.12" in text
    assert ours(head) == ours(worker) == []


def test_status_and_logs_know_both_nodes(program: Program) -> None:
    assert up(program).returncode == 0
    (row,) = program.answer("status")
    assert row["state"] == "healthy"
    assert row["members"] == [{"node": "spark-b", "state": "running"}]
    assert "Loading weights" in program.run("logs", "main", "--node", "spark-b").stdout


def test_only_the_head_has_a_port_and_nothing_is_privileged(
    program: Program, head: Machine, worker: Machine
) -> None:
    assert up(program).returncode == 0
    for machine in (head, worker):
        with docker_of(machine) as host:
            (fact,) = host.own_containers()
            record = host.inspect(fact.container_id)
            assert record["HostConfig"]["Privileged"] is False
            assert record["HostConfig"]["CapDrop"] == ["ALL"]
            assert fact.labels[labels.NODES] == "spark-a,spark-b"
    assert ":18700" not in worker.run("ss -Hltn")
    assert "127.0.0.1:18700" in head.run("ss -Hltn")


def test_a_worker_killed_while_loading_ends_the_wait(program: Program, worker: Machine) -> None:
    process = start_loading(program, worker)
    worker.run("docker kill sparkdeploy-main")
    assert "spark-b: sparkdeploy-main died (exit code 137" in spoken(program, process)


def test_a_head_killed_while_loading_is_named_not_its_worker(
    program: Program, head: Machine, worker: Machine
) -> None:
    process = start_loading(program, worker)
    head.run("docker kill sparkdeploy-main")
    assert "error: spark-a: sparkdeploy-main died (exit code 137" in spoken(program, process)


def test_dockerd_that_dies_while_loading_is_named(program: Program, worker: Machine) -> None:
    process = start_loading(program, worker)
    worker.stop("dockerd")
    try:
        said = spoken(program, process)
    finally:
        worker.start_dockerd()
    assert "spark-b: lost while it was waited for" in said
    assert "what was started there may remain" in said


def test_ssh_that_dies_while_loading_is_named_and_cleaned_up_later(
    program: Program, worker: Machine
) -> None:
    process = start_loading(program, worker)
    worker.stop("sshd")
    try:
        said = spoken(program, process)
        left = program.run("down", "main")
        assert "sparkdeploy-main may remain there" in left.stderr
        assert ours(worker) == ["sparkdeploy-main"]
        assert program.answer("status") == []
    finally:
        worker.start_sshd()
    assert "error: spark-b: lost while it was waited for" in said
    assert "removed spark-b:sparkdeploy-main" in program.run("down", "main").stderr


def test_a_worker_killed_while_serving_makes_status_say_broken(
    program: Program, worker: Machine
) -> None:
    assert up(program).returncode == 0
    worker.run("docker kill sparkdeploy-main")
    (row,) = program.answer("status")
    assert row["state"] == "broken"
    assert row["members"] == [{"node": "spark-b", "state": "exited (137)"}]
    assert up(program).returncode == 0
    assert program.answer("status")[0]["state"] == "healthy"


def test_a_file_that_differs_by_one_byte_is_named_and_sent_again(
    program: Program, worker: Machine
) -> None:
    assert up(program, "--prepare").returncode == 0
    path = f"{MODEL}/{LISTED_FILE}"
    worker.run(
        f"touch -r {path} /run/before && printf X | dd of={path} bs=1 seek=3 conv=notrunc "
        f"status=none && touch -r /run/before {path}"
    )
    done = up(program, "--prepare")
    assert done.returncode == 0, done.stderr
    assert f"spark-b: {path} differs from spark-a's; sent again" in done.stderr
    assert "spark-b: 0 B sent" in up(program, "--prepare").stderr


def test_an_interface_without_address_stops_it_before_anything_starts(
    program: Program, worker: Machine
) -> None:
    worker.run(f"ip address flush dev {TWINS[1][0]}")
    try:
        done = up(program)
    finally:
        configure(worker, TWINS[1][0])
    assert done.returncode == 4
    assert f"spark-b: {TWINS[1][0]} address: none, expected 10.78.0.12/24" in done.stderr


def test_another_image_under_the_same_tag_is_named_and_made_anew(
    program: Program, worker: Machine
) -> None:
    with docker_of(worker) as host:
        tag = next(tag for image in host.own_images() for tag in image.tags if "plugin" in tag)
    worker.run(f"printf 'FROM {tag}\\nLABEL {labels.FINGERPRINT}=other' | docker build -t {tag} -")
    done = up(program, "--prepare")
    assert done.returncode == 0, done.stderr
    assert f"spark-b: {tag} is another image there" in done.stderr
    assert "engine 0 B, plugin context" in done.stderr


def test_after_a_change_of_the_plugin_only_its_context_travels(
    program: Program, head: Machine
) -> None:
    assert up(program, "--prepare").returncode == 0
    changed = head.own / "changed"
    shutil.copytree(
        REPOSITORY / "sparkdeploy",
        changed / "sparkdeploy",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    with (changed / "sparkdeploy/vllm_plugin/sparkdeploy_vllm/announce.py").open("a") as file:
        file.write("# changed\n")
    done = up(replace(program, package=changed), "--prepare")
    assert done.returncode == 0, done.stderr
    sent = re.search(
        r"spark-b: .* sent \(engine 0 B, plugin context (.*), weights 0 B\)", done.stderr
    )
    assert sent is not None, done.stderr
    assert sent[1].endswith(" kB")


@contextlib.contextmanager
def small_disk(worker: Machine, size_mb: int) -> Iterator[str]:
    """Give the worker's Docker Engine an empty disk of this size; yield where it is mounted."""
    with docker_of(worker) as host:
        root = host.info().root_dir
    worker.stop("dockerd")
    worker.run(f"mount -t tmpfs -o size={size_mb}m tmpfs {root}")
    worker.start_dockerd()
    try:
        yield root
    finally:
        worker.stop("dockerd")
        worker.run(f"umount -l {root}")
        worker.start_dockerd()


def test_a_disk_that_is_too_small_is_said_before_anything_is_sent(
    program: Program, worker: Machine
) -> None:
    with small_disk(worker, 600):
        done = up(program, "--prepare")
    assert done.returncode == 4
    assert "spark-b: disk: the engine image takes" in done.stderr


def test_a_disk_that_fills_up_during_the_transfer_is_named(
    program: Program, worker: Machine
) -> None:
    with small_disk(worker, 1200) as root:
        process = program.start("up", "tiny", "--cluster", "--yes", "--prepare")
        until(lambda: "docker-import-" in worker.run(f"ls {root}/tmp"), timeout_s=180)
        worker.run(f"dd if=/dev/zero of={root}/filler bs=1M count=1150 status=none", check=False)
        done = program.finish(process)
    assert done.returncode == 4, done.stderr
    assert "spark-b: disk full while the engine image was loaded" in done.stderr
    assert up(program, "--prepare").returncode == 0
