"""Speed by context: what attention reads of a cache, and from where on a narrower one is faster."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from sparkdeploy.estimate.acceptance import read_acceptance
from sparkdeploy.estimate.attention import AttentionPace, AttentionTable, read_attention
from sparkdeploy.estimate.contexts import (
    CONTEXTS,
    ContextOutlook,
    context_lines,
    context_outlook,
    contexts_as_dict,
    rounded,
    wins_words,
)
from sparkdeploy.estimate.decode import decode_step
from sparkdeploy.estimate.hardware import read_hardware
from sparkdeploy.estimate.model_facts import read_shipped_facts
from sparkdeploy.estimate.speed import Speed, fit_speed
from sparkdeploy.recipe.load import Library, load_recipe
from tests.unit.conftest import REPOSITORY

RECIPES = REPOSITORY / "recipes"
FACTS = RECIPES / "facts"
MODELS = read_shipped_facts(FACTS / "models.yaml")
HARDWARE = read_hardware(FACTS / "hardware.yaml")
SPARK, H100, H200 = (HARDWARE[name] for name in ("spark", "h100", "h200"))
ACCEPTANCE = read_acceptance(FACTS / "speculation.yaml")
SHIPPED = read_attention(FACTS / "attention.yaml", HARDWARE)
TABLE = AttentionTable(
    measured_on=H100,
    source="a test",
    best_share=0.9,
    measured={
        "auto": AttentionPace(0.9, 0.0),
        "fp8": AttentionPace(0.8, 0.0),
        "turboquant_4bit_nc": AttentionPace(0.5, 10e-6),
        "turboquant_3bit_nc": AttentionPace(0.1, 10e-6),
    },
)
TURBOQUANT = ("v2-tq", "v2-tq-k8v4", "v2-tq-3bit")


def outlook(name: str, speed: Speed, longest_tokens: int = 262_144) -> ContextOutlook:
    resolved = load_recipe(Library((RECIPES,)), name)
    facts = MODELS[resolved.recipe.model.known_as]
    found = context_outlook(resolved, facts, ACCEPTANCE, speed, longest_tokens)
    assert found is not None
    return found


def shipped_speed(hardware: str = "spark") -> Speed:
    baseline = load_recipe(Library((RECIPES,)), "baseline")
    known = {"baseline": baseline}
    return fit_speed(HARDWARE[hardware], known, MODELS, ACCEPTANCE, SHIPPED)


def test_a_share_grows_with_the_clocks_that_a_byte_may_take() -> None:
    """On a machine like the H100 with half the bandwidth, instructions hold up half as much."""
    half = replace(H100, name="half", bandwidth_bytes_s=H100.bandwidth_bytes_s / 2)
    assert TABLE.pace("turboquant_3bit_nc", half).share == pytest.approx(0.2)
    assert TABLE.pace("turboquant_4bit_nc", half).share == TABLE.best_share
    assert TABLE.pace("turboquant_4bit_nc", H100) == AttentionPace(0.5, 10e-6)
    faster = TABLE.pace("turboquant_4bit_nc", H200).share
    assert faster == pytest.approx(0.5 * H100.bandwidth_bytes_s / H200.bandwidth_bytes_s)


def test_what_memory_holds_up_is_held_up_by_memory_anywhere() -> None:
    # Of 17 rows and more the codes are unpacked twice.
    assert TABLE.pace("turboquant_4bit_nc", H100, 16).share == 0.5
    assert TABLE.pace("turboquant_4bit_nc", H100, 17).share == 0.25
    assert TABLE.pace("auto", H100, 48).share == TABLE.best_share
    assert TABLE.pace("auto", H200).share == TABLE.best_share
    assert TABLE.pace("bfloat16", SPARK).share == TABLE.best_share


def test_a_step_takes_its_bytes_at_the_share_and_its_layers_fixed_cost() -> None:
    speed = Speed(H100, TABLE, 1.0, None)
    row = outlook("v2-tq", speed).rows[-1]
    cache_bytes = 262_144 * 14 * 2 * 262
    assert row.step.cache_bytes == cache_bytes
    bandwidth = H100.bandwidth_bytes_s
    rest_s = (row.step.total_bytes - cache_bytes) / bandwidth
    # 16 heads share a KV head; with two drafts their 48 rows have the codes unpacked three times.
    expected_s = rest_s + cache_bytes / (0.5 / 3 * bandwidth) + 14 * 10e-6
    assert speed.duration_s(row.step) == pytest.approx(expected_s)


@pytest.mark.parametrize("drafted", [1, 2])
def test_verified_tokens_share_one_pass_and_each_draft_takes_its_own(drafted: int) -> None:
    """12 layers of the model go over the cache once a step, the draft layer once a draft."""
    settings = [f"serve.speculative={{method: mtp, tokens: {drafted}}}"]
    resolved = load_recipe(Library((RECIPES,)), "v2-tq", settings)
    facts = MODELS[resolved.recipe.model.known_as]
    step = decode_step(resolved, facts, ACCEPTANCE, context_tokens=1000)
    assert step is not None
    assert step.attention_passes == 12 + drafted
    assert step.cache_bytes == (12 + drafted) * 1000 * 2 * 262


def test_the_first_faster_context_is_where_the_fixed_cost_is_won_back() -> None:
    speed = Speed(SPARK, TABLE, 1.0, None)
    found = outlook("v2-tq", speed)
    share = TABLE.pace("turboquant_4bit_nc", SPARK, 48).share
    a_token_s = 14 * 2 * (1024 / 0.9 - 262 / share) / SPARK.bandwidth_bytes_s
    assert found.wins_from == int(14 * 10e-6 / a_token_s) + 1
    at_first = next(row for row in found.rows if row.context_tokens > (found.wins_from or 0))
    assert at_first.plain is not None
    assert speed.duration_s(at_first.step) < speed.duration_s(at_first.plain)


def test_a_format_that_cannot_be_fast_says_where_not_to_use_it() -> None:
    found = outlook("v2-tq-3bit", Speed(H100, TABLE, 1.0, None), 131_072)
    assert found.wins_from is None
    assert wins_words(found) == (
        "turboquant_3bit_nc is not faster than auto at any context up to 131,072 tokens: use it "
        "for the room, not for the speed"
    )


def test_the_table_stands_for_all_and_has_a_second_column_for_a_narrower_cache() -> None:
    speed = shipped_speed()
    plain = list(context_lines(outlook("v2", speed)))
    assert plain[0] == "one request by context, KV cache auto"
    assert not [line for line in plain if "faster" in line or "auto tok/s" in line]
    narrow = list(context_lines(outlook("v2-tq", speed)))
    assert narrow[1].endswith("auto tok/s")
    contexts = [int(line.split()[0].replace(",", "")) for line in narrow[2:9]]
    assert contexts == list(CONTEXTS)
    assert "not measured on this machine" in narrow[-2]
    assert "2.6 bytes a clock come to each multiprocessor here, 12.8 there" in narrow[-1]
    on_h100 = list(context_lines(outlook("v2-tq", shipped_speed("h100"))))
    assert on_h100[-1].endswith(f"of the bandwidth: {SHIPPED.source}")


def test_a_model_without_a_growing_cache_has_no_such_table() -> None:
    resolved = load_recipe(Library((RECIPES,)), "v2")
    facts = replace(MODELS[resolved.recipe.model.known_as], architecture=None)
    assert context_outlook(resolved, facts, ACCEPTANCE, shipped_speed(), 0) is None
    assert contexts_as_dict(None) is None


@pytest.mark.parametrize(
    ("tokens", "words"), [(1, 1), (99, 99), (101, 110), (1604, 1700), (24_000, 24_000)]
)
def test_a_context_is_rounded_up_to_two_digits(tokens: int, words: int) -> None:
    assert rounded(tokens) == words


def where_it_wins(recipe: str, hardware: str) -> str:
    first = outlook(recipe, shipped_speed(hardware)).wins_from
    if first is None:
        return "at no context"
    return "at every context" if first == 1 else f"from about {rounded(first):,} tokens on"


@pytest.mark.parametrize("recipe", TURBOQUANT)
def test_a_recipe_says_where_the_planner_sees_it_win(recipe: str) -> None:
    """Change recipes/NAME.yaml where this fails: `plan NAME --hardware spark` has the words."""
    text = (RECIPES / f"{recipe}.yaml").read_text()
    said = " ".join(re.sub(r"\n\s*#", "", text).split())
    on_spark, on_h100 = where_it_wins(recipe, "spark"), where_it_wins(recipe, "h100")
    assert f"on a Spark it is faster than v2 {on_spark}, on an H100 {on_h100}" in said


def test_the_table_of_the_docs_is_the_planners() -> None:
    text = (REPOSITORY / "docs" / "capacity.md").read_text()
    recipes, speed = ("v2", "v2-kv8", "v2-tq-k8v4", "v2-tq", "v2-tq-3bit"), shipped_speed()
    columns = [outlook(name, speed).rows for name in recipes]
    for rows in zip(*columns, strict=True):
        speeds = " | ".join(f"{speed.tokens_per_second(row.step):.1f}" for row in rows)
        assert f"| {rows[0].context_tokens:,} | {speeds} |" in text
    firsts = [outlook(name, speed).wins_from or 0 for name in recipes[1:]]
    words = ("always" if it == 1 else f"{rounded(it):,} tokens" for it in firsts)
    assert f"| faster than v2 from about | | {' | '.join(words)} |" in text
