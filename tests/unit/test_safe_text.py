"""Nothing that a stranger wrote is a command to the terminal, whichever way it gets there."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.bench.files import record_text
from sparkdeploy.bench.report.page import read_published, report_page
from sparkdeploy.deploy.evidence import ROOT_CAUSE, write_evidence
from sparkdeploy.terminal.console import Console
from sparkdeploy.terminal.safe_text import (
    LogReading,
    nothing_raw,
    visible,
    visible_json,
    visible_line,
    visible_log,
)
from tests.examples import examples
from tests.fakes.bench_runs import sample_run
from tests.fakes.containers import FakeContainers, container
from tests.fakes.hostile_text import HOSTILE, commands_in
from tests.unit.conftest import REPOSITORY
from tests.unit.program import Run

# A title, a cleared screen, a coloured word, an 8-bit introducer, a turned direction, half a pair.
hostile_texts = st.text(
    st.one_of(
        st.sampled_from("\x00\x07\b\x0b\x0c\r\x1b\x7f\x80\x85\x9b\x9d\u2028\u202e\u2066\udc9b"),
        st.sampled_from("[]0;12JKm\\ \n\tab"),
        st.characters(),
    )
)


@settings(max_examples=examples(400))
@given(hostile_texts)
def test_a_visible_text_holds_no_command_and_stays_as_it_is(text: str) -> None:
    shown = visible(text)
    assert commands_in(shown) == set()
    assert visible(shown) == shown
    shown.encode()


@pytest.mark.parametrize("letter", "\u00ad\u180e\u200b\u200c\u200d\u2060\u2064\ufeff\U000e0041")
def test_one_line_shows_what_takes_no_room_and_a_text_keeps_it(letter: str) -> None:
    shown = visible_line(f"up v2{letter} --name main")
    assert shown.isascii()
    assert ascii(letter)[1:-1] in shown
    assert visible_line(shown) == shown
    assert visible(f"v2{letter}") == f"v2{letter}"


@given(st.text(st.characters(categories=["L", "N", "P", "S", "M"])))
def test_letters_of_any_language_are_left_alone(text: str) -> None:
    assert visible(f"a\tb\n{text}") == f"a\tb\n{text}"


@settings(max_examples=examples(300))
@given(hostile_texts, hostile_texts)
def test_json_means_the_same_without_a_command_in_it(name: str, value: str) -> None:
    text = visible_json(json.dumps({name: [value]}, ensure_ascii=False))
    assert commands_in(text) == set()
    assert json.loads(text) == {name: [value]}


@settings(max_examples=examples(300))
@given(st.lists(hostile_texts))
def test_a_log_reads_the_same_wherever_its_chunks_end(chunks: list[str]) -> None:
    reading = LogReading()
    shown = "".join(reading.feed(chunk) for chunk in chunks) + reading.finish()
    assert commands_in(shown) == set()
    assert shown == visible_log("".join(chunks))


def test_a_colour_or_a_line_end_that_is_cut_is_none_the_less_one() -> None:
    log = "\x1b[1;36mEngineCore\x1b[0m up\r\n 1%|#\r 2%|##\r\n\n\x1b[38;5;12mend\x1b]0;x\x07"
    for at in range(len(log) + 1):
        reading = LogReading()
        shown = reading.feed(log[:at]) + reading.feed(log[at:]) + reading.finish()
        assert shown == "EngineCore up\n 1%|#\n 2%|##\n\nend\\x1b]0;x\\x07", log[:at]


@pytest.mark.parametrize(
    "say",
    [
        lambda console: console.answer(HOSTILE),
        lambda console: console.answer_text(HOSTILE),
        lambda console: console.answer_log([HOSTILE[:5], HOSTILE[5:]]),
        lambda console: console.answer_json({HOSTILE: [HOSTILE]}),
        lambda console: console.info(HOSTILE),
        lambda console: console.detail(HOSTILE),
        lambda console: console.warn(HOSTILE),
        lambda console: console.error(HOSTILE, hint=HOSTILE, detail=HOSTILE),
    ],
)
def test_whatever_the_console_says_is_visible(
    say: Callable[[Console], None], capsys: pytest.CaptureFixture[str]
) -> None:
    say(Console(verbose=True))
    said = capsys.readouterr()
    assert "gone" in said.out + said.err
    assert commands_in(said.out + said.err) == set()


def test_what_others_in_the_process_write_is_visible_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError(HOSTILE)

    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    with nothing_raw():
        typer.echo(HOSTILE, err=True, color=True)
        logging.lastResort.handle(  # type: ignore[union-attr]
            logging.makeLogRecord({"msg": HOSTILE, "levelno": logging.ERROR})
        )
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    said = capsys.readouterr()
    assert said.err.count("gone") == 3
    assert commands_in(said.err) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        (HOSTILE,),
        (f"--{HOSTILE}",),
        ("status", f"--{HOSTILE}=1"),
        ("show", "v2", "--set", f"{HOSTILE}=1"),
        ("show", "v2", "--set", f"serve.port={HOSTILE}"),
        ("plan", f"./{HOSTILE}.yaml"),
        ("bench", "show", f"/{HOSTILE}.json"),
        ("export", "systemd", "v2", "--name", HOSTILE),
    ],
)
def test_a_mistake_on_the_command_line_is_shown_and_not_obeyed(
    run: Run, no_docker: None, arguments: tuple[str, ...]
) -> None:
    done = run(*(argument.replace("\udc9b", "") for argument in arguments))
    assert done.returncode not in {0, 70}, done.stderr
    assert commands_in(done.stdout + done.stderr) == set()


@pytest.mark.outside
def test_a_name_that_is_no_utf8_ends_no_command_with_a_bug() -> None:
    argv = [
        os.fsencode(sys.executable),
        b"-m",
        b"sparkdeploy",
        b"bench",
        b"show",
        b"/\x9b\xff.json",
    ]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    assert b"there is no file /\\udc9b\\udcff.json" in done.stderr


def test_a_report_shows_what_a_record_would_command() -> None:
    label = HOSTILE.replace("\udc9b", "") + "<script>"
    run = replace(sample_run(), label=label)
    field = read_published(REPOSITORY / "recipes" / "facts" / "published.yaml")
    html = report_page([run], field, made_at="now", version="1")
    assert commands_in(html) == set()
    assert "\\x1b]0;gone" in html
    assert "<script>" not in html
    assert commands_in(record_text(run)) == set()
    assert json.loads(record_text(run))["label"] == label


class Shouting(FakeContainers):
    """A container that writes whatever it likes."""

    def logs(self, *_: object, **_options: object) -> tuple[bytes, ...]:
        secret = "hf_\x1b[0mabcdefghijklmnopqrstuvwx"
        return (f"{HOSTILE}\nRuntimeError: {HOSTILE}\n{secret}\n".encode(errors="replace"),)


def test_evidence_can_be_looked_at_with_cat(tmp_path: Path) -> None:
    host = Shouting.of(container("main")).host
    write_evidence(host, "main", tmp_path, details={"cause": {"meaning": HOSTILE}}, keys=())
    for path in tmp_path.iterdir():
        assert commands_in(path.read_text(encoding="utf-8")) == set(), path.name
    assert "red" in (tmp_path / "container.log").read_text()
    assert "gone" in (tmp_path / ROOT_CAUSE).read_text()
    # A colour in its middle does not hide a token from the redaction.
    assert "abcdefgh" not in (tmp_path / "container.log").read_text()
