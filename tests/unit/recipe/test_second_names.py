"""Second names, starts and underscores of a flag are that flag, for every reader of arguments."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe import flags
from sparkdeploy.recipe.arguments import given_of
from sparkdeploy.recipe.consent import dangers
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.releases import newest
from sparkdeploy.recipe.rules import find_contradictions
from sparkdeploy.recipe.serve import Serve

SPELLINGS = sorted(newest().spellings)
DECIDED = {*flags.OWNED_FLAGS, *flags.FIELD_OF_FLAG}


@given(st.sampled_from(SPELLINGS), st.integers(0, 12), st.booleans(), st.sampled_from(["", "=1"]))
def test_what_vllm_takes_for_a_flag_is_that_flag(
    spelling: str, cut: int, has_underscores: bool, value: str
) -> None:
    known = newest().spellings
    word = spelling[: len(spelling) - cut] if spelling.startswith("--") else spelling
    meant = {flag for form, flag in known.items() if form.startswith(word)}
    assume(word in known or (len(meant) == 1 and len(word) > len("--no-")))
    flag = known.get(word) or meant.pop()
    if has_underscores:
        word = "--" + word[2:].replace("-", "_") if word.startswith("--") else word
    found = flags.flag_of(word + value)
    # What has a field or is decided here may be the nearest of several in another release.
    assert found == flag or found in DECIDED


def test_no_second_name_goes_round_a_field(shipped: Library) -> None:
    recipe = load_recipe(shipped, "v2").recipe
    for form in (form for form, it in newest().spellings.items() if it in flags.FIELD_OF_FLAG):
        serve = recipe.serve.model_copy(update={"extra_args": [form, "1"]})
        (mistake,) = find_contradictions(recipe.model_copy(update={"serve": serve}), None)[:1]
        assert "has a field of its own" in mistake.message


@pytest.mark.parametrize(
    "words",
    [
        ["--device-memory-utilization", "0.99"],
        ["--device_memory_utilization=0.99"],
        ["--gpu-memory-util", "0.99"],
        ["--device-mem=0.99"],
        ["--max-num-s", "512"],
        ["--disable-chunked-prefill"],
    ],
)
def test_the_memory_that_is_guarded_has_one_place(shipped: Library, words: list[str]) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe(shipped, "v2", [f"serve.extra_args={words}"])
    assert "has a field of its own" in str(refused.value.detail)


@pytest.mark.parametrize(
    ("word", "is_on"),
    [
        ("--async-scheduling", True),
        ("--no-async-scheduling", False),
        ("--async_sched=false", False),
        ("--disable-hybrid-kv-cache-manager", True),
        ("--enable-hybrid-kv-cache-manager", False),
        ("--enable_hybrid_kv_cache_manager=false", True),
        ("--no-disable-hybrid-kv-cache-manager", False),
    ],
)
def test_a_switch_is_read_by_its_opposite_too(word: str, is_on: bool) -> None:
    flag = "--async-scheduling" if "async" in word else "--disable-hybrid-kv-cache-manager"
    assert flags.switch_of([word], flag) is is_on


def test_short_forms_are_those_of_the_parsers() -> None:
    assert flags.flag_of("-tp") == "--tensor-parallel-size"
    assert flags.flag_of("-n2") == "--nnodes"
    assert flags.flag_of("-ac") == "--attention-config"
    assert flags.flag_of("-1") is None
    assert [it.form for it in given_of(Serve(extra_args=["-O3"]))][-1] == "-O3"


def test_what_takes_memory_beside_the_share_says_so() -> None:
    named = {flag for flag in newest().flags if "kv-cache-memory" in flag or "cpu-offload" in flag}
    for flag in named:
        danger = next(it for begin, it in dangers("flags").items() if flag.startswith(begin))
        assert danger == "it takes memory beside the share that is planned and guarded"
