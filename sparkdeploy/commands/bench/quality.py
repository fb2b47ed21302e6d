"""What a served model says and finds: its quality, needles, tool calls, routes without text."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.bench.pooling import PoolingFigures, measure_pooling
from sparkdeploy.bench.quality import needle, tool_calls
from sparkdeploy.bench.quality.capture import first_texts, read_capture, take_capture
from sparkdeploy.commands.bench.endpoint import Access, served_side
from sparkdeploy.console import console
from sparkdeploy.errors import BenchError
from sparkdeploy.server.client import ServedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.bench.quality.capture import Capture
    from sparkdeploy.settings import Settings


def capture_of(
    side: str, *, count: int, tokens: int, settings: Settings, access: Access
) -> Capture:
    """Return what a side says: a saved capture is read, a deployment or an address is asked."""
    # A deployment's name has neither a slash nor this ending.
    if "://" not in side and (side.endswith(".json") or "/" in side):
        saved = read_capture(Path(side))
        return replace(saved, label=f"{Path(side).stem} ({saved.label})")
    model, label = served_side(side, settings, access)
    with model, console.step(f"quality of {label}") as step:
        return take_capture(
            model,
            first_texts(count),
            tokens=tokens,
            label=label,
            now=datetime.now(UTC),
            on_progress=lambda done, total: step.say(f"text {done + 1} of {total}"),
        )


def search_needles(
    side: str, lengths: Sequence[int], settings: Settings, access: Access
) -> tuple[needle.NeedleResult, ...]:
    model, label = served_side(side, settings, access)
    with model, console.step(f"needles in {label}") as step:
        fitting = needle.fitting(lengths, model.max_model_len())
        return tuple(needle.search(model, fitting, on_progress=step.say))


def bench_pooling(
    side: str, concurrency: Sequence[int], requests: int, settings: Settings, access: Access
) -> tuple[PoolingFigures, ...]:
    """Measure a model that writes no text; BenchError for one that does."""
    model, label = served_side(side, settings, access)
    with model, console.step(f"requests to {label}") as step:
        endpoint = model.pooling_endpoint()
        if endpoint is None:
            raise BenchError(f"{label} writes text", hint="measure it with `sparkdeploy bench`")

        def opened() -> ServedModel:
            return ServedModel(
                model.base_url, model.api_key, model=model.name, ca_file=model.ca_file
            )

        figures = measure_pooling(
            opened, endpoint, concurrency=concurrency, requests=requests, on_progress=step.say
        )
        return tuple(figures)


def try_tools(side: str, settings: Settings, access: Access) -> tuple[tool_calls.CaseResult, ...]:
    model, label = served_side(side, settings, access)
    with model, console.step(f"tool calls of {label}") as step:
        return tuple(tool_calls.run_cases(model, on_progress=step.say))
