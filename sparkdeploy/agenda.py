"""The steps of a command: those that run, those to come, and the lines that show them.

Nothing here draws, and the time is always told from outside.
"""

from __future__ import annotations

import contextlib
import math
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sparkdeploy.ink import Ink, Line, Piece, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

REFRESH_EVERY_S = 1.0
"""Figures and words that change more often than this cannot be read; the bar may."""
TITLE_CELLS = 46
"""Where the times of steps stand."""
BAR_CELLS = 24
SHOWN_RECENT = 5
"""Lines of what a running step said last, under `-v`."""
LATE_SHARE = 1.25
LATE_S = 3.0
"""A step is late that took a quarter longer than usual, and these seconds."""
SHARE_OF_SCREEN = 2 / 3
MOST_ROWS = 16
"""What the picture takes at most: a terminal that is made lower pushes rows into its scroll-back,
where nobody can take them back."""
LEAST_ROWS = 3


@dataclass(frozen=True, slots=True)
class Awaited:
    """A step to come, and how long it usually takes; None where no earlier one tells."""

    title: str
    usual_s: float | None = None


@dataclass(frozen=True, slots=True)
class News:
    """What a running step says of itself."""

    said: str = ""
    figures: str = ""
    """How much is done of how much, and how fast."""
    share: float | None = None
    """How far it is, from 0 to 1; None where nobody knows."""
    left_s: float | None = None
    places: tuple[tuple[str, str], ...] = ()
    """A line for each node: its name and how it is."""
    recent: tuple[str, ...] = ()


@dataclass(slots=True)
class Doing:
    """A step that runs. Its own stages are steps within it, one after the other."""

    title: str
    started_s: float
    usual_s: float | None = None
    news: News = field(default_factory=News)
    shown: News = field(default_factory=News)
    """The news of the last refresh."""
    to_come: list[Awaited] = field(default_factory=list)
    """Its stages that have not begun."""
    has_stages: bool = False
    depth: int = 0

    def tell(self, **changes: object) -> None:
        self.news = replace(self.news, **changes)  # type: ignore[arg-type]

    def place(self, name: str, text: str) -> None:
        self.tell(places=tuple({**dict(self.news.places), name: text}.items()))

    def is_late(self, now_s: float) -> bool:
        usual_s = self.usual_s
        return usual_s is not None and now_s - self.started_s > usual_s * LATE_SHARE + LATE_S

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds left as its bar tells, or else as usual; None when nobody knows."""
        if self.shown.left_s is not None:
            return self.shown.left_s
        if self.usual_s is None:
            return None
        return max(self.usual_s - (now_s - self.started_s), 0.0)


@dataclass(slots=True)
class Agenda:
    """The steps of one command. Any thread may begin, end and look."""

    started_s: float
    running: list[Doing] = field(default_factory=list)
    """The outermost first; each stands within the one before it."""
    to_come: list[Awaited] = field(default_factory=list)
    done_count: int = 0
    _texts_s: float = field(default=-math.inf, init=False)
    """When the words and figures on the screen were taken."""
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)

    def expect(self, awaited: Iterable[Awaited]) -> None:
        """Put steps before all others that are to come; a title is announced once."""
        with self._lock:
            first = list(awaited)
            titles = {item.title for item in first}
            self.to_come = first + [item for item in self.to_come if item.title not in titles]

    def begin(self, title: str, now_s: float) -> Doing:
        """Begin a step. Those announced before it were not needed."""
        with self._lock:
            awaited = [*(it.to_come for it in reversed(self.running)), self.to_come]
            usual_s = next((_take(it, title) for it in awaited if _has(it, title)), None)
            doing = Doing(title, now_s, usual_s, depth=len(self.running))
            self.running.append(doing)
            self._texts_s = -math.inf
            return doing

    def end(self, doing: Doing) -> None:
        """End a step, with all that runs within it."""
        with self._lock:
            if doing in self.running:
                del self.running[self.running.index(doing) :]
                self.done_count += not doing.depth
            self._texts_s = -math.inf

    def lines(self, now_s: float, height: int) -> list[Line]:
        """Return what is shown now: never as many rows as the screen has."""
        with self._lock:
            self._refresh(now_s)
            now_s = self._texts_s
            most = max(min(round(height * SHARE_OF_SCREEN), MOST_ROWS), LEAST_ROWS)
            most = min(most, height - 1)
            total = [self._total(now_s)] if self.running or self.to_come else []
            rows = _cut_rows([_rows(doing, now_s) for doing in self.running], most - len(total))
            ahead = _ahead(self._ahead(), most - len(rows) - len(total))
            return [*rows, *ahead, *total][: max(most, 0)]

    def _refresh(self, now_s: float) -> None:
        has_first = any(it.shown.share is None and it.news.share is not None for it in self.running)
        if now_s - self._texts_s < REFRESH_EVERY_S and not has_first:
            return
        self._texts_s = now_s
        for doing in self.running:
            doing.shown = doing.news

    def _ahead(self) -> list[tuple[int, Awaited]]:
        inner = [(it.depth + 1, item) for it in reversed(self.running) for item in it.to_come]
        return [*inner, *((0, item) for item in self.to_come)]

    def _total(self, now_s: float) -> Line:
        counted = [f"{self.done_count} done"] if self.done_count else []
        if self.to_come:
            counted.append(f"{len(self.to_come)} to come")
        left_s = self.left_s(now_s)
        words = [*counted, f"{in_seconds(now_s - self.started_s)} so far"]
        if left_s:
            words.append(f"about {in_seconds(left_s)} left")
        text = Piece("  " + ", ".join(words), Ink.QUIET)
        if any(doing.is_late(now_s) for doing in self.running):
            return (text, Piece(", longer than usual", Ink.CAUTION))
        return (text,)

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds left of everything; None as long as one step's are unknown."""
        parts = [item.usual_s for item in self.to_come]
        for doing in self.running:
            if doing.has_stages:
                parts += [item.usual_s for item in doing.to_come]
            else:
                parts.append(doing.left_s(now_s))
        return None if None in parts else sum(part for part in parts if part is not None)


