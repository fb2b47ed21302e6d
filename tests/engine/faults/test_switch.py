"""`switch`, `stop` and `start` under a client that asks every 100 ms, killed at any moment."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import signal
import threading
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Self

import pytest

from tests.engine.conftest import until
from tests.engine.ground import LONGEST_KILL_S, NEVER, Ground, seeds

if TYPE_CHECKING:
    from tests.engine.stand_in.warm_cli import Running

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.runs("switch", "stop", "start", "down", "rollback", "status", "up"),
]

ASK_EVERY_S = 0.1
ALIAS = "chat"
"""What clients of both models ask for; each model has a name of its own beside it."""
MODELS = ("first", "second")
_TOLD = re.compile(r"nobody was answered for (?:(\d+)m )?([\d.]+)s")


@dataclass(frozen=True)
class Reply:
    """One answer: when, to what name, and whose text; empty where the name was refused."""

    at_s: float
    asked: str
    text: str


@dataclass
class Client:
    """Asks for the alias and for both models in turns, until it is told to end."""

    port: int
    replies: list[Reply] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Begin to ask."""
        self._thread = threading.Thread(target=self._ask_on, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def _ask_on(self) -> None:
        while not self._over.wait(ASK_EVERY_S):
            for name in (ALIAS, *MODELS):
                with contextlib.suppress(OSError, ValueError):
                    self.replies.append(self._ask(name))

    def _ask(self, name: str) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=2)
        body = json.dumps({"model": name, "prompt": "x", "max_tokens": 1})
        connection.request("POST", "/v1/completions", body)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        connection.close()
        text = content["choices"][0]["text"] if answer.status == 200 else ""
        return Reply(time.monotonic(), name, text)

    def texts(self, name: str) -> list[str]:
        """What was answered to a name, each once, in order."""
        return list(dict.fromkeys(it.text for it in self.replies if it.asked == name))

    def silence_s(self) -> float:
        """The longest time between two answers to the alias."""
        times = [it.at_s for it in self.replies if it.asked == ALIAS and it.text]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


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


def check_names(client: Client) -> None:
    """Nobody who asked for one model was answered by the other."""
    for model in MODELS:
        assert set(client.texts(model)) <= {model, ""}
    assert set(client.texts(ALIAS)) <= {*MODELS}


def test_clients_of_the_alias_stay_and_no_model_answers_for_another(first: Ground) -> None:
    with Client(first.port) as client:
        until(lambda: len(client.replies) > 5)
        command = start(first, "switch", "second")
        assert command.wait() == 0, command.said()
        until(lambda: client.replies[-1].at_s - client.replies[0].at_s > 1)
        until(lambda: "second" in client.texts("second"))
    check_names(client)
    assert client.texts(ALIAS) == ["first", "second"]
    assert client.texts("first") == ["first", ""]
    found = _TOLD.search(command.said())
    assert found, command.said()
    told_s = 60 * int(found[1] or 0) + float(found[2])
    print(f"silence: {client.silence_s():.2f} s by the client, {told_s} s told")
    assert abs(client.silence_s() - told_s) < 1.0
    assert "from its end to the new one's first answer nobody is answered: " in command.said()
    first.check_whole("second")


def test_a_new_one_that_fails_leaves_the_old_one_serving(first: Ground) -> None:
    with Client(first.port) as client:
        command = start(first, "switch", "second", "--die-after-s 0.2 --never-healthy")
        assert command.wait() == 7, command.said()
        assert "the previous deployment is starting again" in command.said()
        first.check_whole("first")
        before = len(client.replies)
        until(lambda: any(it.text for it in client.replies[before:]))
    check_names(client)
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
            code, said = first.cli.run("rollback")
            assert code == 0, said
            first.check_whole(*MODELS)
        if repair == "switch":
            command = start(first, "switch", "second")
            assert command.wait() == 0, command.said()
            first.check_whole("second")
        command = start(first, "up", "first")
        assert command.wait() == 0, command.said()
        first.check_whole("first")
    check_names(client)


def test_what_was_stopped_is_silent_and_starts_as_the_same(first: Ground) -> None:
    before = first.deployment()
    assert before is not None
    code, said = first.cli.run("stop")
    assert (code, first.servers()) == (0, 0), said
    assert "`sparkdeploy start main` starts it again" in first.cli.run("status")[1]
    code, said = first.cli.run("start")
    assert code == 0, said
    first.check_whole("first")
    after = first.deployment()
    assert after is not None
    assert after.current.container_id == before.current.container_id


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
