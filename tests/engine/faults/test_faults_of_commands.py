"""Whatever ends a command while it changes a deployment, and who puts things right after it.

The stand-in runs in the real container under the real guard, on an engine of the test's own; a
start takes a second. After each fault: nothing is half done once the next command has run, no
server is left over, never do two run, and the next `up` works.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from sparkdeploy.deploy import up as deploy
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.plan.container import Deployment
from sparkdeploy.settings import load_settings
from tests.engine.conftest import until
from tests.engine.ground import LONGEST_KILL_S, NAME, NEVER, Ground, seeds

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.runs("new", "down", "rollback", "status", "up"),
]

PROGRAM = (sys.executable, "-m", "sparkdeploy")


# ---- the CLI --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(50, in_ci=3))
def test_a_cli_killed_at_any_moment_is_recovered_from(place: Ground, seed: int) -> None:
    chance = random.Random(seed)
    if chance.random() < 0.2:
        assert place.cli.run("down", "--yes")[0] == 0
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
        code, said = place.cli.run("rollback", "--yes")
        assert code == 0, said
    code, said = place.up(f"new-{seed}")
    assert code == 0, said
    place.check_whole(f"new-{seed}")


@pytest.mark.parametrize("seed", seeds(4, in_ci=1))
@pytest.mark.parametrize(
    "name", ["SIGINT", *(pytest.param(it, marks=pytest.mark.slow) for it in ("SIGTERM", "SIGHUP"))]
)
def test_a_cli_that_is_interrupted_puts_things_right_itself(
    deployed: Ground, name: str, seed: int
) -> None:
    command = deployed.start("new", behaviour="--log cpu-0.32-mtp --lines-per-s 300")
    until(lambda: command.hears(signal.SIGHUP))
    time.sleep(random.Random(f"{name}{seed}").uniform(0.1, LONGEST_KILL_S))
    command.send(signal.Signals[name])
    code = command.wait()
    assert code in {130, 0}, command.said()
    assert "Traceback" not in command.said()
    # Interrupted after the answer, the new one stays all the same.
    deployed.check_whole(*(["new"] if code == 0 else ["old", "new"]))


# ---- another command ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "left"), [("rollback", "old"), pytest.param("down", None, marks=pytest.mark.slow)]
)
def test_a_start_is_ended_by_another_command(deployed: Ground, word: str, left: str | None) -> None:
    command = deployed.start("new", behaviour=NEVER)
    until(deployed.is_waited_for)
    code, said = other_command(deployed, "status", "--json")
    assert code == 0
    (row,) = json.loads(said)
    assert row["state"] == "being replaced"
    assert "sparkdeploy up standin --name main" in row["half_done"]
    code, said = other_command(deployed, word, "--yes")
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


# ---- what a start is held against ------------------------------------------------------------

AS_PLANNED = "Initializing a V1 LLM engine (v0.25.1) with config: speculative_config=None, x"
FALLEN_BACK = (
    "Initializing a V1 LLM engine (v0.25.1) with config: "
    "speculative_config=SpeculativeConfig(method='mtp', num_spec_tokens=2), x"
)


def test_a_rollback_to_something_else_than_was_planned_warns_and_stays(place: Ground) -> None:
    place.tell_servers("returning.log", AS_PLANNED)
    assert place.up("old", behaviour="--model-log returning.log")[0] == 0
    assert place.up("new")[0] == 0
    place.tell_servers("returning.log", FALLEN_BACK)
    code, said = place.cli.run("rollback", "--yes")
    assert code == 0, said
    assert "warning: speculation: planned off, runs mtp 2" in said
    place.check_whole("old")


def test_a_left_start_that_answers_a_moment_too_late_is_settled_by_the_same_up(
    deployed: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    behaviour = "--wait-for late"
    command = deployed.start("new", behaviour=behaviour)
    until(deployed.is_waited_for)
    command.send(signal.SIGKILL)
    command.wait()

    def answer_meanwhile(*_: object, **_options: object) -> bool:
        deployed.tell_servers("late")
        return deployed.text() != "new"

    # Between the look at what was left and the look at what runs.
    monkeypatch.setattr(deploy, "bring_models", answer_meanwhile)
    up_in_this_process(deployed, monkeypatch, behaviour)
    deployed.check_whole("new")


def up_in_this_process(place: Ground, monkeypatch: pytest.MonkeyPatch, behaviour: str) -> None:
    """Run `up` of `new` where a test can put something in its way."""
    for name, value in place.cli.env.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    behaves = f"serve.env.STAND_IN=--text 'new' {behaviour}"
    request = Request("standin", (behaves,), Deployment(NAME))
    deploy.up(resolve(request, settings), request, settings, confirm=lambda _: True)


# ---- the clock ------------------------------------------------------------------------------


@pytest.mark.parametrize("offset_s", [-86400.0, pytest.param(86400.0, marks=pytest.mark.slow)])
def test_a_clock_that_jumps_leaves_every_way_open(deployed: Ground, offset_s: float) -> None:
    command = deployed.start("new", behaviour=NEVER)
    until(deployed.is_waited_for)
    command.send(signal.SIGKILL)
    command.wait()
    code, said = deployed.cli.run("status", "--json", clock_offset_s=offset_s)
    assert code == 0
    assert json.loads(said)[0]["uptime_s"] >= 0
    code, said = deployed.cli.run("rollback", "--yes", clock_offset_s=offset_s)
    assert code == 0, said
    deployed.check_whole("old")
    code, said = deployed.cli.run("up", "standin", "--yes", clock_offset_s=offset_s)
    assert code == 0, said
    deployed.check_whole(" Paris")
