"""How answers and plans are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.errors import NodeError
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.authoring.outlook import Outlook
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.settings import Settings
    from sparkdeploy.terminal.tables import Block


def answer(blocks: Iterable[Block], content: object, *, as_json: bool) -> None:
    """Print paragraphs and tables for a person, or the same for a program."""
    if as_json:
        console.answer_json(content)
        return
    console.answer_blocks(blocks)


def print_plan(plan: Plan, settings: Settings, shown: str | None = None, *, as_json: bool) -> None:
    from sparkdeploy.plan import report
    from sparkdeploy.plan.steps import plan_as_dict
    from sparkdeploy.server.phases import start_words

    if shown is None:
        start = start_words(plan, settings.state_dir)
        answer(report.plan_lines(plan, start), plan_as_dict(plan), as_json=as_json)
        return
    texts = {
        "dockerfile": report.dockerfile_text,
        "args": report.arguments_text,
        "container": report.container_text,
        "mods": report.mods_text,
    }
    text = texts[shown](plan)
    if as_json:
        console.answer_json({"show": shown, "text": text, "nodes": plan_as_dict(plan)["nodes"]})
    else:
        console.answer(text)


def require_no_problems(plan: Plan | Outlook) -> None:
    """Raise NodeError after a plan has been printed that `up` would refuse."""
    if plan.problems:
        count = len(plan.problems)
        reasons = "1 reason" if count == 1 else f"{count} reasons"
        raise NodeError(f"`up` would refuse this, for {reasons}", hint="the lines with x say why")
