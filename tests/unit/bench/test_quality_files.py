"""Captures as files, and `bench quality` over them as a user runs it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.bench.quality.capture import Capture, read_capture, write_capture
from sparkdeploy.errors import BenchError
from tests.unit.bench.captures import capture, logs, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.program import Done

GOOD = capture(text((1, logs(t1=0.8, t2=0.2))), text((1, logs(t1=0.7, t2=0.3)), name="b"))
BAD = capture(
    text((1, logs(t1=0.2, t2=0.8))), text((1, logs(t1=0.7, t2=0.3)), name="b"), label="two"
)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    for name, content in (("good", GOOD), ("bad", BAD)):
        write_capture(content, tmp_path / f"{name}.json")
    return str(tmp_path / "good.json"), str(tmp_path / "bad.json")


def test_a_capture_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "capture.json"
    write_capture(GOOD, path)
    assert read_capture(path) == GOOD
    assert [item.name for item in path.parent.iterdir()] == ["capture.json"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[", "is not a quality capture"),
        ('{"schema": 1}', "is not a quality capture"),
        (json.dumps({"kind": GOOD.kind, "schema": 99}), "has schema 99"),
        (json.dumps({"kind": GOOD.kind, "schema": 1}), "is damaged: label"),
    ],
)
def test_what_is_no_capture_is_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(BenchError, match=said):
        read_capture(path)


def test_the_gate_exits_eight(files: tuple[str, str], bench: Callable[..., Done]) -> None:
    good, bad = files
    assert bench("quality", good, good, "--gate").returncode == 0
    assert bench("quality", good, bad).returncode == 0
    done = bench("quality", good, bad, "--gate", "--json")
    assert done.returncode == 8
    assert json.loads(done.stdout)["gate"]["passed"] is False
    assert (
        "bad (two) is not close enough to good (one): top-1 agreement 50.00% is below 97.00%"
        in done.stderr
    )
    loose = ("--min-agreement", "0.5", "--max-kl", "9", "--max-perplexity-rise", "9")
    assert bench("quality", good, bad, "--gate", *loose).returncode == 0
    assert bench("quality", good, bad, "--gate", *loose, "--max-drift", "0.1").returncode == 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "a comparison has two sides, and 0 came"),
        (("a.json", "b.json", "c.json"), "and 3 came"),
        (("a.json", "b.json", "--save", "c.json"), "--save captures one side"),
        (("a.json", "--save", "c.txt"), "ends in .json"),
    ],
)
def test_a_command_line_without_sense(
    arguments: tuple[str, ...], said: str, bench: Callable[..., Done]
) -> None:
    done = bench("quality", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_fingerprint_is_of_the_texts_alone() -> None:
    def fingerprint(of: Capture) -> str:
        return of.fingerprint

    assert fingerprint(GOOD) == fingerprint(BAD)
    assert fingerprint(GOOD) != fingerprint(capture(GOOD.texts[0]))
