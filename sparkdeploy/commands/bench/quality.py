"""`bench quality`, `bench needle` and `bench tools`: what deployments, addresses and files say."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.bench.quality import needle, tool_calls
from sparkdeploy.bench.quality.capture import read_capture, take_capture
from sparkdeploy.commands.bench.run import server_at
from sparkdeploy.commands.reach import connect
from sparkdeploy.console import console
from sparkdeploy.deploy.deployments import require_deployment
from sparkdeploy.deploy.serving import model_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.bench.quality.capture import Capture, Questions
    from sparkdeploy.commands.bench.run import Access
    from sparkdeploy.server.client import ServedModel
    from sparkdeploy.settings import Settings


def capture_of(side: str, questions: Questions, settings: Settings, access: Access) -> Capture:
    """Return what a side says: a saved capture is read, a deployment or an address is asked."""
    # A deployment's name has neither a slash nor this ending.
    if "://" not in side and (side.endswith(".json") or "/" in side):
        saved = read_capture(Path(side))
        return replace(saved, label=f"{Path(side).stem} ({saved.label})")
    model, label = _served_side(side, settings, access)
    with model, console.step(f"quality of {label}") as step:
        return take_capture(
            model,
            questions,
            label=label,
            now=datetime.now(UTC),
            on_progress=lambda done, total: step.say(f"text {done + 1} of {total}"),
        )


def _served_side(side: str, settings: Settings, access: Access) -> tuple[ServedModel, str]:
    """Return a server by its address or its deployment's name, and what to call it."""
    if "://" in side:
        return server_at(side, access), side
    with connect(settings) as host:
        fact = require_deployment(host, side).current
    return model_of(fact, settings), f"{side} ({fact.labels.get(labels.RECIPE, 'no recipe')})"


def search_needles(
    side: str, lengths: Sequence[int], settings: Settings, access: Access
) -> tuple[needle.NeedleResult, ...]:
    """Search every length the model takes, at every depth."""
    model, label = _served_side(side, settings, access)
    with model, console.step(f"needles in {label}") as step:
        fitting = needle.fitting(lengths, model.max_model_len())
        return tuple(needle.search(model, fitting, on_progress=step.say))


def try_tools(side: str, settings: Settings, access: Access) -> tuple[tool_calls.CaseResult, ...]:
    model, label = _served_side(side, settings, access)
    with model, console.step(f"tool calls of {label}") as step:
        return tuple(tool_calls.run_cases(model, on_progress=step.say))
