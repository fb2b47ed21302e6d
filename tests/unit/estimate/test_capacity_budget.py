"""Memory budgets: against what the field saw, warnings, laws, and one screen for each recipe."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.authoring.model_facts import WhenMissing
from sparkdeploy.authoring.outlook import ground_for, planned_outlook
from sparkdeploy.authoring.summary import summary_lines
from sparkdeploy.estimate.hardware import Hardware
from sparkdeploy.estimate.memory import Budget, budget_warnings, loaded_weights, make_budget
from sparkdeploy.estimate.model import WeightKind
from sparkdeploy.estimate.report import memory_as_dict, memory_lines
from sparkdeploy.estimate.verdict import verdict_of
from sparkdeploy.recipe.load import Resolved, load_all, load_recipe
from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.console import console
from tests.unit.conftest import SHIPPED
from tests.unit.estimate.shipped import BIG, HARDWARE, MODELS, SPARK
from tests.unit.plain import plain_lines

GIB = 2**30
V2 = load_recipe(SHIPPED, "v2")


def budget(*settings: str, recipe: str = "v2", hardware: Hardware = SPARK) -> Budget:
    return make_budget(load_recipe(SHIPPED, recipe, settings), BIG, hardware)


def test_the_fields_v2_had_the_kv_cache_that_headers_alone_predict_within_ten_percent() -> None:
    """355K tokens logged by 0.19 at 0.90 are 35.2 GiB, by the layers and groups of its cache."""
    made = budget("serve.gpu_memory_utilization=0.9")
    assert made.available_bytes / GIB == pytest.approx(35.2, rel=0.10)


def test_conversion_halves_the_shared_experts_and_the_head() -> None:
    stored, loaded = BIG.weight_bytes, loaded_weights(BIG, V2.recipe)
    scales = 144 * 192 * 4
    assert loaded[WeightKind.SHARED_EXPERTS] == stored[WeightKind.SHARED_EXPERTS] // 2 + scales
    assert loaded[WeightKind.LM_HEAD] == 762_839_040 + 4 * 248_320
    assert loaded[WeightKind.EXPERTS] == stored[WeightKind.EXPERTS]


def test_an_int8_head_s_logits_are_counted_in_fp32() -> None:
    # 1,024 rows, the vocabulary, and logits, an FP32 copy and a sorted one.
    rounded, exact = (
        next(item for item in made.reserves if "logits" in item.source)
        for made in (budget("checkpoint.lm_head=bf16"), budget())
    )
    assert rounded.size_bytes == 1024 * 248_320 * (2 + 4 + 4)
    assert exact.size_bytes == 1024 * 248_320 * (4 + 4 + 4)
    assert "logits in BF16" in rounded.source
    assert "logits in FP32" in exact.source


def test_a_draft_layer_of_int4_and_fp8_frees_three_gigabytes() -> None:
    shrunk = load_recipe(SHIPPED, "v2", ("checkpoint.mtp_weights=int4-fp8",)).recipe
    before, after = loaded_weights(BIG, V2.recipe), loaded_weights(BIG, shrunk)
    elements = before[WeightKind.MTP_EXPERTS] // 2
    assert elements == 256 * 3 * 1024 * 3072
    assert after[WeightKind.MTP_EXPERTS] == elements // 2 + 2 * (elements // 128)
    router = 256 * 3072 * 2
    dense = (before[WeightKind.MTP_DENSE] - router) // 2
    assert after[WeightKind.MTP_DENSE] == router + dense + 4 * (dense // 128**2)
    assert (sum(before.values()) - sum(after.values())) / GIB == pytest.approx(3.44, abs=0.01)
    untouched = before.keys() - {WeightKind.MTP_EXPERTS, WeightKind.MTP_DENSE}
    assert all(after[kind] == before[kind] for kind in untouched)


def test_graphs_and_a_drafter_are_counted_where_they_are() -> None:
    drafter = MODELS["z-lab/Qwen3.5-122B-A10B-DFlash"]
    taken_bytes = budget().taken_bytes
    assert taken_bytes - budget("serve.enforce_eager=true").taken_bytes == GIB // 2
    beside = make_budget(V2, replace(BIG, drafter=drafter), SPARK).taken_bytes
    assert beside - taken_bytes == sum(drafter.memory_bytes.values()) > GIB


def test_a_model_whose_weights_nobody_has_seen_has_none_to_add_a_draft_head_to() -> None:
    unseen = replace(BIG, weight_bytes={}, memory_bytes={})
    assert loaded_weights(unseen, load_recipe(SHIPPED, "v3").recipe) == {}


def test_a_head_tied_to_the_embedding_has_a_draft_head_all_the_same() -> None:
    kept = dict(BIG.weight_bytes)
    del kept[WeightKind.LM_HEAD]
    tied = replace(BIG, weight_bytes=kept, memory_bytes={})
    loaded = loaded_weights(tied, load_recipe(SHIPPED, "v3").recipe)
    assert loaded[WeightKind.LM_HEAD] == 65_536 * (3072 + 4)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        # Of 5.96 GiB vLLM's own processes take 3.
        ("serve.gpu_memory_utilization=0.95", "memory floor is 4 GiB"),
        ("serve.gpu_memory_utilization=0.5", "weights and reserves take"),
        ("serve.gpu_memory_utilization=0.6", "left for its cache"),
    ],
)
def test_what_cannot_work_is_said_before_the_wait(setting: str, words: str) -> None:
    made = budget(setting)
    verdict = verdict_of(V2.recipe, made, BIG, tok_s=None)
    assert words in "\n".join((*budget_warnings(made), verdict.reason))


def test_a_gpu_with_memory_of_its_own_leaves_the_machine_its_own() -> None:
    made = budget("serve.gpu_memory_utilization=0.97", hardware=HARDWARE["h200"])
    assert list(budget_warnings(made)) == []
    assert "left for the machine" not in "\n".join(plain_lines(memory_lines(V2, BIG, made)))


def test_the_report_says_what_vllm_will_log() -> None:
    text = "\n".join(plain_lines(memory_lines(V2, BIG, budget())))
    assert "vLLM 0.25.1 will log: GPU KV cache size: " in text
    assert "for 262,144 tokens per request: " in text


def test_prefix_caching_takes_a_state_more() -> None:
    def states(assignment: str) -> set[int]:
        layout = budget(assignment).layout
        assert layout is not None
        return {group.cache.states for group in layout.groups} - {0}

    assert states("serve.enable_prefix_caching=true") == {4}
    # From 0.33 on one more, a snapshot within a prefill.
    assert states("engine=cuda-0.33") == {5}


def test_every_figure_of_the_report_is_in_its_json() -> None:
    content = memory_as_dict(V2, BIG, budget())
    assert content["kv_bytes_per_token"] == 26_624
    assert sum(content["stored_bytes"].values()) == BIG.total_bytes
    assert [row["tokens"] for row in content["contexts"]] == [8192, 32768, 131072, 262144]
    assert content["warnings"] == []


def test_a_model_that_states_no_context_has_no_count_of_its_requests() -> None:
    content = memory_as_dict(V2, BIG, replace(budget(), max_model_len=0))
    assert content["logged_tokens"] is None


def with_utilization(share: float) -> Resolved:
    return load_recipe(SHIPPED, "v2", [f"serve.gpu_memory_utilization={share}"])


RESOLVED = {share: with_utilization(share / 100) for share in (50, 70, 85, 100)}


@given(st.integers(0, 2**40), st.sampled_from(sorted(RESOLVED)))
def test_no_budget_is_negative_and_longer_requests_never_fit_more_often(
    memory_bytes: int, share: int
) -> None:
    hardware = Hardware("any", "any", memory_bytes, 1.0, "test")
    made = make_budget(RESOLVED[share], BIG, hardware)
    concurrency = [row.concurrency for row in made.rows()]
    assert made.available_bytes >= 0
    assert concurrency == sorted(concurrency, reverse=True)
    assert all(row.concurrency >= 0 and row.tokens >= 0 for row in made.rows())


def test_every_recipe_is_planned_on_one_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    settings = load_settings()
    ground = ground_for("spark", settings)
    for name, resolved in load_all(ground.recipe_library).items():
        assert isinstance(resolved, Resolved)
        outlook = planned_outlook(ground, resolved, WhenMissing.NOBODY)
        console.answer_blocks(summary_lines(outlook, settings))
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 40, name
        # A fix can be typed as it stands, and is not broken.
        assert max(len(line) for line in lines if not line.startswith("      fix: ")) <= 80, name
        judged = r"(fits|does not fit|may fit|would not start) on (2 x )?NVIDIA DGX Spark"
        assert re.match(judged, lines[0]), name
        assert (" 2 x " in lines[0]) == (resolved.recipe.cluster.least_nodes > 1), name
        assert sum(line.startswith("start: ") for line in lines) == 1, name
        assert resolved.recipe.preview is None or resolved.recipe.preview.split()[0] in str(lines)
