"""What a container carries of its plan, for a start that has none."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy.expectation import (
    Expectation,
    check_backends,
    expectation_of,
    expectation_on,
    verify_rank,
)
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.node import Node
from sparkdeploy.plan.steps import Plan
from sparkdeploy.recipe.load import Library
from sparkdeploy.server.facts import EngineFacts
from tests.fakes import plans as facts
from tests.fakes.fabric import spark

AS_PLANNED = EngineFacts(
    attention_backend="FLASHINFER",
    moe_backend="MARLIN",
    linear_kernels=("MarlinLinearKernel",),
    graph_mode="FULL_AND_PIECEWISE",
    speculation="mtp 2",
)


@pytest.fixture
def plan(shipped: Library) -> Plan:
    return facts.plan(shipped, facts.observed(model=facts.model_fact(treated=False)))


def carried(expected: Expectation) -> ContainerFact:
    known = {labels.EXPECTATION: expected.as_label()}
    return ContainerFact("c" * 64, "sparkdeploy-main-kept-1", "sha256:0", "exited", known)


def test_what_a_plan_promises_is_read_back_from_its_container(plan: Plan) -> None:
    expected = expectation_of(plan, plan.head)
    treated = replace(expected, converted=CONVERTED)
    assert expected.memory is not None
    assert expected.memory.needed_bytes > 100 * facts.GIB
    assert not expected.memory.page_cache_counts
    assert {item.subject for item in expected.backends} >= {"attention", "speculation"}
    assert expectation_on(carried(expected)) == expected
    assert expectation_on(carried(treated)) == treated


def test_a_container_that_was_made_by_hand_promises_nothing() -> None:
    assert expectation_on(ContainerFact("c", "x", "sha256:0", "exited", {})) is None


def test_what_was_read_back_judges_like_the_plan(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = expectation_on(carried(expectation_of(plan, plan.head)))
    assert expected is not None
    check_backends(expected, AS_PLANNED)
    check_backends(expected, replace(AS_PLANNED, attention_backend="TRITON_ATTN"))
    assert "warning: attention: planned FLASHINFER, runs TRITON_ATTN" in capsys.readouterr().err


SAYS_83 = b"sparkdeploy: spark-hybrid active: fp8=83 layers, lm_head=int8\n"


@pytest.mark.parametrize(
    ("is_here", "log", "error"),
    [
        (True, b"", "^the recipe asks for fp8_layers=84, and the plugin said nothing"),
        # Under Ray a worker's log may say nothing of the plugin.
        (False, b"", ""),
        (False, SAYS_83, "^spark-2: the recipe asks for fp8_layers=84, and the plugin made 83"),
    ],
)
def test_each_rank_is_held_to_what_its_own_last_run_says(
    *, is_here: bool, log: bytes, error: str
) -> None:
    link: Any = None if is_here else SimpleNamespace(docker_address="ssh://there", is_open=True)
    node, fact = Node("spark-2", spark(2), link), carried(Expectation(None, (), {"fp8_layers": 84}))
    engine: Any = SimpleNamespace(logs=lambda _id, *, this_run: [log] if this_run is fact else [])
    node._docker = engine
    with pytest.raises(UnhealthyError, match=error) if error else contextlib.nullcontext():
        verify_rank(node, fact)


CONVERTED: dict[str, Any] = {
    "fp8_layers": 84,
    "lm_head": "int8",
    "shared_int4_layers": 0,
    "draft_head_rows": 32768,
    "draft_int4_layers": 1,
    "draft_fp8_layers": 8,
}


def test_what_the_plugin_converted_is_what_was_planned(plan: Plan) -> None:
    expected = replace(expectation_of(plan, plan.head), converted=CONVERTED)
    done = replace(AS_PLANNED, **{**CONVERTED, "shared_int4_layers": None})
    check_backends(expected, done)
    with pytest.raises(UnhealthyError, match="fp8_layers=84, and the plugin said nothing"):
        check_backends(expected, AS_PLANNED)


@pytest.mark.parametrize(
    ("name", "made", "said"),
    [
        ("fp8_layers", 83, "fp8_layers=84, and the plugin made 83"),
        ("lm_head", "bf16", "lm_head=int8, and the plugin made bf16"),
        ("shared_int4_layers", 144, "shared_int4_layers=0, and the plugin made 144"),
        ("draft_head_rows", None, "draft_head_rows=32768, and the plugin made none"),
        ("draft_int4_layers", None, "draft_int4_layers=1, and the plugin made none"),
        ("draft_fp8_layers", 7, "draft_fp8_layers=8, and the plugin made 7"),
    ],
)
def test_each_conversion_that_differs_is_an_error(
    plan: Plan, name: str, made: int | str | None, said: str
) -> None:
    expected = replace(expectation_of(plan, plan.head), converted=CONVERTED)
    done = replace(AS_PLANNED, **{**CONVERTED, name: made})
    with pytest.raises(UnhealthyError, match=said):
        check_backends(expected, done)
