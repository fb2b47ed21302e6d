"""What is asked before a running deployment makes room for another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.console import console
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.node.facts import is_another
from sparkdeploy.plan.problems import existing_container
from sparkdeploy.plan.steps import Action

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.plan.steps import Plan


def ask_to_replace(plan: Plan, consent: Callable[[str], bool], silence: str) -> None:
    """Raise SparkdeployError when something runs that the plan replaces, and nobody consents.

    `silence` is how long nobody will be answered; it is said first, also where nobody is asked.
    """
    running = list(_replaced(plan))
    if not running:
        return
    reason = next(part.reason for part in plan.parts if part.action is Action.REPLACE)
    # Users of one machine share its names: whoever replaces another's should know.
    user = running[0].user
    name = f"deployment {plan.deployment.name}{f' of {user}' if is_another(user) else ''}"
    console.info(f"for how long nobody will be answered: {silence}")
    if not consent(f"{name} is running and will be replaced ({reason}). Go on?"):
        raise SparkdeployError(
            f"deployment {plan.deployment.name} was not replaced",
            hint="say yes, or pass --yes; another --name starts a second one beside it",
        )


def _replaced(plan: Plan) -> Iterator[ContainerFact]:
    for part in plan.parts:
        node = plan.observed.node(part.node)
        if part.action is Action.REPLACE and node is not None:
            fact = existing_container(node, plan.deployment)
            if fact is not None and fact.is_running:
                yield fact
