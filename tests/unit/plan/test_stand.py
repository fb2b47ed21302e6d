"""The scripts of tests/gpu/stand: a sitting on a lent GPU is too short for mistakes of theirs."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from sparkdeploy.recipe.load import Library
from tests.unit.conftest import REPOSITORY

STAND = REPOSITORY / "tests" / "gpu" / "stand"
GIB = 1 << 30


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STAND))
    spec = importlib.util.spec_from_file_location(f"stand_{name}", STAND / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up there.
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_servers_of_two_ranks_share_no_address_and_no_port(
    monkeypatch: pytest.MonkeyPatch, shipped: Library
) -> None:
    plan, two = (loaded(name, monkeypatch) for name in ("two_plan", "two"))
    wanted = (*plan.NATIVE, *plan.RAY)
    servers = [plan.described(shipped, one, number) for number, one in enumerate(wanted)]
    ranks = [rank for server in servers for rank in server["ranks"]]
    assert len({rank["env"]["VLLM_HOST_IP"] for rank in ranks}) == 2 * len(wanted)
    assert {rank["env"]["NCCL_SOCKET_IFNAME"] for rank in ranks} == {"lo"}
    assert len({server["port"] for server in servers}) == len(wanted)
    firsts = [two.first_ray_port(server["port"]) + 100 for server in servers]
    looked_at = [port for first in firsts for port in range(first, first + 32)]
    masters = range(plan.FIRST_MASTER_PORT, plan.FIRST_MASTER_PORT + 10 * len(wanted))
    assert len({*looked_at, *masters}) == 42 * len(wanted)
    there = {one.name for one in wanted} | {spec["name"] for spec in two.ALONE}
    for sitting in two.SITTINGS.values():
        assert set(sitting.faults) <= set(sitting.names) <= there
        references = {two.REFERENCES.get(server, "one-base") for server in sitting.names}
        assert references <= set(sitting.names)


def test_texts_are_held_against_one_rank_s_and_against_another_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = loaded("two", monkeypatch)
    same = [{"ids": [1, 2], "gaps": [3.0, 3.0]}]
    other = [{"ids": [1, 9], "gaps": [3.0, 0.5]}]
    found = two.pairs({"one-base/1": same, "v2/1": other, "v2/4": same, "one-base/4": same})
    assert {name: pair["diverged"] for name, pair in found.items()} == {
        "one-base/1 | one-base/4": 0,
        "one-base/1 | v2/1": 1,
        "v2/1 | v2/4": 1,
        "one-base/4 | v2/4": 0,
    }


def sample(number: int, **changed: object) -> dict[str, Any]:
    """The line of a server that bears it: half of its drafts are accepted, its memory stays."""
    return {
        "kind": "sample", "at_s": 10.0 * number, "requests": number, "cancelled": 0,
        "tokens": 500 * number, "errors": [], "silent_s": 0.5, "drafted": 1000.0 * number,
        "accepted": 500.0 * number, "host_bytes": 8 * GIB, "gpu_bytes": 12 * GIB,
        "shortest_prompt": 12_000, "longest_prompt": 21_000, **changed,
    }  # fmt: skip


def growing(number: int) -> int:
    return 8 * GIB + number * (16 << 20)


@pytest.mark.parametrize(
    ("changed", "after", "fault"),
    [
        (lambda _: {}, "b", ""),
        (lambda n: {"errors": ["HTTP Error 500"] if n == 40 else []}, "b", "1 errors, the first"),
        (lambda n: {"silent_s": 75.0 if n == 40 else 0.5}, "b", "stalled: 75 s without a token"),
        (lambda n: {"host_bytes": growing(n)}, "b", "host_bytes grew by "),
        (lambda n: {"gpu_bytes": growing(n)}, "b", "gpu_bytes grew by "),
        (lambda n: {"gpu_bytes": min(n, 15) * GIB}, "b", ""),
        (
            lambda n: {"accepted": 500.0 * min(n, 54) + 100.0 * max(0, n - 54)},
            "b",
            "accepted drafts went from 50% to 10%",
        ),
        (lambda _: {}, "c", "greedy texts [1] changed"),
        (lambda _: {}, None, "the greedy texts were not asked again"),
    ],
)
def test_a_soak_is_judged_by_its_lines(
    monkeypatch: pytest.MonkeyPatch, changed: Any, after: str | None, fault: str
) -> None:
    lines = [{"kind": "canary", "when": "before", "texts": ["a", "b"]}]
    lines += [sample(n, **changed(n)) for n in range(1, 91)]
    lines += [{"kind": "canary", "when": "after", "texts": ["a", after]}] if after else []
    faults = loaded("soak", monkeypatch).judge(lines).faults
    assert len(faults) == bool(fault)
    assert all(it.startswith(fault) for it in faults)
