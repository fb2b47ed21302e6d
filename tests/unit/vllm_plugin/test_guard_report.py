"""What the guard says, and that nobody who should read it can hold the guard up."""

# mypy: disable-error-code="import-not-found"

import errno
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkdeploy_vllm.guard import report

from tests.examples import examples
from tests.unit.vllm_plugin.guarded import GIB, Start, events, set_available

pytestmark = pytest.mark.outside

PAGE_BYTES = 4096
PIPE_BYTES = 2 * PAGE_BYTES
LINE = b"sparkdeploy-guard: " + b"x" * 200 + b"\n"


class Pipe:
    """A small pipe in the place of the guard's stderr."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def fill(self, pieces: list[int]) -> int:
        """Write as many bytes, piece by piece, while there is room; return how many are in it."""
        os.set_blocking(self.writer, False)
        written = 0
        for size_bytes in pieces:
            try:
                written += os.write(self.writer, b"y" * size_bytes)
            except BlockingIOError:
                break
        os.set_blocking(self.writer, True)
        return written

    def drain(self) -> bytes:
        """Read all that is in it."""
        os.set_blocking(self.reader, False)
        text = b""
        try:
            while piece := os.read(self.reader, PIPE_BYTES):
                text += piece
        except BlockingIOError:
            return text
        return text

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    stderr = Pipe()
    monkeypatch.setattr(report, "STDERR", stderr.writer)
    monkeypatch.setattr(report, "PATIENCE_S", 0.0)
    monkeypatch.setattr(report, "_stderr", report._Stderr())
    yield stderr
    stderr.close()


def _refuse(*_: object) -> int:
    raise OSError(errno.EOPNOTSUPP, "not supported")


@pytest.fixture(params=["linux-6.4", "before"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that can write to a pipe without waiting, and one that cannot."""
    if request.param == "before":
        monkeypatch.setattr(os, "pwritev", _refuse)


def put(pipe: Pipe, filled: int) -> bool:
    """Whether the line went in, whole; it never goes in in part, and nobody waits."""
    is_written = bool(report.write_at_once(LINE))
    assert pipe.drain() == b"y" * filled + (LINE if is_written else b"")
    return is_written


def test_at_every_fill_level_a_line_goes_in_whole_or_not_at_all(pipe: Pipe, kernel: None) -> None:
    went_in = [put(pipe, pipe.fill([level])) for level in range(0, PIPE_BYTES + 1, 13)]
    assert went_in[0]
    assert not put(pipe, pipe.fill([PIPE_BYTES]))


def test_beside_a_child_that_floods_the_pipe_every_line_stays_whole_and_nobody_waits(
    pipe: Pipe,
) -> None:
    flood = subprocess.Popen(["yes", "y" * 100], stdout=pipe.writer)
    taken, longest_s = b"", 0.0
    for number in range(300):
        begin_s = time.monotonic()
        report.report("beside", number=number)
        longest_s = max(longest_s, time.monotonic() - begin_s)
        taken += os.read(pipe.reader, 1000)
    flood.kill()
    flood.wait()
    taken += pipe.drain()
    report.report("last")
    said = events((taken + pipe.drain()).decode())
    dropped = sum(event.get("dropped_lines", 0) for event in said)
    assert len(said) + dropped == 301
    assert longest_s < 30, "who waits for the reader waits for ever"


def test_a_closed_stderr_is_no_reason_to_stop(pipe: Pipe, kernel: None) -> None:
    os.close(pipe.reader)
    pipe.reader = os.open(os.devnull, os.O_RDONLY)
    report.report("nobody_listens")


def test_into_a_file_a_line_is_appended_to_what_the_child_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        monkeypatch.setattr(report, "STDERR", file.fileno())
        file.write(b"Loading 40%")
        report.report("memory_floor")
        file.write(b"after\n")
    text = path.read_text()
    assert text == 'Loading 40%\nsparkdeploy-guard: {"event": "memory_floor"}\nafter\n'


@settings(max_examples=examples(300))
@given(
    texts=st.dictionaries(
        st.sampled_from(["error", "command", "other"]),
        st.text(st.characters(exclude_categories=()), max_size=300).map(lambda text: text * 40),
    )
)
def test_a_line_is_one_line_of_json_that_fits_into_one_piece(texts: dict[str, str]) -> None:
    line = report.line_of("refused", **texts, exit_code=2)
    assert len(line) <= PAGE_BYTES
    assert (line[:1], line[-1:], line[1:-1].count(b"\n")) == (b"\n", b"\n", 0)
    said = json.loads(line.decode().strip().removeprefix(report.MARK))
    assert said["exit_code"] == 2
    assert all(text.startswith(said[name]) for name, text in texts.items())


STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True: signal.pause()
"""


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe that is full and that nobody reads, as when the Docker daemon hangs."""
    full = Pipe()
    full.fill([PIPE_BYTES])
    yield full.writer
    full.close()


def test_with_a_full_stderr_a_memory_trip_still_ends_with_86(
    start: Start, unread: int, meminfo: Path
) -> None:
    guard = start(
        STUBBORN, *("--memory-floor-bytes", str(2 * GIB), "--meminfo", str(meminfo)), stderr=unread
    )
    assert guard.stdout is not None
    guard.stdout.readline()
    set_available(meminfo, GIB)
    assert guard.wait(30) == 86