@contextlib.contextmanager
def ending(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell how what runs within ended: `done`, `interrupted` or `failed`."""
    outcome = "failed"
    try:
        yield
        outcome = "done"
    except KeyboardInterrupt:
        outcome = "interrupted"
        raise
    finally:
        tell(outcome)


def ended_line(doing: Doing, outcome: str, duration: str) -> Line:
    """Return the line that stays of a step when it has ended."""
    sign, ink = {"done": ("✓", Ink.GOOD)}.get(outcome, ("✗", Ink.BAD))
    title = f" {doing.title}".ljust(TITLE_CELLS)
    time = duration if outcome == "done" else f"{outcome} after {duration}"
    return line_of(Piece(sign, ink), title, Piece(f"  {time}", Ink.QUIET))


def in_seconds(duration_s: float) -> str:
    """Return a duration without fractions, which could not be read: `4s`, `12m03s`, `1h04m`."""
    minutes, seconds = divmod(math.floor(duration_s), 60)
    if minutes < 1:
        return f"{seconds}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds:02d}s"


def _has(awaited: list[Awaited], title: str) -> bool:
    return any(item.title == title for item in awaited)


def _take(awaited: list[Awaited], title: str) -> float | None:
    """Take a step out of a list, with those before it; return what it usually takes."""
    index = [item.title for item in awaited].index(title)
    usual_s = awaited[index].usual_s
    del awaited[: index + 1]
    return usual_s


def _rows(doing: Doing, now_s: float) -> list[Line]:
    """Return a running step's rows, the most important first."""
    shown, margin = doing.shown, "  " * doing.depth
    title = f" {doing.title}".ljust(TITLE_CELLS - 2 * doing.depth)
    elapsed = f"  {in_seconds(now_s - doing.started_s)}"
    late = f", usually {in_seconds(doing.usual_s or 0)}" if doing.is_late(now_s) else ""
    first = line_of(f"{margin}", Piece("▸", Ink.STRONG), title, elapsed, Piece(late, Ink.CAUTION))
    rows = [first]
    left = f"{in_seconds(shown.left_s)} left" if shown.left_s is not None else ""
    figures = ", ".join(filter(None, (shown.figures, left)))
    if shown.share is not None and doing.news.share is not None:
        percent = f" {math.floor(min(shown.share, 1.0) * 100):>3}%"
        rows.append(line_of(f"{margin}  ", *_bar(doing.news.share), f"{percent}  {figures}"))
    elif figures:
        rows.append(line_of(f"{margin}  {figures}"))
    if shown.said:
        rows.append(line_of(f"{margin}  ", Piece(shown.said, Ink.QUIET)))
    widest = max((len(name) for name, _ in shown.places), default=0)
    rows += [line_of(f"{margin}  {name:<{widest}}  {text}") for name, text in shown.places]
    recent = shown.recent[-SHOWN_RECENT:]
    return [*rows, *(line_of(Piece(f"{margin}  | {text}", Ink.QUIET)) for text in recent)]


def _bar(share: float) -> tuple[Piece, ...]:
    share = min(max(share, 0.0), 1.0)
    filled = math.floor(share * BAR_CELLS)
    return (
        Piece("█" * filled, Ink.GOOD),
        Piece("░" * (BAR_CELLS - filled), Ink.QUIET),
    )


def _cut_rows(steps: list[list[Line]], most: int) -> list[Line]:
    """Return the rows of all steps; where there are too many, each keeps its first ones."""
    longest = max((len(rows) for rows in steps), default=0)
    while sum(min(len(rows), longest) for rows in steps) > most and longest > 1:
        longest -= 1
    kept = [line for rows in steps for line in rows[:longest]]
    # What runs innermost is what one waits for.
    return kept[len(kept) - most :] if len(kept) > most > 0 else kept[: max(most, 0)]


def _ahead(awaited: list[tuple[int, Awaited]], most: int) -> list[Line]:
    lines = [_ahead_line(depth, item) for depth, item in awaited]
    if len(lines) <= most:
        return lines
    if most < 1:
        return []
    rest = len(lines) - most + 1
    return [*lines[: most - 1], line_of(Piece(f"  and {rest} more", Ink.QUIET))]


def _ahead_line(depth: int, item: Awaited) -> Line:
    title = f"{'  ' * depth}· {item.title}"
    if item.usual_s is None:
        return line_of(Piece(title, Ink.QUIET))
    usual = in_seconds(max(round(item.usual_s), 1))
    return line_of(Piece(f"{title:<{TITLE_CELLS + 1}}  {usual}", Ink.QUIET))
