"""The deployment `main` over two machines, as each of them has it."""

from __future__ import annotations

import json
from typing import Any

from sparkdeploy import labels
from sparkdeploy.node.container import ContainerFact
from tests.cluster.conftest import docker_of, ours
from tests.cluster.machines import Machine

MAIN, OLD, KEPT = (f"sparkdeploy-main{ending}" for ending in ("", "-replaced", "-kept-1"))
ONE, TWO = (("--set", f"serve.max_num_seqs={number}") for number in (1, 2))


def serving(machine: Machine) -> ContainerFact:
    with docker_of(machine) as host:
        fact = host.find_container(MAIN)
    assert fact is not None, machine.name
    return fact


def whole(*machines: Machine) -> int | None:
    """What both serve: their containers run, are of one launch, and nothing is half replaced."""
    facts = [serving(machine) for machine in machines]
    assert all(fact.is_running for fact in facts), facts
    assert len({fact.launch for fact in facts}) == 1, facts
    for machine in machines:
        assert OLD not in ours(machine), machine.name
    (number,) = {recipe_of(fact)["serve"]["max_num_seqs"] for fact in facts}
    assert number is None or isinstance(number, int)
    return number


def recipe_of(fact: ContainerFact) -> dict[str, Any]:
    values = json.loads(fact.labels[labels.RECIPE_VALUES])
    assert isinstance(values, dict)
    return values
