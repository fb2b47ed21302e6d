"""Records, captures and notes that a stranger made: named or shown, never a bug, never a wait."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from sparkdeploy.bench.files import record_text
from sparkdeploy.bench.quality.capture import Capture
from sparkdeploy.deploy.nodes import ClusterRecord
from sparkdeploy.errors import NodeError
from sparkdeploy.rehearsal.requests import read_reference
from sparkdeploy.server.phases import load_durations
from sparkdeploy.stored_json import MAX_BYTES, MAX_VALUES
from tests.examples import examples
from tests.fakes.bench_runs import cell, sample_run
from tests.fakes.hostile_text import commands_in
from tests.fakes.odd_json import Changes, changed, oddities
from tests.unit.bench.captures import capture, logs, text
from tests.unit.program import Run

pytestmark = pytest.mark.outside

SMALL = replace(
    sample_run(),
    suites=(
        replace(sample_run().suites[0], cells=(cell("qa", speed=51, max_tokens=256),)),
        replace(
            sample_run().suites[2],
            cells=tuple(
                cell("context", speed=40, max_tokens=8, concurrency=n, context_tokens=64)
                for n in (1, 2)
            ),
        ),
        sample_run().suites[3],
    ),
)
RECORD: dict[str, Any] = json.loads(record_text(SMALL))
CAPTURE: dict[str, Any] = TypeAdapter(Capture).dump_python(
    capture(text((1, logs(t1=0.5, t2=0.4)), (2, logs(t2=0.9)))), mode="json"
)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def survives(run: Run, codes: set[int], *arguments: str) -> None:
    """The command ends as the tree of errors says, and obeys nothing."""
    done = run(*arguments)
    assert done.returncode in codes, (arguments, done.stderr)
    assert commands_in(done.stdout + done.stderr) == set(), arguments


COMMANDS = (
    ("ls",),
    ("show", "odd"),
    ("show", "odd", "--json"),
    ("compare", "good", "odd"),
    ("compare", "odd", "good", "--json"),
    ("report", "good", "odd", "-o", "page.html"),
)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(oddities(RECORD), st.sampled_from(COMMANDS))
def test_a_strangers_record_is_shown_or_named(
    run: Run, tmp_path: Path, changes: Changes, command: tuple[str, ...]
) -> None:
    folder = tmp_path / "state" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    names = {name: str(folder / f"{name}.json") for name in ("good", "odd")}
    names["page.html"] = str(tmp_path / "page.html")
    Path(names["good"]).write_text(json.dumps(RECORD))
    Path(names["odd"]).write_text(json.dumps(changed(RECORD, changes)))
    survives(run, {0, 8}, "bench", *(names.get(word, word) for word in command))
    page = tmp_path / "page.html"
    if page.exists():
        assert commands_in(page.read_text(encoding="utf-8")) == set()
    known = {"state", "state/bench", "state/bench/good.json", "state/bench/odd.json", "page.html"}
    assert files_in(tmp_path) <= known


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(oddities(CAPTURE), st.sampled_from([(), ("--json",), ("--gate",)]))
def test_a_strangers_capture_is_compared_or_named(
    run: Run, tmp_path: Path, changes: Changes, more: tuple[str, ...]
) -> None:
    good, odd = tmp_path / "good.json", tmp_path / "odd.json"
    good.write_text(json.dumps(CAPTURE))
    odd.write_text(json.dumps(changed(CAPTURE, changes)))
    survives(run, {0, 8}, "bench", "quality", str(good), str(odd), *more)
    # A comparison is kept for reports, under a name of digits.
    others = files_in(tmp_path) - {"good.json", "odd.json", "state", "state/bench"}
    kept = re.compile(r"state/bench/quality(/[0-9T]{0,15}-[0-9a-f]{12}\.json)?")
    assert all(kept.fullmatch(name) for name in others)


WHOLE: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "too large": lambda path: path.write_bytes(b" " * (MAX_BYTES + 1)),
    "too many values": lambda path: path.write_text("[" + "[]," * MAX_VALUES + "[]]"),
    "too deep": lambda path: path.write_text("[" * 200_000),
    "deep and whole": lambda path: path.write_text('{"a":' * 101 + "1" + "}" * 101),
    "a long number": lambda path: path.write_text('{"schema": ' + "9" * 5000 + "}"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x1b[2J"),
    "nothing": Path.touch,
    "half a pair": lambda path: path.write_text('{"schema": 1, "label": "\\ud800"}'),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_what_is_no_record_at_all_is_named_at_once(run: Run, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "state" / "bench"
    folder.mkdir(parents=True)
    file = folder / "odd.json"
    WHOLE[kind](file)
    begun_s = time.monotonic()
    survives(run, {8}, "bench", "show", str(file))
    survives(run, {0}, "bench", "ls")
    survives(run, {8}, "bench", "quality", str(file), str(file))
    (folder / "deployments").symlink_to(folder)
    record = ClusterRecord(folder)
    with pytest.raises(NodeError, match="cannot be read"):
        record.nodes("odd")
    assert read_reference(file) is None
    (tmp_path / "starts").mkdir()
    file.rename(tmp_path / "starts" / "key.json")
    assert load_durations(tmp_path, "key") == {}
    assert time.monotonic() - begun_s < 10
