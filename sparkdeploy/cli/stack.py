"""`gateway`, and `plan` and `up` of a stack file: several models behind one address."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sparkdeploy.checks.report import require_none
from sparkdeploy.cli.options import (
    KnownBadOption,
    UnsafeOption,
    answer,
    current_settings,
    named_hardware,
    overrides,
)
from sparkdeploy.errors import ChangesPendingError, UsageError
from sparkdeploy.gateway.deployments import Ready
from sparkdeploy.gateway.plans import StackPlan, plan_stack
from sparkdeploy.gateway.report import problems, refuse, stack_as_dict, stack_lines
from sparkdeploy.gateway.stack import load_stack
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console


def gateway(
    stack: Annotated[Path, typer.Argument(metavar="STACK", help="The stack file.")],
    known_bad: KnownBadOption = False,
    unsafe: UnsafeOption = False,
) -> None:
    """Serve a stack's models at one address, started when asked for."""
    from sparkdeploy.gateway.app import Gateway
    from sparkdeploy.gateway.deployments import StackDeployments

    settings = current_settings()
    found = load_stack(stack, settings)
    consents = overrides(None, known_bad=known_bad, unsafe=unsafe)
    plan = plan_stack(found, settings, consents)
    refuse(plan, of_preparation=False)
    served = Gateway(found, plan.fit, StackDeployments(plan, settings))
    console.info_blocks(stack_lines(plan))
    # From here on each model's start and stop is one line, whatever they say for one person.
    console.quiet = True
    served.serve()


OF_EVERY_STACK = frozenset({"recipe", "known_bad", "unsafe", "as_json", "_offline", "folder"})
"""Parameters of commands that are about no single recipe."""


def refuse_options(context: typer.Context, path: Path, *allowed: str) -> None:
    """Raise UsageError for options that were typed and are about one recipe."""
    named = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in {*OF_EVERY_STACK, *allowed}
        and (source := context.get_parameter_source(parameter.name or "")) is not None
        and source.name == "COMMANDLINE"
    ]
    if named:
        raise UsageError(
            f"{path} is a stack, and {' and '.join(named)} about one recipe",
            hint="the stack file itself says it, by model",
        )


def _planned(
    path: Path, context: typer.Context, settings: Settings, hardware: str | None = None
) -> StackPlan:
    given = context.params
    consents = overrides(None, known_bad=given["known_bad"], unsafe=given["unsafe"])
    return plan_stack(load_stack(path, settings), settings, consents, named_hardware(hardware))


def show_stack(
    path: Path, context: typer.Context, settings: Settings, hardware: str | None = None
) -> None:
    refuse_options(context, path, "dry_run", "yes", "hardware" if hardware else "check")
    plan = _planned(path, context, settings, hardware)
    answer(stack_lines(plan), stack_as_dict(plan), as_json=context.params["as_json"])
    require_none(problems(plan))
    if context.params.get("check") and any(it.has_work for it in plan.members):
        command = shlex.join(["sparkdeploy", "up", str(path)])
        raise ChangesPendingError("the stack has work to do", hint=f"run `{command}`")


def up_of_stack(path: Path, context: typer.Context, settings: Settings) -> None:
    given = context.params
    if given["dry_run"]:
        show_stack(path, context, settings)
        return
    from sparkdeploy.gateway.deployments import up_stack

    refuse_options(context, path, "prepare", "drop_page_cache", "yes")
    plan = _planned(path, context, settings)
    refuse(plan, of_preparation=given["prepare"])
    console.info_blocks(stack_lines(plan))
    ready = up_stack(
        plan,
        settings,
        confirm=(lambda _question: True) if given["yes"] else console.confirm,
        starts=not given["prepare"],
        drop_page_cache=given["drop_page_cache"],
    )
    answer(_ready_lines(plan, ready), _ready_as_dict(plan, ready), as_json=given["as_json"])


def _ready_lines(plan: StackPlan, ready: Ready) -> Iterator[str]:
    for name, outcome in ready.started.items():
        state = "answers" if outcome.changed else "was up already and answers"
        yield f"{name} {state} at {outcome.plan.base_url}/v1"
    others = [it.model.name for it in plan.members if it.model.name not in ready.started]
    if others:
        yield f"ready to start: {', '.join(others)}"
    command = shlex.join(["sparkdeploy", "gateway", str(plan.stack.path)])
    yield f"next: `{command}` answers for all of them"


def _ready_as_dict(plan: StackPlan, ready: Ready) -> dict[str, Any]:
    return {
        "stack": plan.stack.name,
        "prepared": list(ready.prepared),
        "started": [
            {"model": name, "base_url": it.plan.base_url, "changed": it.changed}
            for name, it in ready.started.items()
        ],
        "ready": [it.model.name for it in plan.members],
    }
