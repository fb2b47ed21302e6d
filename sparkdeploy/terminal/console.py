"""The only thing that prints: answers on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from sparkdeploy.errors import Mistakes
from sparkdeploy.terminal.safe_text import LogReading, beneath, visible, visible_line
from sparkdeploy.terminal.step import PlannedStep, Step
from sparkdeploy.terminal.style import (
    Line,
    Piece,
    Style,
    clipped,
    coloured,
    columns_of,
    draws_on,
    line_cells,
    line_of,
    painted,
    plain_text,
    size_of,
)
from sparkdeploy.terminal.tables import laid_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sparkdeploy.terminal.progress import Progress
    from sparkdeploy.terminal.tables import Block

BEFORE_FAILURE = 3
"""Rows above a failure that stay on the screen: what ran, and the shell's next prompt."""


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
    _progress: Progress | None = field(default=None, init=False)

    def answer(self, text: str) -> None:
        self.answer_text(text + "\n")

    def answer_text(self, text: str) -> None:
        with self._while_read():
            sys.stdout.write(visible(text))
            sys.stdout.flush()

    def answer_blocks(self, blocks: Iterable[Block]) -> None:
        with self._while_read():
            for line in laid_out(blocks, columns_of(sys.stdout)):
                if self._progress is not None and sys.stdout.isatty():
                    self._progress.leave(line)
                else:
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
            drop_answer()

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
        _write(stream, coloured(text, Style.QUIET) if draws_on(stream) else visible(text))

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
            stream = beneath(sys.stderr)
            lines = failure_lines(size_of(stream), message, hint, detail)
            _write(stream, "".join(f"{painted(line)}\n" for line in lines))
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
    def steps(self, *planned: PlannedStep) -> Iterator[None]:
        """Announce steps that come within this block; elsewhere than on a terminal nothing shows.

        Within another such block they come before what that one still awaits.
        """
        with self._drawing():
            self.expect(*planned)
            yield

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        with self._drawing():
            if self._progress is not None:
                step: Step = self._progress.begin(title)
            else:
                step = Step(title, self.clock, self.info)
            outcome = "failed"
            try:
                yield step
                outcome = step.outcome
            except KeyboardInterrupt:
                outcome = "interrupted"
                raise
            finally:
                step.end(outcome)

    def expect(self, *planned: PlannedStep) -> None:
        if self._progress is not None:
            self._progress.expect(planned)

    @contextlib.contextmanager
    def drawn_step(self, title: str) -> Iterator[None]:
        """Show what takes a moment, where it is drawn within a block of steps."""
        with self.step(title) if self._progress is not None else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        """Draw steps within this block, where that is possible and no block around it does."""
        if self._progress is not None or not self.draws:
            yield
            return
        from sparkdeploy.terminal.progress import Progress  # noqa: PLC0415 - rich takes 50 ms

        with Progress(sys.stderr, self.clock, verbose=self.verbose) as progress:
            self._progress = progress
            try:
                yield
            finally:
                self._progress = None

    @property
    def can_ask(self) -> bool:
        return sys.stdin.isatty() and sys.stderr.isatty()

    def confirm(self, question: str) -> bool:
        if not self.can_ask:
            return False
        with self._progress.paused() if self._progress is not None else contextlib.nullcontext():
            sys.stderr.write(f"{visible(question)} [y/N] ")
            sys.stderr.flush()
            reply = sys.stdin.readline()
            if not reply.endswith("\n"):
                sys.stderr.write("\n")
            return reply.strip().lower() in {"y", "yes"}

    def _write(self, text: str) -> None:
        _write(sys.stderr, visible(text) + "\n")


def drop_answer() -> None:
    """Let what is left of an answer go nowhere: Python flushes it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(stream: TextIO, text: str) -> None:
    # A terminal that has gone away is no reason to leave work half done.
    with contextlib.suppress(OSError):
        stream.write(text)
        stream.flush()


def _write_line(stream: TextIO, line: Line) -> None:
    if draws_on(stream):
        # Its text was made visible; its colours are to be obeyed.
        with contextlib.suppress(UnicodeEncodeError):
            beneath(stream).write(painted(line) + "\n")
            stream.flush()
            return
    stream.write(visible(plain_text(line)) + "\n")
    stream.flush()


def failure_lines(
    size: os.terminal_size, message: str, hint: str | None, detail: str | None
) -> list[Line]:
    """Return as much of the long text as leaves the cause to be read, then cause and fix.

    Text that has room is whole. Of a log that has none the ends of long lines are left out, and
    then the earlier lines; a list of mistakes is whole all the same, and may be scrolled back to.
    """
    ending = [line_of(Piece("error: ", Style.BAD), Piece(visible_line(message), Style.STRONG))]
    if hint:
        ending.append(line_of(Piece("  fix: ", Style.GOOD), visible_line(hint)))
    rows = size.lines - BEFORE_FAILURE - sum(-(-line_cells(it) // size.columns) for it in ending)
    lines = [f"  | {line}" for line in visible(detail or "").splitlines() if line.strip()]
    whole = [line_of(line) for line in lines]
    taken = sum(-(-line_cells(line) // size.columns) for line in whole)
    if taken <= rows or isinstance(detail, Mistakes):
        return [*whole, *ending]
    if len(lines) > rows:
        left_out = len(lines) - rows + 1
        note = f"  | ({left_out} earlier lines are left out)"
        lines = [note, *lines[left_out:]] if rows > 1 else []
    cut = (line_of(Piece(clipped(line, size.columns - 1), Style.QUIET)) for line in lines)
    return [*cut, *ending]


console = Console()
