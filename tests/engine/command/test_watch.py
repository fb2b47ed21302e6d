"""`status --watch` and `chat` as somebody at a terminal sees them, on a real Docker Engine."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.node.container import ContainerSpec
from sparkdeploy.node.host import DockerHost
from sparkdeploy.server.metrics import read_metrics
from tests.engine.conftest import SpecMaker, model_at, port_of, start_serving, until
from tests.engine.program import Program
from tests.engine.terminal.screen import SIZES, Screen, screen

pytestmark = [pytest.mark.docker, pytest.mark.runs("status", "chat", "ask")]

BEFORE = "what stood here before"
LEFT = "left with"
LOAD = 90
"""Tokens a second that the stand-in counts."""
FIGURES = (
    *("2 running, 1 waiting", "first token p50 175 ms, p95 242 ms", "gap p50 38 ms, p95 49 ms"),
    *("drafts accepted 100 100 %", "prefix hits 40 %", "KV cache 25 %", "preemptions 3"),
    *("restarts 0", "GiB available"),
)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def loaded(make_spec: SpecMaker) -> ContainerSpec:
    return make_spec(load=LOAD)


@contextlib.contextmanager
def terminal(program: Program, *arguments: str) -> Iterator[Screen]:
    """Run `sparkdeploy` on a screen, between the lines BEFORE and LEFT with its exit code."""
    command = shlex.join([sys.executable, "-m", "sparkdeploy", *arguments])
    script = f"trap : INT; echo {shlex.quote(BEFORE)}; {command}; echo {LEFT} $?"
    folder = program.root / "terminal"
    with screen(["sh", "-c", script], program.env, folder, SIZES[0]) as window:
        yield window


def watched(program: Program, *names: str) -> Iterator[dict[str, Any]]:
    """Each line of the stream; the program ends with the iterator."""
    process = program.start("status", "--watch", *names, "--json")
    assert process.stdout is not None
    try:
        for line in process.stdout:
            yield json.loads(line)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        process.stdout.close()
        assert process.stderr is not None
        process.stderr.close()


def head_ends_at(screen: str, columns: int) -> bool:
    head = screen.split("\n", maxsplit=1)[0]
    return head.endswith("q leaves") and len(head) == columns


def is_whole(screen: str, columns: int) -> bool:
    return head_ends_at(screen, columns) and all(figure in screen for figure in FIGURES)


def test_the_figures_are_the_servers_own_of_the_same_second(
    host: DockerHost, loaded: ContainerSpec, program: Program, deployment: str
) -> None:
    start_serving(host, loaded)
    compared = 0
    with model_at(port_of(loaded)) as model:
        seen = [0.0]
        for told in watched(program, deployment):
            row = told["deployments"][0]
            metrics = read_metrics(model.exposition())
            assert metrics is not None
            assert metrics.generated_tokens is not None
            # The last one stands again where an answer is late; the server has counted on since.
            if row["generated_tokens"] is not None:
                assert seen[-1] <= row["generated_tokens"] <= metrics.generated_tokens
                seen.append(row["generated_tokens"])
            # The first looks may come before the first draft.
            if row["tokens_per_s"] is not None and row["accepted"]:
                # An answer on a busy machine is late by some share of the second between two.
                assert row["tokens_per_s"] == pytest.approx(LOAD, rel=0.4)
                assert (row["running"], row["waiting"]) == (2, 1)
                assert row["accepted"] == [pytest.approx(1.0, abs=0.05)] * 2
                compared += 1
            if compared == 3:
                break
        assert 0 < seen[1] < seen[-1], "it grows"


def test_each_figure_is_whole_at_every_size_and_the_window_is_given_back(
    host: DockerHost, loaded: ContainerSpec, program: Program, deployment: str
) -> None:
    start_serving(host, loaded)
    with terminal(program, "status", "--watch", deployment) as window:
        for columns, rows in ((80, 24), (120, 40), (200, 50), (100, 12), (80, 24)):
            window.resize(columns, rows)
            screen = window.until(partial(is_whole, columns=columns))
            assert "tokens/s" in screen
            assert f"http://127.0.0.1:{port_of(loaded)}" in screen
            assert all(len(line) <= columns for line in screen.split("\n"))
            assert screen.count("first token") == 1, "what stood there before is gone"
            assert BEFORE not in screen
        window.press("q")
        left = window.until(lambda seen: f"{LEFT} 0" in seen)
        assert left.startswith(BEFORE), "the screen is as it was"
        assert "first token" not in left


def test_a_server_that_is_killed_stays_as_gone_and_ctrl_c_leaves(
    host: DockerHost, loaded: ContainerSpec, program: Program, deployment: str
) -> None:
    container_id = start_serving(host, loaded)
    with terminal(program, "status", "--watch", deployment) as window:
        window.until(lambda seen: "serving" in seen and "2 running" in seen)
        host._api.kill(container_id, "KILL")
        window.until(lambda seen: "gone: does not answer since" in seen or "gone: exited" in seen)
        screen = window.until(lambda seen: "gone: exited (137) since" in seen)
        assert "last error: something killed it (SIGKILL)" in screen
        host.remove(container_id)
        window.until(lambda seen: "gone: removed since" in seen)
        window.press("C-c")
        assert window.until(lambda seen: f"{LEFT} 0" in seen).startswith(BEFORE)


def test_a_chat_at_a_terminal(
    host: DockerHost, make_spec: SpecMaker, program: Program, deployment: str
) -> None:
    long_answer = " ".join(f"word{number}" for number in range(400))
    spec = make_spec(text=long_answer, thought="Let me think.", pieces_per_s=20)
    start_serving(host, spec)
    with terminal(program, "chat", deployment) as window:
        window.until(lambda seen: "\n>" in seen)
        window.press("Hello", "Enter")
        window.until(lambda seen: "Let me think." in seen and "word5" in seen)
        window.press("C-c")
        window.until(lambda seen: "(ended)" in seen)
        with model_at(port_of(spec)) as model:
            until(lambda: "stand_in:given_up 1" in model.exposition())
        window.press("C-c")
        window.until(lambda seen: "Ctrl-D leaves" in seen)
        window.press("C-d")
        window.until(lambda seen: f"{LEFT} 0" in seen)
