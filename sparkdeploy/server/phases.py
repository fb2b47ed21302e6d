"""The phases of a vLLM start, read from its log as it streams, and how long they took."""

import contextlib
import json
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparkdeploy import yaml_text
from sparkdeploy.atomic_files import write_private
from sparkdeploy.plan.steps import Plan
from sparkdeploy.server.facts import EngineFacts, read_facts
from sparkdeploy.server.log_lines import LineSplitter, guard_report, message_of
from sparkdeploy.stored_json import read_json
from sparkdeploy.units import format_seconds


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a start: a row of phases.yaml, which says what each field means."""

    name: str
    title: str
    spark_s: float
    tiny_s: float = 0.0
    begins: Sequence[str] = ()
    bar: str = ""
    unit: str = ""


PHASES = tuple(Phase(**row) for row in yaml_text.load_file(Path(__file__).with_name("phases.yaml")))
SPARK_COLD_START_S: Mapping[str, float] = {phase.name: phase.spark_s for phase in PHASES}
TINY_MODEL_START_S: Mapping[str, float] = {it.name: it.tiny_s for it in PHASES if it.tiny_s}
SPARK_FILES_BYTES = 72.4e9
"""Of v2, whose start was reported."""
_INDEX = {phase.name: index for index, phase in enumerate(PHASES)}
_MARKERS = {it.name: re.compile("|".join(it.begins)) for it in PHASES if it.begins}
_BARS = {phase.name: phase.bar for phase in PHASES if phase.bar}
_COUNTED = re.compile(r"\|\s*(\d{1,6})/(\d{1,6}) \[")
RECENT_LINES = 5
NOT_KNOWN = "not known here, for it was not started on this machine yet"


@dataclass(slots=True)
class PhaseTracker:
    """Follows a start from raw log bytes, split anywhere; memory stays bounded."""

    typical_s: Mapping[str, float] = field(default_factory=lambda: SPARK_COLD_START_S)
    facts: EngineFacts = field(default_factory=EngineFacts, init=False)
    percent: int | None = field(default=None, init=False)
    count: tuple[int, int] | None = field(default=None, init=False)
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT_LINES), init=False)
    weight_loads: int = field(default=0, init=False)
    restarts: int = field(default=0, init=False)
    visits: list[tuple[Phase, float]] = field(default_factory=list, init=False)
    _splitter: LineSplitter = field(default_factory=LineSplitter, init=False)

    def __post_init__(self) -> None:
        self._restart(0.0)

    @property
    def phase(self) -> Phase:
        return self.visits[-1][0]

    def feed(self, chunk: bytes, at_s: float = 0.0) -> None:
        """Read on; progress bars count before their line has ended."""
        for text in self._splitter.feed(chunk):
            self._read(text, at_s)
        self._read_percent(self._splitter.unfinished(), at_s)

    def durations_s(self, now_s: float) -> dict[str, float]:
        ends = [began_s for _, began_s in self.visits[1:]] + [now_s]
        return {
            phase.name: max(end_s - began_s, 0.0)
            for (phase, began_s), end_s in zip(self.visits, ends, strict=True)
        }

    def remaining_s(self, now_s: float) -> float:
        """Estimate the seconds left: what is left of this phase and all of the later ones."""
        index = _INDEX[self.phase.name]
        later_s = sum(self.typical_s.get(phase.name, 0.0) for phase in PHASES[index + 1 :])
        spent_s = now_s - self.visits[-1][1]
        if self.percent:
            return later_s + spent_s * (100 - self.percent) / self.percent
        return later_s + max(self.typical_s.get(self.phase.name, 0.0) - spent_s, 0.0)

    def describe(self) -> str:
        percent = "" if self.percent is None else f" {self.percent}%"
        return self.phase.title + percent

    def _read(self, text: str, at_s: float) -> None:
        if guard_report(text).get("event") == "restart":
            self.restarts += 1
            self._restart(at_s)
            return
        self.recent.append(message_of(text))
        self.facts = read_facts(text, self.facts)
        if "Loading weights took" in text:
            self.weight_loads += 1
        self._read_percent(text, at_s)
        for name, pattern in _MARKERS.items():
            if pattern.search(text):
                self._enter(name, at_s)

    def _read_percent(self, text: str, at_s: float) -> None:
        for name, bar in _BARS.items():
            if match := re.search(bar, text):
                self._enter(name, at_s)
                if self.phase.name in {name, "draft"}:
                    self.percent = min(int(match[1]), 100)
                    done = _COUNTED.search(text)
                    self.count = (int(done[1]), int(done[2])) if done else None

    def _enter(self, name: str, at_s: float) -> None:
        if name == "weights" and self.weight_loads:
            name = "draft"  # what is loaded after the model's weights are the draft model's
        if _INDEX[name] > _INDEX[self.phase.name]:
            self.visits.append((PHASES[_INDEX[name]], at_s))
            self.percent = self.count = None

    def _restart(self, at_s: float) -> None:
        self.visits = [(PHASES[0], at_s)]
        self.percent = self.count = None
        self.weight_loads = 0
        self.facts = EngineFacts()


def read_whole(log: Iterable[bytes]) -> PhaseTracker:
    tracker = PhaseTracker()
    for chunk in log:
        tracker.feed(chunk)
    tracker.feed(b"\n")
    return tracker


def start_words(plan: Plan, state_dir: Path) -> str:
    """Say how long images and a start take that a plan begins."""
    image = any(step.action.is_work for step in plan.images)
    made = "the image in up to half an hour; " if image else ""
    seconds, is_measured = start_s(plan, state_dir)
    if seconds is None or is_measured:
        return f"{made}{expected_start(state_dir, plan.timing_key)}"
    is_v2 = round((plan.head.needs.weights_bytes or 0) / SPARK_FILES_BYTES, 2) == 1
    reported = format_seconds(sum(SPARK_COLD_START_S.values()))
    origin = "as others saw of v2" if is_v2 else f"v2's {reported}, by its weights"
    return f"{made}about {format_seconds(seconds)} until it answers on a Spark ({origin})"


def start_s(plan: Plan, state_dir: Path) -> tuple[float | None, bool]:
    """Return how long a start takes, and whether one was measured here; a Spark's by its bytes."""
    known_s, _ = _known_start(state_dir, plan.timing_key)
    weights_bytes = plan.head.needs.weights_bytes
    if known_s is not None or weights_bytes is None or plan.resolved.engine.runs_on == "cpu":
        return known_s, known_s is not None
    share = weights_bytes / SPARK_FILES_BYTES
    phases_s = SPARK_COLD_START_S.items()
    return sum(it * share if name == "weights" else it for name, it in phases_s), False


