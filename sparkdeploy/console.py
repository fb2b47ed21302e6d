"""The only thing that prints: answers on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TextIO

from sparkdeploy.agenda import ending, in_seconds
from sparkdeploy.ink import Ink, plain_text
from sparkdeploy.paper import columns_of, draws_on, inked, painted
from sparkdeploy.table import laid_out
from sparkdeploy.terminal import LogReading, beneath, visible, visible_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sparkdeploy.agenda import Awaited
    from sparkdeploy.ink import Line
    from sparkdeploy.live import LiveStep, LiveWork
    from sparkdeploy.table import Block

PLAIN_UPDATE_EVERY_S = 10.0
"""Without a terminal a running step says so at most this often."""
RATE_WINDOW_S = 20.0
"""What was done longer ago than this says nothing of how fast it goes now."""


def format_bytes(size_bytes: float) -> str:
    """Return a size in decimal units, as disks and downloads are sold: `4.8 GB`."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_gib(size_bytes: float) -> str:
    """Return memory in binary units, as the kernel and vLLM count it: `4.0 GiB`."""
    return f"{size_bytes / 2**30:.1f} GiB"


def format_seconds(duration_s: float) -> str:
    """Return a duration as a person reads it: `12m03s`, `4.2s`."""
    return f"{duration_s:.1f}s" if duration_s < 60 else in_seconds(round(duration_s))


