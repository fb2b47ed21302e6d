"""Weights on their way to another machine: what arrived before a cut is not sent again."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess

import pytest

from tests.cluster.conftest import Program
from tests.cluster.machines import HOME, Machine
from tests.engine.conftest import until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300), pytest.mark.runs()]
MB = 10**6
FILE_BYTES = 24 * MB
ARRIVED_BYTES = 8 * MB
FOLDER = f"{HOME}/weights"
SLOWLY = 'exec /usr/bin/rsync --bwlimit=4M "$@"'
SEND = f"""\
from pathlib import Path
from sparkdeploy.deploy.prepare import send_tree
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.node.cluster import open_nodes
from sparkdeploy.plan.observe import SyncTree
from sparkdeploy.settings import load_settings

settings = load_settings()
with open_nodes(settings, frozenset({{"spark-b"}})) as nodes:
    (worker,) = nodes.others
    tree = SyncTree(Path("{FOLDER}"), Path("{FOLDER}"), ("blob", "blobs/etag"))
    try:
        print("sent", send_tree(tree, nodes.here, worker, settings))
    except SparkdeployError as error:
        print("failed", error.message, error.hint)
"""


@pytest.fixture
def weights(head: Machine, worker: Machine) -> None:
    """One file of noise on the head, whose rsync is slow enough to be met on its way."""
    own = head.own / "home" / "weights"
    own.mkdir()
    (own / "blob").write_bytes(os.urandom(FILE_BYTES))
    head.give_command("rsync", SLOWLY)


def send(program: Program) -> subprocess.Popen[str]:
    return program.start_python("-c", SEND)


def arrived_bytes(worker: Machine) -> int:
    """How much of the file is on the other machine, under whatever name rsync gives it."""
    script = f"find {FOLDER} -type f -printf '%s\\n' 2>/dev/null"
    return sum(map(int, worker.run(script, check=False).split()))


def test_a_cut_transfer_goes_on_where_it_was(
    program: Program, weights: None, head: Machine, worker: Machine
) -> None:
    process = send(program)
    until(lambda: arrived_bytes(worker) > ARRIVED_BYTES)
    head.run("pkill -KILL -P $(pgrep -x rsync | head -n 1) -x ssh")
    cut = program.finish(process)
    assert "failed spark-b: rsync could not send weights" in cut.stdout, cut.stdout + cut.stderr
    assert "what arrived is kept" in cut.stdout
    kept = arrived_bytes(worker)
    assert kept > ARRIVED_BYTES // 2
    head.take_command("rsync")
    done = program.finish(send(program))
    found = re.search(r"sent (\d+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    # The rest, and some check sums of what is there.
    assert int(found[1]) < FILE_BYTES - kept + MB
    same = f"sha256sum < {shlex.quote(FOLDER)}/blob"
    assert head.run(same) == worker.run(same)
    assert worker.run(f"ls -A {FOLDER}") == "blob\n"
    again = program.finish(send(program))
    assert "sent 0" in again.stdout


@pytest.mark.slow
def test_what_lies_in_a_shared_store_here_is_a_file_of_its_own_there(
    program: Program, head: Machine, worker: Machine
) -> None:
    stored = head.own / "home" / "blobs" / "c1" / ("c1" + "0" * 62)
    stored.parent.mkdir(parents=True)
    stored.write_bytes(b"weights")
    shutil.rmtree(head.own / "home" / "weights", ignore_errors=True)
    blobs = head.own / "home" / "weights" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "etag").symlink_to(f"../../blobs/c1/{stored.name}")
    (blobs.parent / "blob").symlink_to("blobs/etag")
    worker.run(f"rm -rf {FOLDER}")
    done = program.finish(send(program))
    assert re.search(r"sent [1-9]", done.stdout), done.stdout + done.stderr
    assert worker.run(f"stat -c %F {FOLDER}/blobs/etag") == "regular file\n"
    assert worker.run(f"cat {FOLDER}/blob") == "weights"
    assert "sent 0" in program.finish(send(program)).stdout
