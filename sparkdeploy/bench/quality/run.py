"""What a served model says and finds: its quality, needles, tool calls, routes without text."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.bench.endpoint import Access, served_side
from sparkdeploy.bench.files import read_all
from sparkdeploy.bench.quality import needle, tool_calls
from sparkdeploy.bench.quality.capture import first_texts, read_capture, take_capture
from sparkdeploy.bench.quality.kept import FOLDER, judged, keep, read_result, served_of
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.bench.quality.capture import Capture
    from sparkdeploy.bench.quality.comparison import QualityComparison, Thresholds
    from sparkdeploy.bench.quality.kept import QualityResult
    from sparkdeploy.settings import Settings


def capture_of(
    side: str, *, count: int, tokens: int, settings: Settings, access: Access
) -> Capture:
    """Return what a side says: a saved capture is read, a deployment or an address is asked."""
    # A deployment's name has neither a slash nor this ending.
    if "://" not in side and (side.endswith(".json") or "/" in side):
        saved = read_capture(Path(side))
        return replace(saved, label=f"{Path(side).stem} ({saved.label})")
    found = served_side(side, settings, access)
    label = found.label
    with found.model as model, console.step(f"quality of {label}") as step:
        taken = take_capture(
            model,
            first_texts(count),
            tokens=tokens,
            label=label,
            now=datetime.now(UTC),
            on_progress=lambda done, total: step.say(f"text {done + 1} of {total}"),
        )
        served = served_of(found.recipe, url=model.base_url, model=model.name)
        return replace(taken, served=served)


def keep_quality(
    first: Capture,
    second: Capture,
    comparison: QualityComparison,
    thresholds: Thresholds,
    settings: Settings,
) -> None:
    """Keep the result for reports; BenchError when it cannot be written.

    Captures of earlier versions do not say of what they were taken, and that is told.
    """
    if first.served is None or second.served is None:
        console.info("not kept for reports: a capture of an earlier version names no recipe")
        return
    taken_at = max(first.taken_at, second.taken_at)
    result = judged(comparison.figures, (first.served, second.served), taken_at, thresholds)
    path = keep(result, settings.state_dir / "bench" / FOLDER)
    console.detail(f"kept for reports in {path}")


def kept_quality(settings: Settings) -> tuple[QualityResult, ...]:
    """Return every result; a damaged one is named and left out."""
    found, damaged = read_all(settings.state_dir / "bench" / FOLDER, read_result)
    for message in damaged:
        console.warn(message)
    return tuple(found)


def search_needles(
    side: str, lengths: Sequence[int], settings: Settings, access: Access
) -> tuple[needle.NeedleResult, ...]:
    found = served_side(side, settings, access)
    label = found.label
    with found.model as model, console.step(f"needles in {label}") as step:
        fitting = needle.fitting(lengths, model.max_model_len())
        return tuple(needle.search(model, fitting, on_progress=step.say))


def try_tools(side: str, settings: Settings, access: Access) -> tuple[tool_calls.CaseResult, ...]:
    found = served_side(side, settings, access)
    label = found.label
    with found.model as model, console.step(f"tool calls of {label}") as step:
        return tuple(tool_calls.run_cases(model, on_progress=step.say))
