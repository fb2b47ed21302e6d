"""`bench` as a user runs it, against a server that answers at once."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.vllm_server import FakeEngine
from tests.unit.program import Done

pytestmark = pytest.mark.outside


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def records(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (tmp_path / "state" / "bench").glob("*.json")]


def test_any_endpoint_is_measured_by_its_url_and_kept(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("a-key\n")
    asked = ("--model", "mine", "--key-file", str(tmp_path / "key"))
    done = bench("--url", engine.url + "/v1/", *asked, "--rounds", "2", "--save", "first")
    assert done.returncode == 0, done.stderr
    assert "suite five: 2 rounds" in done.stdout
    assert {head["Authorization"] for head in engine.heads} == {"Bearer a-key"}
    assert {body["model"] for body in engine.asked} == {"mine"}
    (record,) = records(tmp_path)
    assert "a-key" not in json.dumps(record)
    assert record["label"] == "first"
    assert record["origin"]["url"] == engine.url
    assert record["origin"]["engine"]["version"] == "0.0-fake"
    (suite,) = record["suites"]
    assert [cell["prompt"] for cell in suite["cells"]] == [
        "qa",
        "code",
        "json",
        "math",
        "long_code",
    ]
    for cell in suite["cells"]:
        assert [item["completion_tokens"] for item in cell["rounds"]] == [cell["max_tokens"]] * 2
        assert cell["server"]["generation_tokens"] == 2 * cell["max_tokens"]
        assert cell["samples"][0]["counting"] == "usage and token ids"
        assert cell["server"]["kv_usage_peak"] == 0.125


def test_agents_converse_turn_by_turn_and_a_round_begins_a_new_task(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    done = bench("--url", engine.url, "--suite", "agents", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "turn 6, 4 at once" in done.stdout
    cells = records(tmp_path)[0]["suites"][0]["cells"]
    assert [(it["prompt"], it["concurrency"]) for it in cells] == [
        (f"turn {turn}", streams) for streams in (1, 4) for turn in range(1, 7)
    ]
    lengths = [it["samples"][-1]["prompt_tokens"] for it in cells[:6]]
    assert lengths == sorted(set(lengths))
    asked = [body for body in engine.asked if "tools" in body]
    assert {body["tool_choice"] for body in asked} == {"none"}
    tasks = Counter(body["messages"][1]["content"] for body in asked)
    # One alone and four at once, in a warm-up and a round, six turns each.
    assert sorted(tasks.values()) == [6] * 10


@pytest.mark.parametrize("has_tokenize", [True, False])
def test_a_sweep_makes_prompts_to_measure_that_no_cache_can_know(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path, has_tokenize: bool
) -> None:
    engine.has_tokenize = has_tokenize
    done = bench(
        *("--url", engine.url, "--suite", "sweep", "--rounds", "1"),
        *("--concurrency", "1,3", "--context", "1K,4K,16K"),
    )
    assert done.returncode == 0, done.stderr
    assert any(body["max_tokens"] == 1 for body in engine.asked) is not has_tokenize
    assert "context 16384 left out: the model serves up to 8192 tokens" in done.stdout
    (record,) = records(tmp_path)
    for cell in record["suites"][0]["cells"]:
        room = cell["context_tokens"] - cell["max_tokens"]
        for sample in cell["samples"]:
            assert room * 0.9 - 60 <= sample["prompt_tokens"] <= room
    texts = [body["messages"][0]["content"] for body in engine.asked if body["max_tokens"] == 128]
    assert len({text[:30] for text in texts}) == len(texts)


@pytest.mark.parametrize("more", [("standard",), ("sweep", "--context", "16K")])
def test_what_cannot_be_asked_is_refused_before_anything_is_measured(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path, more: tuple[str, ...]
) -> None:
    done = bench("--url", engine.url, "--suite", "five", "--suite", *more)
    assert done.returncode == 2
    assert engine.asked == []
    assert records(tmp_path) == []


def test_a_length_that_the_server_refuses_takes_no_shorter_one_with_it(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    engine.refuse = lambda body: "too long" if len(str(body["messages"])) > 6000 else None
    done = bench(
        *("--url", engine.url, "--suite", "sweep", "--rounds", "1"),
        *("--concurrency", "1", "--context", "300,8K"),
    )
    assert done.returncode == 8
    assert "too long" in done.stderr
    (short, long) = records(tmp_path)[0]["suites"][0]["cells"]
    assert short["samples"][0]["failure"] is None
    assert "too long" in long["samples"][0]["failure"]["message"]


def test_a_server_that_knows_no_extensions_is_measured_by_its_usage(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    engine.refuse = lambda body: "unknown field" if "return_token_ids" in body else None
    engine.has_metrics = False
    done = bench("--url", engine.url, "--suite", "decode", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    cell = records(tmp_path)[0]["suites"][0]["cells"][0]
    assert cell["samples"][0]["counting"] == "usage at the end"
    assert cell["server"] is None


def test_a_gate_ends_with_eight_below_its_floor_and_keeps_the_run(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    assert bench("--url", engine.url, "--rounds", "1", "--floor", "0.001").returncode == 0
    done = bench("--url", engine.url, "--rounds", "1", "--floor", "1e12")
    assert done.returncode == 8
    assert "is below the floor of 1e+12 (--floor)" in done.stderr
    assert len(records(tmp_path)) >= 1


def test_an_interrupted_run_keeps_what_was_measured(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path, interruptible: None
) -> None:
    seen: list[int] = []

    def interrupt(body: dict[str, Any]) -> None:
        seen.append(body["max_tokens"])
        if len(seen) == 10:  # what it counts, two rounds of three, and the third round begins
            os.kill(os.getpid(), signal.SIGINT)

    engine.before = interrupt
    done = bench("--url", engine.url, "--suite", "decode", "--rounds", "5")
    assert done.returncode == 130, done.stderr
    (record,) = records(tmp_path)
    (suite,) = record["suites"]
    assert suite["is_complete"] is False
    assert suite["notes"] == ["interrupted"]
    assert suite["cells"][0]["rounds"]
    assert "not finished" in done.stdout
    assert "suite decode: interrupted (" in done.stderr


def test_a_server_that_dies_meanwhile_ends_the_run_with_what_there_is(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    seen: list[int] = []

    def die(body: dict[str, Any]) -> None:
        seen.append(1)
        if len(seen) > 6:
            raise ConnectionAbortedError

    engine.before = die
    engine.handle_error = lambda *_: None  # type: ignore[method-assign]
    done = bench("--url", engine.url, "--suite", "decode", "--rounds", "3")
    assert done.returncode == 8
    assert "the server no longer answers" in done.stderr
    (record,) = records(tmp_path)
    assert record["suites"][0]["is_complete"] is False


def test_each_suite_is_kept_when_it_ends(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    kept: list[list[str]] = []

    def look(body: dict[str, Any]) -> None:
        if body.get("max_tokens") == 1:  # the sweep's probe: the suite before it has ended
            kept.append([suite["name"] for suite in records(tmp_path)[0]["suites"]])

    engine.before = look
    bench("--url", engine.url, "--suite", "decode,sweep", "--rounds", "1", "--context", "1K")
    assert kept[0] == ["decode"]


def test_a_file_that_exists_is_left_alone(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    file = tmp_path / "mine.json"
    file.write_text("{}")
    done = bench("--url", engine.url, "--suite", "decode", "--save", str(file))
    assert done.returncode == 2
    assert f"{file} exists" in done.stderr
    assert file.read_text() == "{}"


def test_a_label_names_its_newest_whole_run(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    asked = ("--url", engine.url, "--suite", "decode", "--rounds", "1", "--save", "v2")
    assert bench(*asked).returncode == 0
    (path,) = (tmp_path / "state" / "bench").glob("*.json")
    whole = json.loads(path.read_text())
    broken = {**whole, "run_id": "99991231T000000Z-v2-decode"}
    broken["suites"] = [{**suite, "is_complete": False} for suite in whole["suites"]]
    (path.parent / "99991231T000000Z-v2-decode.json").write_text(json.dumps(broken))
    page = tmp_path / "page.html"
    shown = bench("show", "v2")
    bench("report", "-o", str(page))
    assert whole["run_id"] in shown.stdout
    assert whole["run_id"] in page.read_text()
    assert "99991231" not in page.read_text()
    assert "not finished" in bench("show", "99991231T000000Z-v2-decode").stdout


def test_a_server_that_tells_no_usage_is_refused_at_its_first_request(
    bench: Callable[..., Done], engine: FakeEngine
) -> None:
    engine.tells_usage = False
    done = bench("--url", engine.url, "--suite", "decode", "--rounds", "1")
    assert done.returncode == 8
    assert "stream_options: {include_usage: true}" in done.stderr
    assert {body["max_tokens"] for body in engine.asked} == {2}


def test_runs_are_listed_shown_and_compared(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    file = tmp_path / "other.json"
    bench("--url", engine.url, "--rounds", "2", "--save", "mine")
    bench("--url", engine.url, "--rounds", "2", "--save", str(file))
    (listed,) = json.loads(bench("ls", "--json").stdout)
    assert listed["label"] == "mine"
    assert "mine" in bench("ls").stdout
    shown = bench("show", "mine")
    assert shown.stdout.startswith(f"mine  {listed['run_id']}")
    compared = bench("compare", "mine", str(file))
    assert compared.returncode == 0, compared.stderr
    assert "five, tok/s end to end" in compared.stdout
    (comparison,) = json.loads(bench("compare", "mine", str(file), "--json").stdout)
    assert comparison["base"] == "mine"
    assert comparison["base_runs"] == [listed["run_id"]]
    assert comparison["variation_from"] == []


def test_a_pair_is_measured_in_turns_and_compared(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    # The same server by two addresses.
    sides = engine.url, engine.url.replace("127.0.0.1", "localhost")
    done = bench("pair", *sides, "--suite", "decode", "--rounds", "1", "--runs", "3")
    assert done.returncode == 0, done.stderr
    kept = sorted(records(tmp_path), key=lambda record: record["started_at"])
    assert sorted(record["label"] for record in kept) == sorted(sides * 3)
    said = [line.split(": ", 1)[1] for line in done.stderr.splitlines() if "of 3: " in line]
    assert said == [sides[at] for at in (0, 1, 1, 0, 0, 1)]
    assert f"{sides[1]} against {sides[0]}" in done.stdout
    assert "3 runs against 3 runs" in done.stdout
    assert "all runs of a side are of one start" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("show", "nothing"), 8, "no run nothing"),
        (("compare", "one"), 2, "needs two runs"),
        (("--url", "ftp://x"), 2, "not an address"),
        (("--url", "http://127.0.0.1:9"), 7, "not reachable"),
        (("--suite", "six"), 2, "unknown suite 'six'"),
        (("pair", "a", "b", "--suite", "five,load"), 2, "a load is taken alone"),
        (("--url", "http://127.0.0.1:9", "--key-file", "/no/file"), 2, "cannot be read"),
    ],
)
def test_mistakes_are_named(
    bench: Callable[..., Done], arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = bench(*arguments)
    assert done.returncode == code
    assert words in done.stderr
