"""A second deployment of several nodes beside the first, under another name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.steps import for_cluster
from sparkdeploy.recipe.load import load_recipe
from sparkdeploy.settings import load_settings
from tests.fakes.machines import Lab, build

if TYPE_CHECKING:
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.load import Library

SMALL = "serve.gpu_memory_utilization=0.3"


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Lab:
    return build(monkeypatch, shipped, 2)


def drafted(lab: Lab, name: str, *sets: str) -> Plan:
    assignments = ("serve.port=8001", SMALL, *sets)
    resolved = for_cluster(load_recipe(lab.shipped, "v2", assignments))
    return lab.draft(resolved, load_settings(), lab.nodes(frozenset({"spark-2"})), Deployment(name))


@pytest.mark.parametrize(
    ("sets", "port"),
    [
        (("cluster.tensor_parallel=2",), 29501),
        (("cluster.tensor_parallel=2", "cluster.backend=ray"), 6379),
        (("cluster.tensor_parallel=1", "cluster.data_parallel=2"), 13345),
    ],
)
def test_it_would_meet_at_the_port_of_the_first(lab: Lab, sets: tuple[str, ...], port: int) -> None:
    lab.up(SMALL)
    found = [item for item in drafted(lab, "second", *sets).problems if item.check[:5] == "ports"]
    assert [item.check for item in found] == ["ports.cluster"]
    assert "deployment main runs from there over spark-1, spark-2" in found[0].seen
    assert f"at port {port}" in found[0].seen
    assert str(found[0].fix).startswith("sparkdeploy down main; or ")


def test_one_machine_alone_meets_nobody(lab: Lab) -> None:
    lab.up(SMALL)
    plan = drafted(lab, "second", "cluster.tensor_parallel=1")
    assert "ports.cluster" not in {item.check for item in plan.problems}


def test_what_replaces_the_first_or_comes_after_it_meets_at_its_port(lab: Lab) -> None:
    lab.up(SMALL)
    plans = [drafted(lab, "main", "cluster.tensor_parallel=2")]
    lab.down()
    plans.append(drafted(lab, "second", "cluster.tensor_parallel=2"))
    for plan in plans:
        assert "ports.cluster" not in {item.check for item in plan.problems}
