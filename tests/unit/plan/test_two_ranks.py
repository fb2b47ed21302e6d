"""The stand of two GPUs starts what `up --cluster` starts."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from types import ModuleType

    from sparkdeploy.recipe.load import Library

STAND = REPOSITORY / "tests" / "gpu" / "stand"


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("two_plan", monkeypatch)


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STAND))
    spec = importlib.util.spec_from_file_location(name, STAND / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_server_has_two_ranks_and_ports_of_its_own(
    plan: ModuleType, shipped: Library
) -> None:
    servers = [
        plan.described(shipped, wanted, number)
        for number, wanted in enumerate((*plan.NATIVE, *plan.RAY))
    ]
    assert len({server["port"] for server in servers}) == len(servers)
    meeting = [ports(server) for server in servers]
    assert len(set(meeting)) == len(servers)
    for server in servers:
        head, worker = server["ranks"]
        assert server["model"] in head["argv"]
        assert head["env"]["VLLM_HOST_IP"] != worker["env"]["VLLM_HOST_IP"]
        # Without RDMA the product sends NCCL over the interface's sockets.
        assert (worker["env"]["NCCL_IB_DISABLE"], worker["env"]["NCCL_SOCKET_IFNAME"]) == (
            "1",
            "lo",
        )
        assert ("--headless" in worker["argv"]) == (server["backend"] == "native")


def ports(server: dict[str, Any]) -> str:
    words = server["ranks"][0]["argv"]
    flag = "--master-port" if server["backend"] == "native" else "--port"
    return str(words[words.index(flag) + 1])


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
