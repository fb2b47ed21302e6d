"""Which vLLM can do what, and what is refused when it cannot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkdeploy.errors import RecipeError
from sparkdeploy.plan.launch import serve_env
from sparkdeploy.recipe import releases
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.releases import Feature, family_among
from tests.unit.conftest import REPOSITORY

PUBLIC_SOURCE = r"vllm#\d+|\w+\.py\b|recipes/\w+\.yaml|wheel"
"""An issue, a file of vLLM or of this repository, or what a published wheel holds."""
FEATURES = [row for row in vars(releases).values() if isinstance(row, releases.Feature)]


@pytest.fixture
def with_engine(shipped: Library, tmp_path: Path) -> Library:
    """The shipped recipes beside engines of one vLLM release each, `e-0.22.1` and so on."""
    folder = tmp_path / "recipes" / "engines"
    folder.mkdir(parents=True)
    for vllm in (
        "0.19.1",
        "0.20.2",
        "0.22.1",
        "0.23.0",
        "0.25.1",
        "0.26.0",
        "0.28.1",
        "0.30.0",
        "0.32.0",
    ):
        (folder / f"e-{vllm}.yaml").write_text(
            f"schema: 1\nname: e-{vllm}\ntitle: t\nkind: wheel\nvllm: {vllm}\n"
        )
    return Library((tmp_path / "recipes", *shipped.folders))


def refusal(library: Library, recipe: str, *assignments: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(library, recipe, assignments)
    assert caught.value.exit_code == 3
    return caught.value.detail or ""


@pytest.mark.parametrize(
    ("feature", "last_without", "first_with"),
    [
        (releases.MTP, "0.18.1", "0.19.0"),
        (releases.ONLINE_FP8_BLOCK, "0.19.1", "0.20.2"),
        (releases.TURBOQUANT_HYBRID, "0.20.2", "0.21.0"),
        (releases.TURBOQUANT_SPECULATION, "0.20.2", "0.21.0"),
        (releases.LM_HEAD_METHOD, "0.18.1", "0.19.0"),
        (releases.DFLASH, "0.22.1", "0.23.0"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_each_row_begins_with_the_release_that_brought_it(
    feature: Feature, last_without: str, first_with: str
) -> None:
    assert feature in FEATURES
    assert not feature.is_in(last_without)
    assert feature.is_in(first_with)


@pytest.mark.parametrize(
    ("recipe", "vllm", "words"),
    [
        ("hybrid", "0.19.1", "lacks the online FP8 per-block method class"),
        ("v2-tq", "0.20.2", "lacks TurboQuant for models with linear attention"),
        ("dflash", "0.22.1", "lacks DFlash"),
    ],
)
def test_an_engine_too_old_for_a_recipe_is_refused_with_the_source(
    with_engine: Library, recipe: str, vllm: str, words: str
) -> None:
    said = refusal(with_engine, recipe, f"engine=e-{vllm}")
    assert words in said
    assert re.search(PUBLIC_SOURCE, said)


@pytest.mark.parametrize("vllm", ["0.26.0", "0.28.1"])
def test_a_release_known_to_be_bad_needs_consent(with_engine: Library, vllm: str) -> None:
    said = refusal(with_engine, "v2", f"engine=e-{vllm}")
    assert "known to be bad" in said
    assert "--allow-known-bad" in said
    allowed = load_recipe(with_engine, "v2", [f"engine=e-{vllm}", "allow_known_bad=true"])
    assert allowed.recipe.allow_known_bad


def test_an_image_is_named_by_content_or_by_a_tag(shipped: Library) -> None:
    assert "none is named" in refusal(shipped, "v2", "engine=image")
    assert "image" in refusal(shipped, "v2", "engine=image", "image='-v /:/x'")
    digests = ("sha256:" + "0" * 64, "a.test/b@sha256:" + "0" * 64, "0123456789ab")
    for named in (*digests, "vllm:latest", "a.test:5000/b/c:v0.33.0"):
        resolved = load_recipe(shipped, "v2", ["engine=image", f"image='{named}'"])
        assert resolved.engine.image == named


def test_the_page_on_engines_shows_every_row_of_the_table() -> None:
    page = (REPOSITORY / "docs" / "figures" / "engines.md").read_text()
    rows = [f"| {feature.name} | {feature.since} | {feature.source} |" for feature in FEATURES]
    assert [row for row in rows if row not in page] == []


@pytest.mark.parametrize(
    ("name", "architecture", "parsers"),
    [
        (
            "MiniMaxAI/MiniMax-M3",
            "MiniMaxM3SparseForConditionalGeneration",
            "minimax_m3 minimax_m3",
        ),
        ("meta-llama/Llama-3.3-70B-Instruct", "LlamaForCausalLM", "None llama3_json"),
        ("zai-org/GLM-4.5-Air-FP8", "Glm4MoeForCausalLM", "glm45 glm45"),
        ("zai-org/GLM-4.7", "Glm4MoeForCausalLM", "glm45 glm47"),
        ("deepseek-ai/DeepSeek-V3.1", "DeepseekV3ForCausalLM", "deepseek_v3 deepseek_v31"),
        ("deepseek-ai/DeepSeek-V3-0324", "DeepseekV3ForCausalLM", "None deepseek_v3"),
        ("mistralai/Magistral-Small-2509", "Mistral3ForConditionalGeneration", "mistral mistral"),
        ("mistralai/Mistral-7B-Instruct-v0.1", "MistralForCausalLM", ""),
        ("LiquidAI/LFM2.5-8B-A1B", "Lfm2MoeForCausalLM", "qwen3 lfm2"),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "Qwen3NextForCausalLM", "qwen3 hermes"),
    ],
)
def test_the_parsers_of_a_family(name: str, architecture: str, parsers: str) -> None:
    found = family_among(name, [architecture])
    assert (f"{found.parsers.reasoning} {found.parsers.tools}" if found else "") == parsers


def test_hybrids_keep_their_cache_from_the_release_on_that_took_it(with_engine: Library) -> None:
    for vllm, expected in (("0.25.1", None), ("0.30.0", "0")):
        resolved = load_recipe(with_engine, "baseline", [f"engine=e-{vllm}"])
        env = serve_env(resolved.recipe, resolved.engine)
        assert env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") == expected
    own = ["engine=e-0.30.0", "serve.env.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS='1'"]
    resolved = load_recipe(with_engine, "baseline", own)
    env = serve_env(resolved.recipe, resolved.engine)
    assert env["VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"] == "1"
