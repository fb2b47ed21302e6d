"""Turn a plan's problems into the one error that says all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.errors import CheckpointError, NodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.plan.steps import Plan, Problem


def refuse_to_start(plan: Plan) -> None:
    """Raise NodeError or CheckpointError when the plan has a problem of any kind."""
    _refuse(plan, plan.problems, "start")


def refuse_to_prepare(plan: Plan) -> None:
    """Raise for problems that stand in the way of images and checkpoints already."""
    _refuse(plan, [item for item in plan.problems if item.blocks == "prepare"], "be prepared")


def _refuse(plan: Plan, problems: Sequence[Problem], what: str) -> None:
    if not problems:
        return
    name = plan.resolved.recipe.name
    node_problems = [item for item in problems if item.subject == "node"]
    if not node_problems and len(problems) == 1:
        raise CheckpointError(problems[0].message, hint=problems[0].fix)
    lines = [line for item in problems for line in (item.message, f"    fix: {item.fix}")]
    error = NodeError if node_problems else CheckpointError
    count = "1 reason" if len(problems) == 1 else f"{len(problems)} reasons"
    raise error(
        f"{name} cannot {what} on {plan.observed.node.name}, for {count}", detail="\n".join(lines)
    )
