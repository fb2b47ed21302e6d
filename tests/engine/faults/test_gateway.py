"""The gateway before real containers: clients in turns, and kill -9 of each part in the middle."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from sparkdeploy.node.facts import parse_meminfo
from tests.engine.conftest import free_port, until
from tests.engine.forks import Running
from tests.engine.ground import Ground

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.runs("down", "gateway"),
]

MODELS = ("first", "second", "third")
"""Two of them fit at a time."""
CLIENTS, ROUNDS = 20, 6
PATIENCE_S = 120


class Home:
    """A stack of three, its gateway, and clients of it."""

    def __init__(self, place: Ground) -> None:
        self.place = place
        self.port = free_port()
        self.path = place.root / "home.yaml"
        # Each is planned with 4 GiB: two of them leave so much free, three do not.
        available_gib = parse_meminfo(Path("/proc/meminfo").read_text())["MemAvailable"] / 2**30
        own = f"limits.memory_floor_gib={available_gib - 10:.2f}"
        models = [
            {
                "name": name,
                "recipe": "standin",
                "set": [own, f"serve.env.STAND_IN=--text {name} --only-names"],
            }
            for name in MODELS
        ]
        content = {"schema": 1, "port": self.port, "smallest_stay_s": 2, "models": models}
        self.path.write_text(json.dumps(content))

    def start(self) -> Running:
        """Start the gateway; one before it is killed."""
        running = self.place.cli.start("gateway", str(self.path), "--allow-unsafe")
        until(lambda: "listens" in running.said() or "error:" in running.said())
        assert "error:" not in running.said(), running.said()
        return running

    def ask(self, model: str) -> str:
        """Return who answered; what is refused is asked again, as clients do."""
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "x"}]})
        while True:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
            with contextlib.closing(connection), contextlib.suppress(OSError, HTTPException):
                connection.request("POST", "/v1/chat/completions", body)
                answer = connection.getresponse()
                content = json.loads(answer.read())
                if answer.status == 200:
                    return str(content["choices"][0]["message"]["content"])

    def running(self) -> set[str]:
        with self.place.host() as host:
            return {it.deployment for it in host.own_containers() if it.is_running}


@pytest.fixture
def home(place: Ground) -> Iterator[Home]:
    made = Home(place)
    yield made
    for name in MODELS:
        place.cli.run("down", name, "--yes")


def clients_of(home: Home) -> list[tuple[str, str]]:
    """Ask in turns from many clients; return each model with who answered for it."""

    def ask_on(number: int) -> list[tuple[str, str]]:
        names = [MODELS[(number + turn) % len(MODELS)] for turn in range(ROUNDS)]
        return [(name, home.ask(name)) for name in names]

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [pair for pairs in pool.map(ask_on, range(CLIENTS)) for pair in pairs]


def test_clients_in_turns_are_all_answered_by_the_right_model(home: Home) -> None:
    running = home.start()
    answered = clients_of(home)
    assert len(answered) == CLIENTS * ROUNDS
    assert [pair for pair in answered if pair[0] != pair[1]] == []
    assert len(home.running()) == 2
    stops = running.said().count("is stopped")
    assert 1 <= stops <= CLIENTS, running.said()
    running.send(signal.SIGTERM)
    assert running.wait() == 0, running.said()
    assert len(home.running()) == 2, "what it started lives on"


@pytest.mark.parametrize("killed", ["gateway", "server", "engine"])
def test_a_kill_in_the_middle_orphans_nothing_and_loses_no_model(home: Home, killed: str) -> None:
    home.start()
    with ThreadPoolExecutor(1) as pool:
        clients = pool.submit(clients_of, home)
        until(lambda: len(home.running()) >= 2)
        if killed == "engine":
            home.place.engine.kill()
            home.place.engine.start()
        elif killed == "server":
            with home.place.host() as host:
                for fact in host.own_containers():
                    if fact.is_running:
                        host._api.kill(fact.container_id, "KILL")
        running = home.start() if killed == "gateway" else None
        answered = clients.result()
    assert [pair for pair in answered if pair[0] != pair[1]] == []
    assert len(answered) == CLIENTS * ROUNDS
    until(lambda: home.place.servers() == len(home.running()))
    # A gateway that starts counts what was promised, and stand-ins take less than that.
    assert len(home.running()) <= 2 or killed == "gateway"
    with home.place.host() as host:
        names = sorted(it.name for it in host.own_containers())
    assert names == sorted(f"sparkdeploy-{it}" for it in MODELS), running
