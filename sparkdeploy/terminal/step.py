"""A step of a command while it runs, and the plain lines that tell of it without a terminal."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sparkdeploy.units import format_bytes, format_seconds

PLAIN_UPDATE_EVERY_S = 10.0
"""A step of a plain log says at most this often what it does."""
RATE_WINDOW_S = 20.0
"""What was done longer ago than this says nothing of how fast it goes now."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step to come, and how long it usually takes; None where no earlier one is known."""

    title: str
    usual_s: float | None = None


class Step:
    """A step that runs, by a plain line now and then; what only a terminal shows is ignored."""

    def __init__(
        self, title: str, clock: Callable[[], float], write: Callable[[str], None]
    ) -> None:
        self.title = title
        self.started_s = clock()
        self.outcome = "done"
        """Of a step that nothing was raised in: some end early and keep what they have."""
        self._clock = clock
        self._write = write
        # Short steps need no middle.
        self._written_s = self.started_s
        self._seen: deque[tuple[float, int]] = deque()

    def say(self, text: str) -> None:
        now_s = self._clock()
        if now_s - self._written_s >= PLAIN_UPDATE_EVERY_S:
            self._written_s = now_s
            self._write(f"  {self.title}: {text} [{format_seconds(now_s - self.started_s)}]")

    def guess(self, text: str, left_s: float) -> None:
        """Say what is done now and how long it may take, where no stages of it are drawn."""
        self.say(f"{text}, about {format_seconds(left_s)} left")

    def progress(self, done_bytes: int, total_bytes: int, note: str = "") -> None:
        """Show bytes done, bytes in all, the present rate, and the time that is left at it.

        `note` goes before them. What was done before the first call, such as by an earlier try,
        counts for no rate.
        """
        figures = f"{format_bytes(done_bytes)} of {format_bytes(total_bytes)}"
        left_s = None
        if bytes_per_s := self._rate(done_bytes):
            figures += f", {format_bytes(bytes_per_s)}/s"
            left_s = max(total_bytes - done_bytes, 0) / bytes_per_s
        self._show_share(done_bytes, total_bytes, figures, note, left_s)

    def _rate(self, done_bytes: int) -> float:
        now_s = self._clock()
        self._seen.append((now_s, done_bytes))
        while now_s - self._seen[0][0] > RATE_WINDOW_S and len(self._seen) > 2:
            self._seen.popleft()
        since_s, since_bytes = self._seen[0]
        return (done_bytes - since_bytes) / (now_s - since_s) if now_s > since_s else 0.0

    def _show_share(
        self, _done: int, _total: int, figures: str, note: str, left_s: float | None
    ) -> None:
        left = format_seconds(left_s) if left_s is not None else "?"
        self.say(f"{f'{note}, ' if note else ''}{figures}, {left} left")

    def count(self, done: int, total: int, what: str) -> None:
        """Draw how many of how many are done, such as `graphs`."""

    def stages(self, planned: Sequence[PlannedStep]) -> None:
        """Draw what this step is going to do, one after the other."""

    def enter(self, title: str) -> None:
        """Draw the stage that it has come to; the one before it is done."""

    def place(self, node: str, text: str) -> None:
        """Draw how one of several nodes is."""

    def recent(self, lines: Iterable[str]) -> None:
        """Draw what was said last, of which `-v` shows some lines."""

    def end(self, outcome: str) -> None:
        took = format_seconds(self._clock() - self.started_s)
        self._write(f"{self.title}: {outcome} ({took})")
