"""A cluster's plan in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sparkdeploy.plan.report import plan_lines
from sparkdeploy.plan.steps import plan_as_dict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sparkdeploy.checks.fabric import Check
    from sparkdeploy.node.container import ContainerSpec
    from sparkdeploy.plan.formation import Formation
    from sparkdeploy.plan.steps import Plan


def cluster_lines(plan: Plan, formation: Formation) -> list[str]:
    """Return the plan's lines, with every node's part in the place of the one container."""
    lines = [line for line in plan_lines(plan) if " container   " not in line]
    for seat in formation.seats:
        role = "head, has the API" if seat.is_head else "worker"
        rdma = f", RDMA {' '.join(seat.rdma)}" if seat.rdma else ", no RDMA"
        place = f"{seat.address} on {seat.interface}{rdma}"
        lines.append(f"  > {seat.node:<11} rank {seat.rank}, {role}, {place}")
    size = len(formation.seats)
    lines.append(f"  tensor parallel over {size} nodes, back end {formation.backend}")
    return lines


def cluster_as_dict(
    plan: Plan,
    formation: Formation,
    specs: Mapping[str, ContainerSpec],
    checks: Sequence[Check],
) -> dict[str, Any]:
    """Return plain values: the plan, whose container is each node's, and the checks."""
    return {
        **plan_as_dict(plan),
        "container": None,
        "formation": asdict(formation),
        "nodes": {name: spec.as_dict() for name, spec in specs.items()},
        "checks": [check.as_dict() for check in checks],
    }
