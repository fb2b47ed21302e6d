"""One `up` over two machines: start, replace, settle, interrupt and mend, with the stand-in.

The tests build on one another: what the first of them started is what the others replace.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.conftest import (
    MODEL,
    Program,
    docker_of,
    lend_engine,
    ours,
    press_ctrl_c,
    start_loading,
    up,
)
from tests.cluster.machines import TWINS, Machine, cluster_section, third_machine
from tests.cluster.main_deployment import KEPT, MAIN, ONE, TWO, recipe_of, serving, whole

pytestmark = [
    pytest.mark.docker,
    pytest.mark.in_order,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("stand_in", "recipe", "both_end_empty"),
    pytest.mark.runs("checkpoint", "cluster", "down", "logs", "plan", "rollback", "status", "up"),
]
DIES_BEFORE_THE_HEAD = """
import os, signal, sys
from sparkdeploy.cli.main import main
from sparkdeploy.deploy.launch import Launch

begin = Launch._begin

def mortal(self, node, *args, **options):
    if node.is_here:
        os.kill(os.getpid(), signal.SIGKILL)
    begin(self, node, *args, **options)

Launch._begin = mortal
main()
"""


def fingerprint_of(spec: dict[str, Any]) -> str:
    """The fingerprint of a container's spec that was printed as JSON."""
    content = {name: value for name, value in spec.items() if name not in {"name", "labels"}}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def test_the_plan_is_one_and_what_it_says_is_started(
    program: Program, head: Machine, worker: Machine
) -> None:
    asked = ("tiny", "--cluster", *ONE)
    assert program.run("plan", *asked, "--check").returncode == 9
    shown = program.answer("plan", *asked)["nodes"]
    text = program.run("plan", *asked, "--show", "container").stdout
    assert re.findall(r"^# (\S+)\ndocker run ", text, re.MULTILINE) == [head.name, worker.name]
    assert ours(head) == ours(worker) == []
    done = up(program, *ONE)
    assert done.returncode == 0, done.stderr
    assert "engine 0 B" not in done.stderr
    for machine in (head, worker):
        assert serving(machine).fingerprint == fingerprint_of(shown[machine.name]), machine.name
    again = program.run("plan", *asked, "--check")
    assert again.returncode == 0, again.stdout


def test_a_replacement_is_kept_and_rolled_back(
    program: Program, head: Machine, worker: Machine
) -> None:
    first = [serving(machine).container_id for machine in (head, worker)]
    done = up(program, *TWO)
    assert done.returncode == 0, done.stderr
    assert whole(head, worker) == 2
    assert ours(head) == ours(worker) == [MAIN, KEPT]
    assert program.answer("rollback", "--yes", "main")["action"] == "returned"
    assert [serving(machine).container_id for machine in (head, worker)] == first
    assert program.answer("status")[0]["state"] == "healthy"


@pytest.mark.parametrize(
    "later_s", [None, *(pytest.param(it, marks=pytest.mark.slow) for it in (0.2, 0.8, 1.6))]
)
def test_ctrl_c_brings_the_old_one_back_however_often_it_is_pressed(
    program: Program, head: Machine, worker: Machine, later_s: float | None
) -> None:
    process = start_loading(program, worker)
    press_ctrl_c(process)
    if later_s is not None:
        time.sleep(later_s)
        press_ctrl_c(process)
    done = program.finish(process)
    # The last one may come when all is done, and end Python itself: a shell says 130 of both.
    assert done.returncode in {130, -signal.SIGINT}, done.stderr
    assert "the deployment that was there is starting again" in done.stderr
    assert whole(head, worker) == 1


@pytest.mark.parametrize(
    ("mend", "number"), [("rollback", 1), pytest.param("up", 2, marks=pytest.mark.slow)]
)
def test_an_up_that_is_killed_before_the_head_is_half_replaced_and_mended(
    program: Program, head: Machine, worker: Machine, mend: str, number: int
) -> None:
    orders = ("up", "tiny", "--cluster", "--yes", *TWO)
    killed = program.start_python("-c", DIES_BEFORE_THE_HEAD, *orders)
    program.finish(killed)
    assert [recipe_of(serving(it))["serve"]["max_num_seqs"] for it in (head, worker)] == [1, 2]
    (row,) = program.answer("status")
    assert row["state"] == "half replaced"
    if mend == "up":
        assert up(program, *TWO).returncode == 0
    else:
        assert program.answer("rollback", "--yes", "main")["action"] == "reverted"
    assert whole(head, worker) == number


@pytest.fixture
def there(head: Machine, worker: Machine) -> Program:
    """The program on the worker, with the head's configuration and recipe."""
    config = worker.own / "home" / "config"
    shutil.copytree(head.own / "home" / "config", config, dirs_exist_ok=True)
    return Program(worker)


