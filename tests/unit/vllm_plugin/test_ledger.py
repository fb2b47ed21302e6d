"""The one line in the log, and the mismatch that stops a start."""

# mypy: disable-error-code="import-not-found"

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkdeploy_vllm.weights.ledger import ConversionLedger, ConversionMismatchError, DraftLedger


def convert(ledger: ConversionLedger, layers: int, *, with_head: bool) -> list[str]:
    """Create and convert a model of `layers` layers; the lines announced."""
    said: list[str] = []
    for index in range(layers):
        ledger.layer_created(f"{index}.gate_up")
        ledger.layer_created(f"{index}.down")
    if with_head:
        ledger.layer_created("lm_head")
    for index in range(layers):
        ledger.fp8_converted(f"{index}.gate_up", modules=2, announce=said.append)
        ledger.fp8_converted(f"{index}.down", modules=1, announce=said.append)
    if with_head:
        ledger.head_ready("lm_head", dtype="int8", announce=said.append)
    return said


def test_the_line_has_the_counts_of_what_was_converted() -> None:
    ledger = ConversionLedger(expected_fp8_modules=12, head_wanted="int8")
    assert convert(ledger, 4, with_head=True) == [
        "sparkdeploy: spark-hybrid active: fp8=12 layers, lm_head=int8"
    ]


def test_nothing_is_said_while_a_created_layer_is_not_converted() -> None:
    ledger = ConversionLedger(expected_fp8_modules=3, head_wanted="bf16")
    ledger.layer_created("forgotten")
    assert convert(ledger, 1, with_head=False) == []


def test_too_few_layers_stop_the_start() -> None:
    ledger = ConversionLedger(expected_fp8_modules=12, head_wanted="int8")
    with pytest.raises(ConversionMismatchError, match="expects 12 FP8 layers, 9 were"):
        convert(ledger, 3, with_head=True)


def test_a_draft_model_after_the_target_changes_and_says_nothing() -> None:
    ledger = ConversionLedger(expected_fp8_modules=12, head_wanted="int8")
    convert(ledger, 4, with_head=True)
    assert convert(ledger, 0, with_head=True) == []
    assert (ledger.fp8_modules, ledger.heads) == (12, {"int8"})


def test_a_layer_converted_twice_counts_once() -> None:
    ledger = ConversionLedger(expected_fp8_modules=None, head_wanted="bf16")
    said: list[str] = []
    ledger.layer_created("a")
    ledger.layer_created("b")
    for name in ("a", "a", "b"):
        ledger.fp8_converted(name, modules=1, announce=said.append)
    assert said == ["sparkdeploy: spark-hybrid active: fp8=2 layers, lm_head=bf16"]


def test_a_model_without_any_hooked_layer_is_compared_once_its_weights_are_there() -> None:
    ledger = ConversionLedger(expected_fp8_modules=12, head_wanted="int8")
    said: list[str] = []
    with pytest.raises(ConversionMismatchError, match="expects 12 FP8 layers, 0 were"):
        ledger.weights_there(announce=said.append)
    headless = ConversionLedger(expected_fp8_modules=0, head_wanted="int8")
    with pytest.raises(ConversionMismatchError, match="asks for an INT8 LM head"):
        headless.weights_there(announce=said.append)


def test_a_draft_model_finds_no_layer_that_was_never_converted() -> None:
    ledger = ConversionLedger(expected_fp8_modules=3, head_wanted="bf16")
    ledger.layer_created("0.down")
    with pytest.raises(ConversionMismatchError, match=r"0\.down"):
        ledger.close_for_draft()


DRAFT = {"fc": 1, "qkv": 3, "o": 1, "gate_up": 2, "down": 1}
DRAFT_LINE = "sparkdeploy: draft layer active: int4=1 layers of experts, fp8=8 layers"


def convert_draft(ledger: DraftLedger, names: Iterable[str]) -> list[str]:
    """Convert layers of a draft model in this order; the lines announced."""
    said: list[str] = []
    for name in names:
        assert not said or ledger.closed
        if name == "experts":
            ledger.int4_converted(name, announce=said.append)
        else:
            ledger.fp8_converted(name, modules=DRAFT[name], announce=said.append)
    return said


def draft_of(names: Iterable[str]) -> DraftLedger:
    ledger = DraftLedger(expected_int4_layers=1, expected_fp8_modules=8)
    for name in names:
        ledger.layer_created(name)
    return ledger


@given(st.permutations([*DRAFT, "experts"]), st.integers(min_value=1, max_value=3))
def test_a_draft_layer_is_announced_once_by_its_last_conversion(
    order: list[str], times: int
) -> None:
    ledger = draft_of([*DRAFT, "experts"])
    assert convert_draft(ledger, order[:-1]) == []
    assert convert_draft(ledger, order * times) == [DRAFT_LINE]
    ledger.layer_created("again")
    assert convert_draft(ledger, order) == []


@given(st.sets(st.sampled_from([*DRAFT, "experts"]), min_size=1, max_size=5))
def test_a_draft_layer_s_books_miss_whatever_was_never_created(created: set[str]) -> None:
    ledger = draft_of(created)
    with pytest.raises(ConversionMismatchError, match="1 layers of experts to become INT4 and 8"):
        convert_draft(ledger, created)


def shared_ledger(expected: int, converted: int, *, whole_model: bool = True) -> list[str]:
    ledger = ConversionLedger(
        expected_fp8_modules=0,
        head_wanted="bf16",
        whole_model=whole_model,
        expected_int4_modules=expected,
    )
    said: list[str] = []
    for name in range(converted):
        ledger.layer_created(str(name))
    for name in range(converted):
        for _ in range(2):
            ledger.int4_converted(str(name), modules=1, announce=said.append)
    return said


@given(st.integers(1, 200))
def test_shared_experts_of_int4_are_counted_in_the_same_line(count: int) -> None:
    assert shared_ledger(count, count) == [
        f"sparkdeploy: spark-hybrid active: fp8=0 layers, lm_head=bf16, "
        f"int4={count} layers of shared experts"
    ]


@pytest.mark.parametrize(("expected", "converted"), [(0, 3), (6, 3), (3, 2)])
def test_another_count_of_shared_experts_stops_the_start(expected: int, converted: int) -> None:
    with pytest.raises(ConversionMismatchError, match=f"expects {expected} layers of shared"):
        shared_ledger(expected, converted)
    assert len(shared_ledger(expected, converted, whole_model=False)) == 1
