"""What a served model says and finds: its quality, needles, and tool calls."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import __version__
from sparkdeploy.bench.endpoint import reach
from sparkdeploy.bench.quality import needle, tool_calls
from sparkdeploy.bench.quality.capture import (
    TOP_COUNT,
    Capture,
    first_texts,
    read_capture,
    take_texts,
)
from sparkdeploy.bench.quality.comparison import served_of
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.bench.endpoint import Access
    from sparkdeploy.settings import Settings


def capture_of(
    side: str, *, count: int, tokens: int, settings: Settings, access: Access
) -> Capture:
    """Return what a side says: a saved capture is read, a deployment or an address is asked."""
    # A deployment's name has neither a slash nor this ending.
    if "://" not in side and (side.endswith(".json") or "/" in side):
        saved = read_capture(Path(side))
        return replace(saved, label=f"{Path(side).stem} ({saved.label})")
    found = reach(side, settings, access)
    with found.opened() as model, console.step(f"quality of {found.label}") as step:
        texts = take_texts(
            model,
            first_texts(count),
            tokens=tokens,
            on_progress=lambda done, total: step.say(f"text {done + 1} of {total}"),
        )
        return Capture(
            label=found.label,
            model=model.name,
            taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
            sparkdeploy=__version__,
            top_count=TOP_COUNT,
            max_tokens=tokens,
            texts=texts,
            served=served_of(found.origin.recipe, url=model.base_url, model=model.name),
        )


def search_needles(
    side: str, lengths: Sequence[int], settings: Settings, access: Access
) -> tuple[needle.NeedleResult, ...]:
    found = reach(side, settings, access)
    with found.opened() as model, console.step(f"needles in {found.label}") as step:
        fitting = needle.fitting(lengths, found.max_model_len)
        return tuple(needle.search(model, fitting, on_progress=step.say))


def try_tools(side: str, settings: Settings, access: Access) -> tuple[tool_calls.CaseResult, ...]:
    found = reach(side, settings, access)
    with found.opened() as model, console.step(f"tool calls of {found.label}") as step:
        return tuple(tool_calls.run_cases(model, on_progress=step.say))
