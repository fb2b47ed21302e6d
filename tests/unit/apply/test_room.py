"""Memory at the moment of a start, on a machine of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.apply.room import RETURN_TIMEOUT_S, Machine, PageCache, make_room
from sparkdeploy.errors import NodeError
from sparkdeploy.image.stages import stages_of
from sparkdeploy.node.gpu import GpuFact
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.make import make_plan
from sparkdeploy.recipe.load import Library, load_recipe
from tests.unit.conftest import REPOSITORY
from tests.unit.plan.facts import FOLDERS, GIB, observed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sparkdeploy.plan.steps import Plan


@dataclass
class Clocked:
    """Memory that comes back after a while; sleeping is the only thing that takes time."""

    drop_caches: Path
    back_at_s: float = 0.0
    free: int = 120 * GIB
    now_s: float = 0.0

    def meminfo(self) -> Mapping[str, int]:
        available = 120 * GIB if self.now_s >= self.back_at_s else 20 * GIB
        return {"MemAvailable": available, "MemFree": min(self.free, available)}

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s

    def machine(self) -> Machine:
        return Machine(self.meminfo, lambda: self.now_s, self.sleep, self.drop_caches)


@pytest.fixture
def plan(shipped: Library) -> Plan:
    resolved, facts = load_recipe(shipped, "v2"), observed()
    stages = stages_of(
        resolved.engine,
        base_source=facts.base_source,
        architecture=facts.node.architecture,
        resources=REPOSITORY,
    )
    return make_plan(resolved, facts, stages=stages, deployment=Deployment("main"), folders=FOLDERS)


@pytest.fixture
def clocked(tmp_path: Path) -> Clocked:
    return Clocked(tmp_path / "drop_caches")


def test_memory_that_is_there_is_not_waited_for(plan: Plan, clocked: Clocked) -> None:
    make_room(plan, PageCache.ASK, clocked.machine())

    assert clocked.now_s == 0
    assert not clocked.drop_caches.exists()


def test_memory_of_a_stopped_container_is_waited_for(plan: Plan, clocked: Clocked) -> None:
    clocked.back_at_s = 7

    make_room(plan, PageCache.ASK, clocked.machine())

    assert 7 <= clocked.now_s < 8


def test_memory_that_does_not_come_back_is_an_error(plan: Plan, clocked: Clocked) -> None:
    clocked.back_at_s = RETURN_TIMEOUT_S + 60

    with pytest.raises(NodeError, match=r"but only 20\.0 GiB are available"):
        make_room(plan, PageCache.DROP, clocked.machine())


def test_a_page_cache_in_the_way_is_told_and_left_alone(
    plan: Plan, clocked: Clocked, capsys: pytest.CaptureFixture[str]
) -> None:
    clocked.free = 30 * GIB

    make_room(plan, PageCache.ASK, clocked.machine())

    assert "the page cache holds" in capsys.readouterr().err
    assert not clocked.drop_caches.exists()


def test_a_page_cache_in_the_way_is_dropped_with_consent(plan: Plan, clocked: Clocked) -> None:
    clocked.free = 30 * GIB

    make_room(plan, PageCache.DROP, clocked.machine())

    assert clocked.drop_caches.read_text() == "1\n"


def test_a_page_cache_that_may_not_be_dropped_is_no_failure(
    plan: Plan, clocked: Clocked, capsys: pytest.CaptureFixture[str]
) -> None:
    clocked.free, clocked.drop_caches = 30 * GIB, clocked.drop_caches / "nowhere"

    make_room(plan, PageCache.DROP, clocked.machine())

    assert "sudo tee" in capsys.readouterr().err


def test_a_gpu_with_memory_of_its_own_does_not_mind_the_page_cache(
    plan: Plan, clocked: Clocked
) -> None:
    gpu = GpuFact("H200", "9.0", memory_bytes=139 * GIB)
    node = replace(plan.observed.node, gpu=gpu)
    clocked.free = 30 * GIB

    own = replace(plan, observed=replace(plan.observed, node=node))
    make_room(own, PageCache.DROP, clocked.machine())

    assert not clocked.drop_caches.exists()
