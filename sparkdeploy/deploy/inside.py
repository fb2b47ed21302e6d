"""What containers of the engine see of the fabric, looked at before a launch.

The image may lack what the machine has, and a container's user may not do what root does. So a
program runs on every node in a container like that of the launch: same image, user, environment,
devices and limits, and no model.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from sparkdeploy.checks.fabric import Check
from sparkdeploy.checks.rdma import rdma_checks, read_rdma
from sparkdeploy.console import format_gib
from sparkdeploy.errors import NodeError
from sparkdeploy.image.inside import all_reduce, rdma
from sparkdeploy.node.container import NAME_START
from sparkdeploy.node.fabric import FALLBACK_GID_INDEX
from sparkdeploy.node.node import at_once, named
from sparkdeploy.node.ports import free_port
from sparkdeploy.plan.backends import planned_transport
from sparkdeploy.plan.container import look_spec, wants_rdma
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.plan.problems import refuse_to_start
from sparkdeploy.plan.steps import Problem
from sparkdeploy.server.forensics import root_cause
from sparkdeploy.server.phases import read_whole
from sparkdeploy.server.truth import findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.node.container import ContainerSpec
    from sparkdeploy.node.node import Node, Nodes
    from sparkdeploy.plan.steps import Part, Plan

LOOK_TIMEOUT_S = 30
SUM_TIMEOUT_S = 60
"""The program gives up by itself after 25 s; a container with torch in it takes its time."""
SUM_NEEDS_BYTES = 4 * 2**30
"""A CUDA context and NCCL's buffers: on unified memory they are the machine's."""
SUBJECT = "NCCL all-reduce"


def refuse_blind(plan: Plan, nodes: Nodes) -> None:
    """Raise NodeError with all that would keep NCCL from the adapters of the plan's nodes."""
    failed = [check for check in look_inside(plan, nodes) if check.verdict == "failed"]
    problems = tuple(Problem("cluster.check", item.describe(), item.fix) for item in failed)
    refuse_to_start(replace(plan, problems=problems))


def look_inside(plan: Plan, nodes: Nodes) -> tuple[Check, ...]:
    """Look into the engine image on every node whose part uses RDMA; none on machines without."""

    def look(part: Part) -> list[Check]:
        return list(_look(plan, part, nodes.node(part.node)))

    found = at_once(look, [part for part in plan.parts if _uses_rdma(plan, part)])
    return tuple(check for checks in found for check in checks)


def add_up(plan: Plan, nodes: Nodes) -> tuple[Check, ...]:
    """Let NCCL add a tensor up over all nodes of the plan, in containers like those of a launch."""
    if reason := _why_not(plan, nodes):
        return (Check(plan.head.node, SUBJECT, "not seen", reason),)
    try:
        # That of a launch may be taken by what serves now.
        port = free_port(plan.head.seat.address)
    except NodeError as error:
        return (Check(plan.head.node, SUBJECT, "not seen", error.message),)

    def add(part: Part) -> Check:
        return _add(plan, part, nodes.node(part.node), port)

    return tuple(at_once(add, plan.parts))


def _uses_rdma(plan: Plan, part: Part) -> bool:
    return wants_rdma(plan.resolved, plan.formation, part.seat)


def _spec(plan: Plan, part: Part, program: str, *arguments: str) -> ContainerSpec:
    model = plan.observed.model
    spec = look_spec(
        plan.resolved,
        plan.formation,
        part.seat,
        image=plan.images[-1].stage.tag,
        model=model if isinstance(model, ModelFact) else None,
        command=("-c", Path(program).read_text(encoding="utf-8"), *arguments),
    )
    return replace(spec, name=f"{NAME_START}look-{uuid4().hex[:8]}")


