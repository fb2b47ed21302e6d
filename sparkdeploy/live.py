"""What the console shows on a terminal that draws: steps as they go, and failures to read."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TextIO

from sparkdeploy.agenda import Agenda, Awaited, Doing, ended_line, ending, in_seconds
from sparkdeploy.errors import Mistakes
from sparkdeploy.ink import Ink, Line, Piece, line_of
from sparkdeploy.paper import cells_of, painted
from sparkdeploy.picture import UNENDING, Picture, rows_taken, size_of, terminal_beneath
from sparkdeploy.terminal import visible, visible_line
from sparkdeploy.wrap import clipped

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

SHORT_S = 10.0
"""Below this a fraction of a second says something."""
BEFORE_FAILURE = 3
"""Rows above a failure that stay on the screen: what ran, and the shell's next prompt."""


@dataclass(slots=True)
class LiveWork:
    """One picture of one agenda."""

    agenda: Agenda
    picture: Picture
    clock: Callable[[], float]
    verbose: bool

    @classmethod
    @contextlib.contextmanager
    def on(cls, stream: TextIO, clock: Callable[[], float], *, verbose: bool) -> Iterator[Self]:
        agenda = Agenda(clock())

        def compose(size: os.terminal_size) -> list[Line]:
            return agenda.lines(clock(), size.lines)

        with Picture(terminal_beneath(stream), compose) as picture:
            yield cls(agenda, picture, clock, verbose)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[LiveStep]:
        step = LiveStep(self, self.agenda.begin(title, self.clock()))
        self.picture.draw()

        def end(outcome: str) -> None:
            step.end_stage(outcome)
            self.end(step.doing, outcome)

        with ending(end):
            yield step

    def end(self, doing: Doing, outcome: str) -> None:
        self.agenda.end(doing)
        took_s = self.clock() - doing.started_s
        duration = f"{took_s:.1f}s" if took_s < SHORT_S else in_seconds(took_s)
        self.picture.leave(ended_line(doing, outcome, duration))


@dataclass(slots=True)
class LiveStep:
    """One step of it, and the stage that it has come to."""

    work: LiveWork
    doing: Doing
    _stage: Doing | None = field(default=None, init=False)

    @property
    def _innermost(self) -> Doing:
        return self._stage or self.doing

    def say(self, text: str) -> None:
        self._innermost.tell(said=visible_line(text))

    def count(
        self, done: int, total: int, figures: str, said: str = "", left_s: float | None = None
    ) -> None:
        doing = self._innermost
        share = done / total if total else None
        said = said or doing.news.said
        doing.tell(share=share, figures=figures, said=said, left_s=left_s)

    def expect(self, awaited: Iterable[Awaited]) -> None:
        self.doing.to_come, self.doing.has_stages = list(awaited), True

    def enter(self, title: str) -> None:
        if self._stage is not None and self._stage.title == title:
            return
        self.end_stage("done")
        self._stage = self.work.agenda.begin(title, self.work.clock())

    def end_stage(self, outcome: str) -> None:
        stage, self._stage = self._stage, None
        if stage is not None:
            self.work.end(stage, outcome)

    def place(self, node: str, text: str) -> None:
        self.doing.place(node, text)

    def recent(self, lines: Iterable[str]) -> None:
        if self.work.verbose:
            self._innermost.tell(recent=tuple(visible_line(line) for line in lines))


def show_failure(stream: TextIO, message: str, hint: str | None, detail: str | None) -> None:
    """Write a failure to a terminal: cause and fix last, and above them what there is room for."""
    terminal = terminal_beneath(stream)
    size = size_of(terminal)
    text = "".join(
        painted(line, UNENDING) + "\n" for line in failure_lines(size, message, hint, detail)
    )
    with contextlib.suppress(OSError):
        terminal.write(text)
        terminal.flush()


def failure_lines(
    size: os.terminal_size, message: str, hint: str | None, detail: str | None
) -> list[Line]:
    """Return as much of the long text as leaves the cause to be read, then cause and fix.

    Text that has room is whole. Of a log that has none the ends of long lines are left out, and
    then the earlier lines; a list of mistakes is whole all the same, and may be scrolled back to.
    """
    ending = [line_of(Piece("error: ", Ink.BAD), Piece(visible_line(message), Ink.STRONG))]
    if hint:
        ending.append(line_of(Piece("  fix: ", Ink.GOOD), visible_line(hint)))
    taken = rows_taken((cells_of(line, UNENDING) for line in ending), size.columns)
    room = size.lines - taken - BEFORE_FAILURE
    said = [line for line in visible(detail or "").splitlines() if line.strip()]
    whole = [line_of(f"  | {line}") for line in said]
    rows = rows_taken((cells_of(line, UNENDING) for line in whole), size.columns)
    if rows <= room or isinstance(detail, Mistakes):
        return [*whole, *ending]
    if len(said) > room:
        left_out = len(said) - room + 1
        note = f"({left_out} earlier lines are left out)"
        said = [note, *said[left_out:]] if room > 1 else []
    return [*(_cut(f"  | {line}", size.columns - 1) for line in said), *ending]


def _cut(text: str, width: int) -> Line:
    """A line of a log that is longer than the row says its important things at the beginning."""
    return line_of(Piece(clipped(text, width), Ink.QUIET))
