"""`up` of a stack over real containers: what is kept always starts, and a kill is gone on from."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdeploy import yaml_text
from tests.engine.conftest import free_port, model_at, until
from tests.engine.forks import WarmCli
from tests.engine.ground import Ground

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.runs("new", "plan", "up", "down", "stop", "export"),
]
PROGRAM_WORDS = 4
"""Of a command before its own words: this Python, -P, -m and the module."""


def stack(place: Ground, **keeps: str) -> Path:
    """A stack of stand-ins, by name and how each is kept; all fit together."""
    models = [
        {
            "name": name,
            "recipe": "standin",
            "keep": keep,
            "port": free_port(),
            "set": ["serve.gpu_memory_utilization=0.05", f"serve.env.STAND_IN=--text {name}"],
        }
        for name, keep in keeps.items()
    ]
    path = place.root / "home.yaml"
    path.write_text(json.dumps({"schema": 1, "port": free_port(), "models": models}))
    return path


def running(place: Ground) -> set[str]:
    with place.host() as host:
        return {it.deployment for it in host.own_containers() if it.is_running}


def up(place: Ground, path: str) -> str:
    """Run `up` of a stack to its end, and return what it said."""
    code, text = place.cli.run("up", path, "--yes", "--allow-unsafe")
    assert code == 0, text
    return text


@pytest.fixture
def home(place: Ground) -> Iterator[str]:
    """A stack of two that are kept always, and of one that is not."""
    yield str(stack(place, first="always", later="idle", second="always"))
    for name in ("first", "second"):
        place.cli.run("down", name, "--yes")


def test_what_is_kept_always_starts_and_the_rest_is_ready(place: Ground, home: str) -> None:
    code, text = place.cli.run("plan", home)
    assert (code, "serve.env" in text) == (3, True), "a stack from elsewhere sets variables"
    assert "ready to start: later" in up(place, home)
    assert running(place) == {"first", "second"}
    assert "first was up already and answers" in up(place, home)
    code, text = place.cli.run("plan", home, "--allow-unsafe", "--check")
    assert code == 0, text
    # What the recipe's start took, whichever model it was for, is known from now on.
    assert "~" not in text.partition("start:")[0].partition("download")[2]


def test_an_up_that_is_killed_is_gone_on_from(place: Ground, home: str) -> None:
    begun = place.cli.start("up", home, "--yes", "--allow-unsafe")
    until(lambda: "first" in running(place))
    begun.send(signal.SIGKILL)
    up(place, home)
    assert running(place) == {"first", "second"}
    with place.host() as host:
        names = sorted(it.name for it in host.own_containers())
    assert names == ["sparkdeploy-first", "sparkdeploy-second"]


def test_what_llama_swap_is_told_to_run_stays_and_ends_by_its_stop(
    place: Ground, tmp_path: Path
) -> None:
    models = [{"name": "first", "recipe": "standin", "port": free_port()}]
    path = tmp_path / "home.yaml"
    path.write_text(json.dumps({"schema": 1, "models": models}))
    code, text = place.cli.run("export", "llama-swap", str(path), "-o", str(tmp_path / "swap"))
    assert code == 0, text
    model = yaml_text.load_file(tmp_path / "swap" / "config.yaml")["models"]["first"]
    begin, end = (shlex.split(model[key])[PROGRAM_WORDS:] for key in ("cmd", "cmdStop"))
    with WarmCli(place.cli.env, tmp_path) as other:
        staying = other.start(*begin)
        with model_at(int(model["proxy"].rpartition(":")[2])) as server:
            until(server.is_healthy)
            until(lambda: "first answers" in staying.said())
            assert staying.fork.code is None
            code, text = place.cli.run(*end)
            assert code == 0, text
        assert staying.wait() == 0, staying.said()
    assert running(place) == set()
    place.cli.run("down", "first", "--yes")