def _look(plan: Plan, part: Part, node: Node) -> Iterator[Check]:
    spec = replace(_spec(plan, part, rdma.__file__), gpus="none")
    if not _has_image(node, spec.image):
        yield _image_to_come(plan, part)
        return
    try:
        with named(node):
            code, said = node.docker.run_to_end(spec, timeout_s=LOOK_TIMEOUT_S)
    except NodeError as error:
        # Docker itself refuses a device that the machine does not have.
        fix = error.hint or f"on {part.node}: ls -l /dev/infiniband"
        value = error.message.removeprefix(f"{part.node}: ")
        yield Check(
            part.node, "container with /dev/infiniband", "failed", value, "one that starts", fix
        )
        return
    told = _told(said, rdma.MARK)
    if code != 0 or told is None:
        yield Check(part.node, "RDMA in the image", "not seen", _last_line(said))
        return
    index = int(spec.env.get("NCCL_IB_GID_INDEX", FALLBACK_GID_INDEX))
    yield from rdma_checks(node.entry, read_rdma(told), index)


def _why_not(plan: Plan, nodes: Nodes) -> str:
    """Return why NCCL cannot be tried; empty when it can."""
    if plan.resolved.engine.runs_on != "cuda":
        return f"engine {plan.resolved.engine.name} runs on CPUs"
    for part in plan.parts:
        seen = plan.observed.node(part.node)
        if seen is None or seen.facts.gpu is None:
            return f"no GPU was seen on {part.node}"
        if not _has_image(nodes.node(part.node), plan.images[-1].stage.tag):
            return _image_to_come(plan, part).value
        free_bytes = seen.facts.memory_available_bytes or 0
        if free_bytes < SUM_NEEDS_BYTES:
            has, needs = format_gib(free_bytes), format_gib(SUM_NEEDS_BYTES)
            return f"{has} of memory are free on {part.node}, and it takes up to {needs}"
    return ""


def _add(plan: Plan, part: Part, node: Node, port: int) -> Check:
    seat, count = part.seat, len(plan.parts)
    arguments = (str(seat.rank), str(count), plan.head.seat.address, str(port))
    spec = _spec(plan, part, all_reduce.__file__, *arguments)
    with named(node):
        code, said = node.docker.run_to_end(spec, timeout_s=SUM_TIMEOUT_S)
    told = _told(said, all_reduce.MARK)
    if code != 0 or told is None:
        cause = root_cause(said, code, oom_killed=False)
        return Check(part.node, SUBJECT, "failed", cause.describe(), "a sum", cause.hint or "")
    if told["sum"] != count:
        fix = "sparkdeploy diagnose; this NCCL adds up wrongly over that fabric"
        return Check(part.node, SUBJECT, "failed", f"{told['sum']:g}", str(count), fix)
    facts = read_whole([said.encode()]).facts
    value = f"{facts.transport.describe() or 'no transport told'}, {told['gb_per_s']:g} GB/s"
    for finding in findings(planned_transport(plan.resolved, spec.env), facts):
        if finding.is_failure:
            fix = "`sparkdeploy cluster check` above says what the image or the node lacks"
            return Check(part.node, SUBJECT, "failed", value, finding.planned.wanted, fix)
    return Check(part.node, SUBJECT, "ok", value)


def _has_image(node: Node, tag: str) -> bool:
    with named(node):
        return node.docker.find_image(tag) is not None


def _image_to_come(plan: Plan, part: Part) -> Check:
    recipe = plan.resolved.recipe.name
    value = f"the image of {recipe} is not on {part.node} yet"
    fix = f"sparkdeploy up {recipe} --cluster --prepare"
    return Check(part.node, "RDMA in the image", "not seen", value, fix=fix)


def _told(said: str, mark: str) -> dict[str, object] | None:
    """Return the last object behind a mark, wherever other programs' words end before it."""
    _, found, text = said.rpartition(mark)
    if not found:
        return None
    value, _ = json.JSONDecoder().raw_decode(text)
    return dict(value)


def _last_line(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "the program said nothing"
