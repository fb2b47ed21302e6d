"""Memory at the moment of a start, on a machine of the test's own."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.deploy.memory import RETURN_TIMEOUT_S, Memory, require_memory
from sparkdeploy.errors import NodeError
from sparkdeploy.estimate.memory_claim import MemoryClaim, memory_claim
from sparkdeploy.recipe.load import Library, load_recipe
from tests.fakes.plans import GIB, SPARK

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sparkdeploy.node.facts import NodeFact


@dataclass
class Clocked:
    """Memory that comes back after a while; sleeping is the only thing that takes time."""

    drop_caches: Path
    back_at_s: float = 0.0
    free: int = 120 * GIB
    now_s: float = 0.0

    def meminfo(self) -> Mapping[str, int]:
        available = 118 * GIB if self.now_s >= self.back_at_s else 20 * GIB
        free = min(self.free, available)
        return {"MemTotal": 119 * GIB, "MemAvailable": available, "MemFree": free}

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s

    def drop(self) -> None:
        try:
            self.drop_caches.write_text("1\n")
        except OSError as error:
            raise NodeError(str(error)) from error

    def machine(self) -> Memory:
        return Memory(self.meminfo, self.drop, "", lambda: self.now_s, self.sleep)


@pytest.fixture
def claim(shipped: Library) -> MemoryClaim:
    return claim_of(shipped, SPARK)


def claim_of(shipped: Library, node: NodeFact) -> MemoryClaim:
    resolved = load_recipe(shipped, "v2")
    claim = memory_claim(resolved.recipe, resolved.engine, node)
    assert claim is not None
    return claim


@pytest.fixture
def clocked(tmp_path: Path) -> Clocked:
    return Clocked(tmp_path / "drop_caches")


def test_memory_of_a_stopped_container_is_waited_for(claim: MemoryClaim, clocked: Clocked) -> None:
    clocked.back_at_s = 7

    require_memory(claim, clocked.machine())

    assert 7 <= clocked.now_s < 8


def test_memory_that_does_not_come_back_is_an_error(claim: MemoryClaim, clocked: Clocked) -> None:
    clocked.back_at_s = RETURN_TIMEOUT_S + 60

    with pytest.raises(NodeError, match=r"but only 20\.0 GiB are available"):
        require_memory(claim, clocked.machine(), drop_page_cache=True)


def test_a_page_cache_in_the_way_is_told_and_left_alone(
    claim: MemoryClaim, clocked: Clocked, capsys: pytest.CaptureFixture[str]
) -> None:
    clocked.free = 30 * GIB

    require_memory(claim, clocked.machine())

    assert "the page cache holds" in capsys.readouterr().err
    assert not clocked.drop_caches.exists()


def test_a_page_cache_in_the_way_is_dropped_with_consent(
    claim: MemoryClaim, clocked: Clocked
) -> None:
    clocked.free = 30 * GIB

    require_memory(claim, clocked.machine(), drop_page_cache=True)

    assert clocked.drop_caches.read_text() == "1\n"


@pytest.mark.parametrize(("others_gib", "said"), [(60, "59.0"), (200, "0.0")])
def test_memory_that_other_deployments_take_is_not_waited_for(
    claim: MemoryClaim, clocked: Clocked, others_gib: int, said: str
) -> None:
    with pytest.raises(NodeError, match=f"only {re.escape(said)} GiB are available"):
        require_memory(
            claim, clocked.machine(), others_bytes=others_gib * GIB, drop_page_cache=True
        )

    assert clocked.now_s == 0


def test_a_machine_whose_memory_nobody_knows_is_not_refused(
    claim: MemoryClaim, clocked: Clocked
) -> None:
    require_memory(claim, replace(clocked.machine(), meminfo=dict))
    require_memory(None, clocked.machine())

    assert clocked.now_s == 0
