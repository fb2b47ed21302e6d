"""`switch`, `stop` and `start` under a client that asks every 100 ms, killed at any moment."""

from __future__ import annotations

import json
import random
import re
import signal
import time

import pytest

from tests.engine.asking import ALIAS, MODELS, Client
from tests.engine.conftest import until
from tests.engine.forks import Running
from tests.engine.ground import LONGEST_KILL_S, NEVER, Ground, seeds

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.runs("doctor", "switch", "stop", "start", "down", "rollback", "status", "up"),
]

_TOLD = re.compile(r"downtime: (?:(\d+)m )?([\d.]+)s")


@pytest.fixture(scope="module")
def two(place: Ground) -> Ground:
    """The same user, with two recipes whose models have a name and an alias each."""
    recipes = place.root / "config" / "recipes"
    plain = (recipes / "standin.yaml").read_text()
    for model in MODELS:
        names = [model, ALIAS] if model == MODELS[0] else [model]
        text = plain.replace("name: standin", f"name: {model}").replace(
            "repo: test/stand-in", f"repo: test/stand-in, served_name: {json.dumps(names)}"
        )
        (recipes / f"{model}.yaml").write_text(text)
    return place


@pytest.fixture
def first(two: Ground) -> Ground:
    """`first` serves."""
    assert start(two, "up", "first").wait() == 0
    return two


def start(place: Ground, command: str, model: str, behaviour: str = "") -> Running:
    words = f"serve.env.STAND_IN=--text {model} {behaviour}"
    return place.cli.start(command, model, "--yes", "--set", words)


def test_clients_of_the_alias_stay_and_no_model_answers_for_another(first: Ground) -> None:
    with Client(first.port) as client:
        until(lambda: len(client.replies) > 5)
        command = start(first, "switch", "second")
        assert command.wait() == 0, command.said()
        until(lambda: client.replies[-1].at_s - client.replies[0].at_s > 1)
        until(lambda: "second" in client.texts("second"))
    client.check_names()
    assert client.texts(ALIAS) == ["first", "second"]
    assert client.texts("first") == ["first", ""]
    found = _TOLD.search(command.said())
    assert found, command.said()
    told_s = 60 * int(found[1] or 0) + float(found[2])
    print(f"silence: {client.downtime_s():.2f} s by the client, {told_s} s told")
    assert abs(client.downtime_s() - told_s) < 1.0
    assert "downtime: not known here" in command.said()
    first.check_whole("second")


def test_a_new_one_that_fails_leaves_the_old_one_serving(first: Ground) -> None:
    with Client(first.port) as client:
        command = start(first, "switch", "second", "--die-after-s 0.2 --never-healthy")
        assert command.wait() == 7, command.said()
        assert "the previous deployment is starting again" in command.said()
        first.check_whole("first")
        before = len(client.replies)
        until(lambda: any(it.text for it in client.replies[before:]))
    client.check_names()
    assert client.texts(ALIAS) == ["first"]


@pytest.mark.parametrize("seed", seeds(20, in_ci=1))
def test_a_switch_killed_at_any_moment_is_repaired(first: Ground, seed: int) -> None:
    chance = random.Random(seed)
    repair = chance.choice(("rollback", "up", "switch"))
    with Client(first.port) as client:
        behaviour = NEVER if chance.random() < 0.2 else ""
        command = start(first, "switch", "second", behaviour)
        time.sleep(chance.uniform(0, LONGEST_KILL_S))
        command.send(signal.SIGKILL)
        assert command.wait() in {-signal.SIGKILL, 0}
        assert first.servers() <= 1
        first.settle()
        if repair == "rollback":
            code, said = first.cli.run("rollback", "--yes")
            assert code == 0, said
            first.check_whole(*MODELS)
        if repair == "switch":
            command = start(first, "switch", "second")
            assert command.wait() == 0, command.said()
            first.check_whole("second")
        command = start(first, "up", "first")
        assert command.wait() == 0, command.said()
        first.check_whole("first")
    client.check_names()


@pytest.mark.parametrize("seed", seeds(10, in_ci=1))
def test_a_stop_or_start_killed_at_any_moment_is_repaired(first: Ground, seed: int) -> None:
    chance = random.Random(seed)
    for words in (("stop",), ("start",), ("restart",)):
        command = first.cli.start(*words)
        time.sleep(chance.uniform(0, LONGEST_KILL_S))
        command.send(signal.SIGKILL)
        assert command.wait() in {-signal.SIGKILL, 0}
        assert first.servers() <= 1
    first.settle()
    code, said = first.cli.run("start")
    assert code == 0, said
    first.check_whole("first")
