"""What a container carries of its plan, for a start that has none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sparkdeploy import labels
from sparkdeploy.checkpoint.draft_layer import DraftWeights
from sparkdeploy.deploy.expectation import (
    Expectation,
    ExpectedTreatment,
    check_backends,
    expectation_of,
    expectation_on,
)
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.server.facts import EngineFacts
from tests.fakes import plans as facts

if TYPE_CHECKING:
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.load import Library

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
    treated = replace(expected, treatment=ExpectedTreatment(84, "int8", 32768))

    assert expected.memory is not None
    assert expected.memory.needed_bytes > 100 * facts.GIB
    assert not expected.memory.page_cache_counts
    assert {item.subject for item in expected.backends} >= {"attention", "speculation"}
    assert expectation_on(carried(expected)) == expected
    assert expectation_on(carried(treated)) == treated


@pytest.mark.parametrize("text", [None, "", "no json", "{}", '{"memory": 1}', "[]"])
def test_a_container_of_another_version_promises_nothing(text: str | None) -> None:
    known = {} if text is None else {labels.EXPECTATION: text}

    assert expectation_on(ContainerFact("c", "x", "sha256:0", "exited", known)) is None


def test_what_was_read_back_judges_like_the_plan(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = expectation_on(carried(expectation_of(plan, plan.head)))
    assert expected is not None

    check_backends(expected, AS_PLANNED)
    check_backends(expected, replace(AS_PLANNED, attention_backend="TRITON_ATTN"))
    assert "warning: attention: planned FLASHINFER, runs TRITON_ATTN" in capsys.readouterr().err
    treated = replace(expected, treatment=ExpectedTreatment(84, "int8", 32768))
    done = replace(AS_PLANNED, fp8_layers=84, lm_head="int8", draft_head_rows=32768)
    check_backends(treated, done)
    with pytest.raises(UnhealthyError, match="said nothing"):
        check_backends(treated, AS_PLANNED)
    with pytest.raises(UnhealthyError, match="draft head of 32768 rows, and the plugin made none"):
        check_backends(treated, replace(done, draft_head_rows=None))


def test_a_draft_layer_that_was_left_alone_is_found(plan: Plan) -> None:
    weights = DraftWeights(int4_layers=1, fp8_layers=8)
    treatment = ExpectedTreatment(84, "int8", None, weights)
    made = replace(expectation_of(plan, plan.head), treatment=treatment)
    expected = expectation_on(carried(made))
    assert expected == made
    assert expected is not None
    done = replace(AS_PLANNED, fp8_layers=84, lm_head="int8")

    check_backends(expected, replace(done, draft_int4_layers=1, draft_fp8_layers=8))
    with pytest.raises(UnhealthyError, match=r"int4=1 layers of experts .* said nothing of it"):
        check_backends(expected, done)
    with pytest.raises(UnhealthyError, match="the plugin made int4=1, fp8=7"):
        check_backends(expected, replace(done, draft_int4_layers=1, draft_fp8_layers=7))


def test_shared_experts_that_stayed_as_they_are_are_found(plan: Plan) -> None:
    treatment = ExpectedTreatment(0, "int8", None, shared_int4_layers=144)
    made = replace(expectation_of(plan, plan.head), treatment=treatment)
    expected = expectation_on(carried(made))
    assert expected == made
    assert expected is not None
    done = replace(AS_PLANNED, fp8_layers=0, lm_head="int8")

    check_backends(expected, replace(done, shared_int4_layers=144))
    for said, count in ((None, 0), (141, 141)):
        with pytest.raises(UnhealthyError, match=f"int4=144 .* the plugin made {count}"):
            check_backends(expected, replace(done, shared_int4_layers=said))
    plain = replace(expected, treatment=ExpectedTreatment(0, "int8", None))
    with pytest.raises(UnhealthyError, match=r"int4=0 .* the plugin made 144"):
        check_backends(plain, replace(done, shared_int4_layers=144))
