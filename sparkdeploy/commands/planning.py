"""The plan for what a user typed; used by `plan` and `up --dry-run` alike."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.commands.drafting import Request, connect_if_possible, draft_plan, resolve
from sparkdeploy.errors import UsageError
from sparkdeploy.node.ownership import KEPT_MARK, REPLACED_SUFFIX
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.recipe.schema import NAME_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.settings import Settings


def make_request(
    recipe: str | None,
    assignments: Iterable[str] | None,
    *,
    name: str,
    exposure: Exposure,
    settings: Settings,
) -> Request:
    """Return the request; raise UsageError for a name Docker would not take."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(
            f"{name!r} is no deployment name", hint="use lower-case letters, digits, . _ -"
        )
    if name.endswith(REPLACED_SUFFIX) or KEPT_MARK in name:
        raise UsageError(
            f"{name!r} is no deployment name: {REPLACED_SUFFIX} and {KEPT_MARK}N mark containers "
            "that are being replaced or kept",
            hint="choose another name",
        )
    wanted = recipe or settings.default_recipe
    return Request(wanted, tuple(assignments or ()), Deployment(name, exposure))


def up_words(request: Request) -> list[str]:
    """Return the `up` that means this request, without the program's name."""
    words = ["up", _absolute(request.recipe)]
    words += [word for item in request.assignments for word in ("--set", item)]
    if request.deployment.name != "main":
        words += ["--name", request.deployment.name]
    if request.deployment.exposure is Exposure.PUBLIC:
        words.append("--public")
    return words


def plan_for(request: Request, settings: Settings) -> Plan:
    """Observe this machine and return the plan; Docker, a GPU and a network may all be absent."""
    resolved = resolve(request, settings)
    host, reason = connect_if_possible(settings)
    if host is None:
        plan = draft_plan(resolved, settings, None, request.deployment)
        unobserved = (reason, *plan.observed.unobserved)
        return replace(plan, observed=replace(plan.observed, unobserved=unobserved))
    with host:
        return draft_plan(resolved, settings, host, request.deployment)


def _absolute(recipe: str) -> str:
    if recipe.startswith("-"):
        raise UsageError(f"{recipe!r} is no recipe")
    if recipe.endswith((".yaml", ".yml")) or os.sep in recipe:
        return str(Path(recipe).expanduser().absolute())
    return recipe