def load_durations(state_dir: Path, key: str) -> Mapping[str, float]:
    return _read_durations(_durations_file(state_dir, key))


def last_start_s(state_dir: Path, key: str) -> float | None:
    return sum(load_durations(state_dir, key).values()) or None


def expected_start(state_dir: Path, key: str) -> str:
    """Say how long such a start takes, and how that is known."""
    took_s, how = _known_start(state_dir, key)
    return NOT_KNOWN if took_s is None else f"about {format_seconds(took_s)}, as {how} took"


def _known_start(state_dir: Path, key: str) -> tuple[float | None, str]:
    """Return what such a start took here, or one of the recipe on another image, and which."""
    if (took_s := last_start_s(state_dir, key)) is not None:
        return took_s, "its last start here"
    return _similar_start_s(state_dir, key), "an earlier start of it here"


def _similar_start_s(state_dir: Path, key: str) -> float | None:
    """Return the seconds of the newest start of the same recipe on another image; None for none."""
    recipe = re.sub(r"[^\w.-]", "_", key.partition(" ")[2])
    files = [
        path
        for path in (state_dir / "starts").glob("*.json")
        if re.fullmatch(rf".+_[0-9a-f]+_{re.escape(recipe)}\.json", path.name)
    ]
    newest_first = sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)
    return next(filter(None, (sum(_read_durations(it).values()) for it in newest_first)), None)


def save_durations(state_dir: Path, key: str, phases_s: Mapping[str, float]) -> None:
    """Keep what a successful start took; `key` names image, recipe and hardware."""
    rounded = {name: round(value, 2) for name, value in phases_s.items()}
    # A full disk costs the next start its estimate, and this one nothing.
    with contextlib.suppress(OSError):
        write_private(_durations_file(state_dir, key), json.dumps(rounded))


def _read_durations(path: Path) -> dict[str, float]:
    try:
        return {str(name): float(took_s) for name, took_s in read_json(path).items()}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError):
        return {}


def _durations_file(state_dir: Path, key: str) -> Path:
    return state_dir / "starts" / (re.sub(r"[^\w.-]", "_", key)[:200] + ".json")