class StatusLine(Protocol):
    def show(self, text: str) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class PlainStatus:
    """A new line now and then, for logs and pipes."""

    stream: TextIO
    clock: Callable[[], float] = time.monotonic
    _last_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Stay quiet for the first interval: short steps need no middle."""
        self._last_s = self.clock()

    def show(self, text: str) -> None:
        now_s = self.clock()
        if now_s - self._last_s >= PLAIN_UPDATE_EVERY_S:
            self._last_s = now_s
            _write(self.stream, f"  {visible_line(text)}\n")

    def close(self) -> None: ...


@dataclass(slots=True)
class Step:
    """What is being done. Without a terminal only words are shown, and those now and then."""

    title: str
    started_s: float
    status: StatusLine
    clock: Callable[[], float]
    live: LiveStep | None = None
    """Where it is shown instead, on a terminal that draws."""
    _seen: deque[tuple[float, int]] = field(default_factory=deque, init=False)
    """Of the last seconds: when it was, and how many bytes were done."""

    def say(self, text: str) -> None:
        """Show what is done now."""
        if self.live is not None:
            self.live.say(text)
        else:
            self._say_plainly(text)

    def guess(self, text: str, left_s: float) -> None:
        """Say what is done now and how long it may take, where no stages of it are drawn."""
        if self.live is None:
            self._say_plainly(f"{text}, about {format_seconds(left_s)} left")

    def _say_plainly(self, text: str) -> None:
        elapsed = format_seconds(self.clock() - self.started_s)
        self.status.show(f"{self.title}: {text} [{elapsed}]")

    def progress(self, done_bytes: int, total_bytes: int, note: str = "") -> None:
        """Show bytes done, bytes in all, the present rate, and the time that is left at it.

        `note` goes before them. What was done before the first call, such as by an earlier try,
        counts for no rate.
        """
        now_s = self.clock()
        self._seen.append((now_s, done_bytes))
        while now_s - self._seen[0][0] > RATE_WINDOW_S and len(self._seen) > 2:
            self._seen.popleft()
        since_s, since_bytes = self._seen[0]
        speed, left_s = "", None
        if now_s > since_s and done_bytes > since_bytes:
            bytes_per_s = (done_bytes - since_bytes) / (now_s - since_s)
            speed = f"{format_bytes(bytes_per_s)}/s"
            left_s = max(total_bytes - done_bytes, 0) / bytes_per_s
        done = f"{format_bytes(done_bytes)} of {format_bytes(total_bytes)}"
        if self.live is not None:
            figures = f"{done}, {speed}" if speed else done
            self.live.count(done_bytes, total_bytes, figures, said=note, left_s=left_s)
            return
        left = format_seconds(left_s) if left_s is not None else "?"
        speed = f"{speed}, " if speed else ""
        self._say_plainly(f"{f'{note}, ' if note else ''}{done}, {speed}{left} left")

    def count(self, done: int, total: int, what: str) -> None:
        """Draw how many of how many are done, such as `graphs`."""
        if self.live is not None:
            self.live.count(done, total, f"{done} of {total} {what}")

    def stages(self, awaited: Sequence[Awaited]) -> None:
        """Draw what this step is going to do, one after the other."""
        if self.live is not None:
            self.live.expect(awaited)

    def enter(self, title: str) -> None:
        """Draw the stage that it has come to; the one before it is done."""
        if self.live is not None:
            self.live.enter(title)

    def place(self, node: str, text: str) -> None:
        """Draw how one of several nodes is."""
        if self.live is not None:
            self.live.place(node, text)

    def recent(self, lines: Iterable[str]) -> None:
        """Draw what was said last, of which `-v` shows some lines."""
        if self.live is not None:
            self.live.recent(lines)


@dataclass(slots=True)
class Console:
    """Writes for a person on stderr and for a program on stdout.

    Whatever the text came from, a terminal shows it and does not obey it, also later when a file
    of it is looked at: control characters are written out on the way.
    """

    quiet: bool = False
    verbose: bool = False
    clock: Callable[[], float] = time.monotonic
    has_no_reader: bool = field(default=False, init=False)
    """Whether who read the answers has gone, as `head` does."""
    _live: LiveWork | None = field(default=None, init=False)
    """What is drawn just now."""

    def answer(self, text: str) -> None:
        self.answer_text(text + "\n")

    def answer_text(self, text: str) -> None:
        """Print text that has its own line ends."""
        with self._while_read():
            sys.stdout.write(visible(text))
            sys.stdout.flush()

    def answer_blocks(self, blocks: Iterable[Block]) -> None:
        """Print paragraphs and tables, as wide as whatever reads them."""
        with self._while_read():
            for line in laid_out(blocks, columns_of(sys.stdout)):
                _write_line(sys.stdout, line)

    def answer_log(self, chunks: Iterable[str]) -> None:
        """Print a container's log as it comes: without colours, each step of a bar on a line."""
        reading = LogReading()
        for chunk in chunks:
            if self.has_no_reader:
                return
            self.answer_text(reading.feed(chunk))
        self.answer_text(reading.finish())

    @contextlib.contextmanager
    def _while_read(self) -> Iterator[None]:
        """Drop the rest of an answer whose reader has gone: the command goes on to its end."""
        try:
            yield
        except BrokenPipeError:
            self.has_no_reader = True
            # Python flushes what is left once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def answer_json(self, value: object) -> None:
        self.answer(json.dumps(value, indent=2, sort_keys=True, default=str))

    def info(self, text: str) -> None:
        if not self.quiet:
            self._write(text)

    def info_blocks(self, blocks: Iterable[Block]) -> None:
        """Tell in paragraphs and tables what is no answer."""
        for line in laid_out(blocks, columns_of(sys.stderr)):
            self.info(plain_text(line))

    def aside(self, text: str) -> None:
        """Write a passage of its own line ends on stderr, dimmed where that is possible."""
        if self.quiet:
            return
        stream = beneath(sys.stderr)
        _write(stream, inked(text, Ink.QUIET) if draws_on(stream) else visible(text))

    def detail(self, text: str) -> None:
        if self.verbose:
            self._write(f"  {text}")

    def warn(self, text: str) -> None:
        self._write(f"warning: {text}")

    def error(self, message: str, *, hint: str | None = None, detail: str | None = None) -> None:
        """Show a failure: the message, the long text beneath it, how to fix it.

        On a terminal that draws, the cause and the fix are the last lines, and of the long text
        there is as much above them as leaves them on the screen.
        """
        if self.draws:
            from sparkdeploy.live import show_failure  # noqa: PLC0415 - loads what draws

            show_failure(sys.stderr, message, hint, detail)
            return
        self._write(f"error: {message}")
        if detail:
            self._write("\n".join(f"  | {line}" for line in detail.splitlines()))
        if hint:
            self._write(f"  fix: {hint}")

    @property
    def draws(self) -> bool:
        """Whether work is shown as it goes, on a terminal that takes it."""
        return not self.quiet and draws_on(sys.stderr)

    @contextlib.contextmanager
    def steps(self, *awaited: Awaited) -> Iterator[None]:
        """Announce steps that come within this block; elsewhere than on a terminal nothing shows.

        Within another such block they come before what that one still awaits.
        """
        if self._live is not None:
            self._live.agenda.expect(awaited)
            yield
        elif self.draws:
            with self._drawing() as live:
                live.agenda.expect(awaited)
                yield
        else:
            yield

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show a step while it runs, and how long it took when it has ended."""
        started_s = self.clock()
        if self._live is not None:
            with self._live.step(title) as drawn:
                yield Step(title, started_s, PlainStatus(sys.stderr, self.clock), self.clock, drawn)
            return
        if self.draws:
            with self._drawing(), self.step(title) as step:
                yield step
            return
        step = Step(title, started_s, PlainStatus(sys.stderr, self.clock), self.clock)

        def end(outcome: str) -> None:
            step.status.close()
            self.info(f"{title}: {outcome} ({format_seconds(self.clock() - started_s)})")

        with ending(end):
            yield step

    def expect(self, *awaited: Awaited) -> None:
        """Announce steps that come within this block of steps."""
        if self._live is not None:
            self._live.agenda.expect(awaited)

    @contextlib.contextmanager
    def drawn_step(self, title: str) -> Iterator[None]:
        """Show what takes a moment, where it is drawn within a block of steps."""
        with self._live.step(title) if self._live is not None else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[LiveWork]:
        from sparkdeploy.live import LiveWork  # noqa: PLC0415 - loads what draws

        with LiveWork.on(sys.stderr, self.clock, verbose=self.verbose) as live:
            self._live = live
            try:
                yield live
            finally:
                self._live = None

    @property
    def can_ask(self) -> bool:
        return sys.stdin.isatty() and sys.stderr.isatty()

    def confirm(self, question: str) -> bool:
        """Ask on a terminal; without one the answer is no."""
        if not self.can_ask:
            return False
        with self._live.picture.hidden() if self._live is not None else contextlib.nullcontext():
            sys.stderr.write(f"{visible(question)} [y/N] ")
            sys.stderr.flush()
            reply = sys.stdin.readline()
            if not reply.endswith("\n"):
                sys.stderr.write("\n")
            return reply.strip().lower() in {"y", "yes"}

    def _write(self, text: str) -> None:
        _write(sys.stderr, visible(text) + "\n")


def _write(stream: TextIO, text: str) -> None:
    # A terminal that has gone away is no reason to leave work half done.
    with contextlib.suppress(OSError):
        stream.write(text)
        stream.flush()


def _write_line(stream: TextIO, line: Line) -> None:
    """Write a line, in its inks where somebody looks at it on a terminal."""
    if draws_on(stream):
        # The door has made its text visible; its colours are to be obeyed.
        with contextlib.suppress(UnicodeEncodeError):
            beneath(stream).write(painted(line, None) + "\n")
            stream.flush()
            return
    stream.write(visible(plain_text(line)) + "\n")
    stream.flush()


console = Console()
