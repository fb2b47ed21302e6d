"""What `up` prints when it is done."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sparkdeploy.cli.options import answer
from sparkdeploy.deploy.request import Request, up_words
from sparkdeploy.deploy.up import Extent, Outcome
from sparkdeploy.plan.launch import planned_backends
from sparkdeploy.recipe.answers import curl_line
from sparkdeploy.settings import ON_VARIABLE
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_seconds

if TYPE_CHECKING:
    from sparkdeploy.deploy.lifecycle import Started


def print_outcome(outcome: Outcome, request: Request, extent: Extent, *, as_json: bool) -> None:
    plan = outcome.plan
    if extent is Extent.ANSWER and not plan.deployment.is_public:
        say_tunnel(int(plan.base_url.rpartition(":")[2]))
    if outcome.downtime_s is not None:
        console.info(f"downtime: {format_seconds(outcome.downtime_s)}")
    answer(_lines(outcome, extent, request), _as_dict(outcome, extent), as_json=as_json)
    if extent is Extent.ANSWER and not as_json:
        say_next(plan.deployment.name)


def print_started(started: Started, *, as_json: bool) -> None:
    state = "answers" if started.changed else "was up already and answers"
    line = f"{started.deployment} {state} at {started.base_url}/v1 as {started.model}"
    answer([line], asdict(started), as_json=as_json)
    if not as_json:
        say_next(started.deployment)


def _lines(outcome: Outcome, extent: Extent, request: Request) -> Iterator[str]:
    plan = outcome.plan
    name = plan.deployment.name
    if extent is Extent.PREPARE:
        yield f"ready to start: {shlex.join(['sparkdeploy', *up_words(request)])}"
        return
    if not outcome.is_answering:
        state = "is starting" if outcome.changed else "was started before"
        yield f"{name} {state}; `sparkdeploy status` shows when it answers"
        return
    model = plan.resolved.recipe.model.served_names[0]
    state = "answers" if outcome.changed else "was up already and answers"
    key_file = plan.folders.key_file if plan.deployment.is_public else None
    yield f"{name} {state} at {plan.base_url}/v1 as {model}"
    yield f"try: {curl_line(plan.base_url, outcome.answers.main, model, key_file)}"
    if key_file is not None:
        yield f"key: {key_file}"


def say_next(deployment: str) -> None:
    if not console.draws:
        return
    # Beside another deployment a command without a name ends with a question.
    words = ("status --watch", f"chat {deployment}", f"down {deployment}")
    console.info("next: " + "   ".join(f"sparkdeploy {it}" for it in words))


def say_tunnel(port: int) -> None:
    """Say how the machine that this was typed on reaches a loopback server here."""
    if typed_as := os.environ.get(ON_VARIABLE):
        command = shlex.join(["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", typed_as])
        console.info(f"to reach it from where you are: {command}")


def _as_dict(outcome: Outcome, extent: Extent) -> dict[str, Any]:
    readiness, plan = outcome.readiness, outcome.plan
    content: dict[str, Any] = {
        "deployment": plan.deployment.name,
        "recipe": plan.resolved.recipe.name,
        "extent": extent.name.lower(),
        "base_url": plan.base_url,
        "changed": outcome.changed,
        "endpoint": outcome.answers.main.path if extent is Extent.ANSWER else None,
        "answers": [it.value for it in outcome.answers.tasks] if extent is Extent.ANSWER else None,
        "downtime_s": outcome.downtime_s,
    }
    if readiness is None:
        return {**content, **dict.fromkeys(("startup_s", "phases_s", "backends"))}
    from sparkdeploy.server.facts import compare_backends

    checks = compare_backends(planned_backends(plan.resolved), readiness.facts)
    backends = [
        {
            "subject": check.planned.subject,
            "planned": check.planned.wanted,
            "seen": check.seen,
            "verdict": check.match.value,
        }
        for check in checks
    ]
    took = {"startup_s": readiness.startup_s, "phases_s": dict(readiness.phases_s)}
    return {**content, **took, "backends": backends}
