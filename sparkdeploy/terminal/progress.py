"""The steps of a command on a terminal: what ran stays, what runs and is to come is redrawn."""

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self, TextIO, cast

from rich.console import Console as RichConsole
from rich.live import Live
from rich.text import Text

from sparkdeploy.terminal.safe_text import beneath, visible, visible_line
from sparkdeploy.terminal.step import PlannedStep, Step
from sparkdeploy.terminal.style import Line, Piece, Style, line_of, painted
from sparkdeploy.units import in_seconds

REFRESHES_A_SECOND = 4
TITLE_CELLS = 46
BAR_CELLS = 24
MAX_CELLS = 79
"""Of a drawn line: a terminal that is made narrower down to 80 columns wraps none of them."""
MAX_ROWS = 16
MAX_RECENT = 5
LATE_SHARE = 1.25
LATE_S = 3.0
"""A step is late that took a quarter longer than usual, and these seconds."""
SHORT_S = 10.0
_ASCII = str.maketrans("█░✓✗▸·…", "#-+x>..")


class DrawnStep(Step):
    """A step that a terminal shows. Its own stages are steps within it, one after the other."""

    def __init__(self, title: str, progress: "Progress", usual_s: float | None, depth: int) -> None:
        super().__init__(title, progress.clock, lambda _text: None)
        self._progress = progress
        self.usual_s = usual_s
        self.depth = depth
        self.pending: list[PlannedStep] | None = None
        """Its stages that have not begun; None for a step without stages."""
        self._stage: DrawnStep | None = None
        self._words, self._figures = "", ""
        self._share: float | None = None
        self._left_s: float | None = None
        self._places: dict[str, str] = {}
        self._recent: tuple[str, ...] = ()

    @property
    def _innermost(self) -> "DrawnStep":
        return self._stage or self

    def say(self, text: str) -> None:
        self._innermost._words = visible_line(text)

    def guess(self, text: str, left_s: float) -> None:
        """Its stages and their usual times say it."""

    def count(self, done: int, total: int, what: str) -> None:
        self._show_share(done, total, f"{done} of {total} {what}", "", None)

    def _show_share(
        self, done: int, total: int, figures: str, note: str, left_s: float | None
    ) -> None:
        shown = self._innermost
        shown._share = min(max(done / total, 0.0), 1.0) if total else None
        shown._figures, shown._left_s = figures, left_s
        shown._words = visible_line(note) or shown._words

    def stages(self, planned: Sequence[PlannedStep]) -> None:
        self.pending = list(planned)

    def enter(self, title: str) -> None:
        if self._stage is None or self._stage.title != title:
            self._end_stage("done")
            self._stage = self._progress.begin(title)

    def place(self, node: str, text: str) -> None:
        self._places = {**self._places, node: text}

    def recent(self, lines: Iterable[str]) -> None:
        if self._progress.verbose:
            self._innermost._recent = tuple(visible_line(line) for line in lines)[-MAX_RECENT:]

    def end(self, outcome: str) -> None:
        self._end_stage(outcome)
        self._progress.end(self, outcome)

    def _end_stage(self, outcome: str) -> None:
        stage, self._stage = self._stage, None
        if stage is not None:
            self._progress.end(stage, outcome)

    def is_late(self, now_s: float) -> bool:
        usual_s = self.usual_s
        return usual_s is not None and now_s - self.started_s > usual_s * LATE_SHARE + LATE_S

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds left as its bar says, or else as usual; None when nobody knows."""
        if self._left_s is not None or self.usual_s is None:
            return self._left_s
        return max(self.usual_s - (now_s - self.started_s), 0.0)

    def rows(self, now_s: float) -> Iterator[Line]:
        margin = "  " * self.depth
        title = f" {self.title}".ljust(TITLE_CELLS - 2 * self.depth)
        late = f", usually {in_seconds(self.usual_s or 0)}" if self.is_late(now_s) else ""
        elapsed = f"  {in_seconds(now_s - self.started_s)}"
        yield line_of(margin, Piece("▸", Style.STRONG), title, elapsed, Piece(late, Style.CAUTION))
        left = f"{in_seconds(self._left_s)} left" if self._left_s is not None else ""
        figures = ", ".join(filter(None, (self._figures, left)))
        if self._share is not None:
            filled = math.floor(self._share * BAR_CELLS)
            bar = (Piece("█" * filled, Style.GOOD), Piece("░" * (BAR_CELLS - filled), Style.QUIET))
            yield line_of(f"{margin}  ", *bar, f" {math.floor(self._share * 100):>3}%  {figures}")
        elif figures:
            yield line_of(f"{margin}  {figures}")
        if self._words:
            yield line_of(Piece(f"{margin}  {self._words}", Style.QUIET))
        widest = max(map(len, self._places), default=0)
        yield from (line_of(f"{margin}  {it:<{widest}}  {self._places[it]}") for it in self._places)
        yield from (line_of(Piece(f"{margin}  | {it}", Style.QUIET)) for it in self._recent)


class Progress:
    """A block in which a command's steps are drawn; what else is written meanwhile goes above."""

    def __init__(self, stream: TextIO, clock: Callable[[], float], *, verbose: bool) -> None:
        self.clock = clock
        self.verbose = verbose
        self._started_s = clock()
        self._running: list[DrawnStep] = []
        """The outermost first; each stands within the one before it."""
        self._pending: list[PlannedStep] = []
        self._done_count = 0
        self._lock = threading.RLock()
        self._screen = _Screen(
            file=cast("TextIO", _Lasting(beneath(stream))),
            force_terminal=True,
            color_system="standard",
            highlight=False,
        )
        self._live: Live | None = None
        self._streams: tuple[TextIO, TextIO] | None = None

    def __enter__(self) -> Self:
        self._streams = sys.stdout, sys.stderr
        above = (_Above(it, self) if it.isatty() else it for it in self._streams)
        sys.stdout, sys.stderr = cast("tuple[TextIO, TextIO]", tuple(above))
        self._live = Live(
            get_renderable=self._drawn,
            console=self._screen,
            refresh_per_second=REFRESHES_A_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None and self._streams is not None:
            self._live.stop()
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, _Above):
                    stream.end()
            sys.stdout, sys.stderr = self._streams
        self._live = self._streams = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def expect(self, planned: Iterable[PlannedStep]) -> None:
        """Put steps before all others that are to come; a title is announced once."""
        with self._lock:
            first = list(planned)
            titles = {item.title for item in first}
            self._pending = first + [it for it in self._pending if it.title not in titles]

    def begin(self, title: str) -> DrawnStep:
        """Begin a step. Those announced before it were not needed."""
        with self._lock:
            usual_s = None
            for planned in (*(it.pending or [] for it in reversed(self._running)), self._pending):
                titles = [item.title for item in planned]
                if title in titles:
                    usual_s = planned[titles.index(title)].usual_s
                    del planned[: titles.index(title) + 1]
                    break
            self._running.append(DrawnStep(title, self, usual_s, len(self._running)))
            return self._running[-1]

    def end(self, step: DrawnStep, outcome: str) -> None:
        """End a step, with all that runs within it, and leave a line of how it ended."""
        with self._lock:
            if step in self._running:
                del self._running[self._running.index(step) :]
                self._done_count += not step.depth
        took_s = self.clock() - step.started_s
        took = f"{took_s:.1f}s" if took_s < SHORT_S else in_seconds(took_s)
        sign = Piece("✓", Style.GOOD) if outcome == "done" else Piece("✗", Style.BAD)
        time = took if outcome == "done" else f"{outcome} after {took}"
        title = f" {step.title}".ljust(TITLE_CELLS)
        self.leave(line_of(sign, title, Piece(f"  {time}", Style.QUIET)))

    def leave(self, line: Line) -> None:
        """Write a line above the steps, where it stays; the terminal wraps it, and nothing cuts."""
        self._screen.print(Text.from_ansi(self._shown(painted(line))), soft_wrap=True)

    def lines(self, now_s: float, height: int) -> list[Line]:
        """Return what is drawn now, the sum last: never as many rows as the screen has."""
        with self._lock:
            most = max(min(MAX_ROWS, height - 1) - 1, 1)
            rows = [row for step in self._running for row in step.rows(now_s)]
            # What runs innermost is what one waits for.
            rows = rows[-most:]
            for step in reversed(self._running):
                rows += (_planned_line(it, step.depth + 1) for it in step.pending or ())
            rows += (_planned_line(item, 0) for item in self._pending)
            return [*rows[:most], self._sum(now_s)]

    def _sum(self, now_s: float) -> Line:
        words = [f"{self._done_count} done"] if self._done_count else []
        if self._pending:
            words.append(f"{len(self._pending)} to come")
        words.append(f"{in_seconds(now_s - self._started_s)} so far")
        if left_s := self._left_s(now_s):
            words.append(f"about {in_seconds(left_s)} left")
        is_late = any(step.is_late(now_s) for step in self._running)
        late = Piece(", longer than usual" if is_late else "", Style.CAUTION)
        return (Piece("  " + ", ".join(words), Style.QUIET), late)

    def _left_s(self, now_s: float) -> float | None:
        """Return the seconds left of everything; None as long as one step's are unknown."""
        parts = [item.usual_s for item in self._pending]
        for step in self._running:
            if step.pending is None:
                parts.append(step.left_s(now_s))
            else:
                parts += [item.usual_s for item in step.pending]
        return None if None in parts else sum(part for part in parts if part is not None)

    def _drawn(self) -> Text:
        size = self._screen.size
        width = min(size.width - 1, MAX_CELLS)
        lines = (painted(line, width) for line in self.lines(self.clock(), size.height))
        return Text.from_ansi(self._shown("\n".join(lines)), no_wrap=True)

    def _shown(self, text: str) -> str:
        return text.translate(_ASCII) if self._screen.options.ascii_only else text


def _planned_line(item: PlannedStep, depth: int) -> Line:
    title = f"{'  ' * depth}· {item.title}"
    if item.usual_s is None:
        return line_of(Piece(title, Style.QUIET))
    usual = in_seconds(max(round(item.usual_s), 1))
    return line_of(Piece(f"{title:<{TITLE_CELLS + 1}}  {usual}", Style.QUIET))


class _Screen(RichConsole):
    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002 - rich's own
        """Leave it visible: a process that is killed leaves the terminal as it was."""
        return False


class _Around:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class _Lasting(_Around):
    """A terminal's stream: one that has gone away is no reason to leave work half done."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class _Above(_Around):
    """A stream of the terminal: lines that are written to it go above the steps."""

    def __init__(self, stream: TextIO, progress: Progress) -> None:
        super().__init__(stream)
        self._progress = progress
        self._rest = ""

    def write(self, text: str) -> int:
        """Write the lines that are whole; the rest waits for its end."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._progress.leave(line_of(visible(line)))
        return len(text)

    def end(self) -> None:
        """Write what has no end of line yet: nothing stands below it any more."""
        if self._rest:
            self._stream.write(self._rest)
            self._stream.flush()