def test_a_worker_ends_and_replaces_nothing_of_its_heads(
    program: Program, there: Program, worker: Machine
) -> None:
    before = ours(worker), serving(worker).container_id
    alone = there.run("up", "tiny", "--solo", "--yes")
    assert alone.returncode == 4, alone.stderr
    assert "in use: spark-a's cluster deployment main runs there" in alone.stderr
    for command in ("down", "rollback"):
        refused = there.run(command, "main")
        assert refused.returncode == 4, refused.stderr
        assert "main, which spark-a heads" in refused.stderr
    (row,) = there.answer("status")
    assert (row["state"], row["head"]) == ("worker", "spark-a")
    assert "worker of spark-a" in there.run("status").stdout
    assert (ours(worker), serving(worker).container_id) == before
    assert program.answer("status")[0]["state"] == "healthy"


@pytest.mark.slow
def test_a_former_worker_heads_without_the_base_image(
    program: Program, there: Program, head: Machine, worker: Machine
) -> None:
    assert program.run("down", "--yes", "--all").returncode == 0
    with docker_of(worker) as host:
        assert not [tag for it in host.own_images() for tag in it.tags if "/base:" in tag]
    done = up(there)
    assert done.returncode == 0, done.stderr
    (row,) = there.answer("status")
    assert (row["state"], row["members"]) == ("healthy", [{"node": "spark-a", "state": "running"}])
    assert there.run("down", "--yes", "main").returncode == 0
    assert ours(head) == ours(worker) == []


def write_cluster(head: Machine, section: dict[str, Any]) -> None:
    config = {"cluster": section, "default_recipe": "tiny"}
    (head.own / "home" / "config" / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.slow
def test_an_alias_of_ssh_leads_check_docker_and_rsync(
    program: Program, head: Machine, worker: Machine
) -> None:
    section: dict[str, Any] = cluster_section((head, worker))
    alias = {**section["nodes"][1], "ssh": "other"}
    del alias["user"]
    known = head.own / "ssh" / "known_hosts"
    text = known.read_text()
    address = f"{TWINS[1][1]}.{worker.number}"
    known.write_text(f"[{address}]:2222 {(worker.own / 'host_key.pub').read_text()}")
    (head.own / "ssh" / "config").write_text(
        f"Host other\n  HostName {address}\n  Port 2222\n  User root\n"
    )
    worker.stop("sshd")
    worker.start_sshd(2222)
    write_cluster(head, {"nodes": [section["nodes"][0], alias]})
    worker.run(f"rm -r {MODEL}")
    try:
        checked = program.run("cluster", "check")
        done = up(program, "--prepare")
    finally:
        (head.own / "ssh" / "config").unlink()
        known.write_text(text)
        worker.stop("sshd")
        worker.start_sshd()
        write_cluster(head, section)
    assert checked.returncode == 0, checked.stdout
    assert done.returncode == 0, done.stderr
    assert "weights 0 B" not in done.stderr
    assert worker.run(f"ls {MODEL}") == head.run(f"ls {MODEL}")


@pytest.fixture
def third(program: Program, head: Machine, worker: Machine, stand_in: str) -> Iterator[Machine]:
    """A third machine that the head reaches through the second one alone."""
    both = cluster_section((head, worker))
    with third_machine(head, worker) as machine:
        lend_engine(head, machine, stand_in)
        write_cluster(head, cluster_section((head, worker, machine)))
        (head.own / "ssh" / "config").write_text(
            f"Host {machine.address}\n  ProxyJump {worker.address}\n"
        )
        machine.run(
            f"iptables -A INPUT -p tcp --dport 22 -s {head.address} -j REJECT "
            "--reject-with tcp-reset"
        )
        try:
            yield machine
        finally:
            (head.own / "ssh" / "config").unlink()
            program.run("down", "--yes", "main")
            write_cluster(head, both)


CHECK = """
from sparkdeploy.checks.report import Verdict
from sparkdeploy.upkeep.cluster import check_all
from sparkdeploy.deploy.request import Request
from sparkdeploy.settings import load_settings
request = Request("tiny", cluster=True)
for _ in range(6):
    found = check_all(request, load_settings())
    print([check.seen for check in found if check.verdict is Verdict.FAIL])
"""


@pytest.mark.slow
def test_three_nodes_are_checked_used_left_and_cleaned(
    program: Program, head: Machine, worker: Machine, third: Machine
) -> None:
    checked = program.finish(program.start_python("-c", CHECK))
    assert checked.stdout == "[]\n" * 6, checked.stdout + checked.stderr
    # Three ranks do not divide the model's heads; its layers they do.
    three = ("--set", "cluster.tensor_parallel=1", "--set", "cluster.pipeline_parallel=3")
    done = up(program, *three)
    assert done.returncode == 0, done.stderr
    whole(head, worker, third)
    done = up(program, "--set", "cluster.tensor_parallel=2")
    assert done.returncode == 0, done.stderr
    whole(head, worker)
    assert ours(third) == [KEPT]
    assert program.answer("status")[0]["state"] == "healthy"
    assert program.run("down", "--yes", "main").returncode == 0
    assert ours(head) == ours(worker) == ours(third) == []
