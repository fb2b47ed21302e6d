"""Every kind of recipe in miniature, with the real vLLM in real Docker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from sparkdeploy import labels
from sparkdeploy.node.host import DockerHost
from sparkdeploy.rehearsal.miniature import DRAFT_ROWS
from sparkdeploy.rehearsal.rehearse import MAX_TOKENS, RECORDED_EARLIER, SERVED_BEFORE
from sparkdeploy.rehearsal.requests import ANSWERED, PROMPT, SAMPLED
from tests.engine.program import Program
from tests.engine.recorded_texts import recorded_texts
from tests.engine.shipped_stages import REHEARSAL
from tests.families import config

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("host"),
    pytest.mark.runs("rehearse", "down"),
]

LAYERS = 4
ONE_TOKEN = 5
FP8_LAYERS = 3 * LAYERS
SEEDED = {**SAMPLED["top-k and top-p"], "seed": 7}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """One user for all rehearsals, so that a text recorded by one serves the next."""
    root = tmp_path_factory.mktemp("rehearsals")
    with recorded_texts(tmp_path_factory, root / "state"):
        yield Program(root)


def check_answers(report: dict[str, Any]) -> None:
    assert all(answer["tokens"] == 32 and answer["text"] for answer in report["answers"])
    assert report["tokens_a_second"] > 0


def engine_images(host: DockerHost) -> set[str]:
    """The images of this engine; other tests make some of their own meanwhile."""
    return {
        image.image_id
        for image in host.own_images()
        if image.labels.get(labels.ENGINE) == REHEARSAL
    }


def test_baseline_serves_the_untouched_checkpoint(program: Program) -> None:
    report = program.answer("rehearse", "baseline", "--keep")
    try:
        # A step of one token ended the engine where nothing drafts.
        assert ask(report, [ONE_TOKEN], {"temperature": 0.0})
    finally:
        program.run("down", "--yes", report["deployment"])
    check_answers(report)
    assert report["lm_head"] is None
    assert report["speculation"] is None


# The deployments of test_cli_deployments.py are converted so too.
@pytest.mark.slow
def test_hybrid_converts_three_layers_a_layer(program: Program) -> None:
    report = program.answer("rehearse", "hybrid")
    check_answers(report)
    assert (report["fp8_layers"], report["lm_head"]) == (FP8_LAYERS, "bf16")


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 2])
def test_mtp_drafts_and_says_what_hybrid_said_without_it(program: Program, tokens: int) -> None:
    report = program.answer("rehearse", f"mtp-{tokens}")
    check_answers(report)
    drafted = report["speculation"]
    assert drafted["draft_tokens"] == tokens * drafted["drafts"] > 0
    assert drafted["accepted_tokens"] > 0
    assert report["reference"] == RECORDED_EARLIER


# The rehearsal over two machines is of v2 too.
@pytest.mark.slow
def test_v2_has_an_int8_head_and_makes_its_own_reference(program: Program) -> None:
    report = program.answer("rehearse", "v2", "--fresh")
    check_answers(report)
    assert (report["fp8_layers"], report["lm_head"]) == (FP8_LAYERS, "int8")
    assert report["reference"] == SERVED_BEFORE


# v3 has a draft head too.
@pytest.mark.slow
def test_a_draft_head_changes_no_text_builds_nothing_and_leaves_nothing(
    program: Program, host: DockerHost
) -> None:
    images = engine_images(host)
    head = "checkpoint.draft_lm_head={rows: 32768, dtype: int8}"
    done = program.run("rehearse", "v2", "--set", head, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    check_answers(report)
    assert (report["fp8_layers"], report["lm_head"]) == (FP8_LAYERS, "int8")
    assert report["draft_head_rows"] == DRAFT_ROWS
    # Other rehearsals of v2 record the same text without a drafter; else it is served before.
    starts = {RECORDED_EARLIER: 1, SERVED_BEFORE: 2}[report["reference"]]
    drafted = report["speculation"]
    print(f"accepted {drafted['accepted_tokens']} of {drafted['draft_tokens']} drafted tokens")
    assert 0 < drafted["accepted_tokens"] <= drafted["draft_tokens"]
    assert len(re.findall(r"^  = image ", done.stderr, re.MULTILINE)) == 3 * starts
    assert "  + image" not in done.stderr
    # Nothing was built; another group may remove its own image meanwhile.
    assert engine_images(host) <= images
    assert [item.name for item in host.own_containers() if item.deployment == "rehearsal"] == []


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["dflash", "dflash-prose"])
def test_dflash_drafts_with_a_made_drafter_and_shares_the_int8_head(
    program: Program, recipe: str
) -> None:
    report = program.answer("rehearse", recipe)
    check_answers(report)
    assert (report["fp8_layers"], report["lm_head"]) == (FP8_LAYERS, "int8")
    drafted = report["speculation"]
    tokens = {"dflash": 12, "dflash-prose": 4}[recipe]
    assert drafted["draft_tokens"] == tokens * drafted["drafts"] > 0
    # A drafter with a head of nothing would have none accepted.
    assert drafted["accepted_per_position"][0] > drafted["drafts"] / 3
    assert report["is_compared"]
    assert "made for the twin" in report["not_proved"]


# The drafts of the default run are those of DFlash, held against a text without them.
@pytest.mark.slow
def test_v3_says_what_v2_says_one_and_four_at_once(program: Program) -> None:
    report = program.answer("rehearse", "v3", "--keep")
    try:
        at_once = four_at_once(report)
        seeded = [ask(report, PROMPT, SEEDED) for _ in range(3)]
        ask_in_every_way_at_once(report)
    finally:
        program.run("down", "--yes", report["deployment"])
    check_answers(report)
    assert (report["fp8_layers"], report["lm_head"]) == (FP8_LAYERS, "int8")
    assert (report["draft_int4_layers"], report["draft_fp8_layers"]) == (1, 8)
    assert report["draft_head_rows"] == DRAFT_ROWS
    # Held against the text without a drafter, which v2's is held against too.
    assert report["reference"] in {RECORDED_EARLIER, SERVED_BEFORE}
    assert at_once == {answer["prompt"]: answer["text"] for answer in report["answers"]}
    drafted = report["speculation"]
    print(f"accepted {drafted['accepted_tokens']} of {drafted['draft_tokens']} drafted tokens")
    assert drafted["accepted_tokens"] > 0
    # generation_config.json of a twin has top_k, which ended the engine once.
    assert refused(report) == ["sampling with min-p"]
    assert len(set(seeded)) == 1


# Its text is another one than v2's, so it serves a reference of its own: two starts.
@pytest.mark.slow
def test_v3_fast_drafts_and_says_what_it_says_without(program: Program) -> None:
    report = program.answer("rehearse", "v3-fast")
    check_answers(report)
    assert report["lm_head"] == "int4"
    assert (report["draft_int4_layers"], report["draft_fp8_layers"]) == (1, 8)
    assert (report["fp8_layers"], report["shared_int4_layers"]) == (0, FP8_LAYERS)
    assert report["reference"] == SERVED_BEFORE, "no other conversion's text stands for this one's"
    assert report["speculation"]["accepted_tokens"] > 0


def four_at_once(report: dict[str, Any]) -> dict[str, str]:
    """Ask all prompts of a rehearsal at the same time; the text by prompt."""
    prompts = [answer["prompt"] for answer in report["answers"]]
    with ThreadPoolExecutor(len(prompts)) as pool:
        greedy = partial(ask, report, extra={"temperature": 0.0})
        return dict(zip(prompts, pool.map(greedy, prompts), strict=True))


def ask_in_every_way_at_once(report: dict[str, Any]) -> None:
    """Sample three times over in each way that is no refusal; an answer that is none raises."""
    ways = [extra for kind, extra in SAMPLED.items() if kind != "min-p"] * 3
    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(partial(ask, report, PROMPT), ways))) == len(ways) > 20


def ask(report: dict[str, Any], prompt: str | list[int], extra: Mapping[str, Any]) -> str:
    body = {"model": report["model"], "prompt": prompt, "max_tokens": MAX_TOKENS, **extra}
    url = f"{report['base_url']}/v1/completions"
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=300) as response:
        text: str = json.load(response)["choices"][0]["text"]
        return text


def refused(report: dict[str, Any]) -> list[str]:
    """What was asked and not answered."""
    return [item["what"] for item in report["asked"] if item["outcome"] != ANSWERED]


# check_turboquant_cpu.py and check_turboquant_maths.py compare the back end in each format.
@pytest.mark.slow
def test_turboquant_runs_with_mtp_and_says_what_it_says_without(program: Program) -> None:
    report = program.answer("rehearse", "v2-tq")
    check_answers(report)
    assert "a turboquant_4bit_nc cache" in report["proved"]
    assert not [change for change in report["changes"] if "kv_cache_dtype" in change]
    assert report["speculation"]["accepted_tokens"] > 0
    assert report["reference"] == SERVED_BEFORE


# tests/engine/checkpoint builds such an overlay, tests/engine/inside reads it, and the next test
# serves tensors of that kind.
@pytest.mark.slow
def test_a_rehearsal_serves_prebuilt_tensors(program: Program) -> None:
    source = "checkpoint.fp8_dense.source=Qwen/Qwen3.5-122B-A10B-FP8"
    mode = "checkpoint.fp8_dense.mode=prebuilt"
    report = program.answer("rehearse", "hybrid", "--set", mode, "--set", source)
    check_answers(report)
    assert (report["fp8_layers"], report["lm_head"]) == (FP8_LAYERS, "bf16")


# Each FP8 reader is held on real layers in tests/engine/inside.
@pytest.mark.slow
def test_a_rehearsal_serves_a_finished_hybrid(program: Program) -> None:
    report = program.answer(
        "rehearse", "hybrid", "--set", "checkpoint.fp8_dense={mode: prebuilt, from: hub}"
    )
    check_answers(report)
    assert (report["fp8_layers"], report["lm_head"]) == (FP8_LAYERS, "bf16")


FAMILIES = {
    "llama": "tool_call_parser: llama3_json, enable_auto_tool_choice: true",
    "nemotron-h": "tool_call_parser: qwen3_coder, enable_auto_tool_choice: true",
    "gpt-oss": "max_num_seqs: 4",
    "gemma3": "kv_cache_dtype: fp8",
    "gemma4": "tool_call_parser: gemma4, enable_auto_tool_choice: true",
    "qwen3-moe": "tool_call_parser: qwen3_coder, enable_auto_tool_choice: true",
    "qwen3-next": "tool_call_parser: hermes, enable_auto_tool_choice: true, "
    "kv_cache_dtype: turboquant_4bit_nc",
    "deepseek-v3": "tool_call_parser: deepseek_v3, enable_auto_tool_choice: true",
    "mistral": "tool_call_parser: hermes, enable_auto_tool_choice: true",
    "glm4-moe": "tool_call_parser: glm45, enable_auto_tool_choice: true, "
    "speculative: {method: mtp, tokens: 1}",
    "qwen3-dense": "runner: pooling, convert: embed",
}
IN_THE_DEFAULT_RUN = {"llama"}


def other_recipe(folder: Path, family: str, serve: str) -> Path:
    """A recipe of another family: its model's folder has a config.json and nothing else."""
    model = folder / f"model-{family}"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config(family)))
    recipe = folder / f"{family}.yaml"
    recipe.write_text(
        f"schema: 1\nname: {family}\ntitle: {family}\nengine: cuda-0.33\n"
        f"model: {{path: {model}}}\nserve: {{max_model_len: 65536, {serve}}}\n"
    )
    return recipe


@pytest.mark.parametrize(
    "family",
    [
        name if name in IN_THE_DEFAULT_RUN else pytest.param(name, marks=pytest.mark.slow)
        for name in FAMILIES
    ],
)
def test_a_recipe_of_another_family_answers(program: Program, tmp_path: Path, family: str) -> None:
    recipe = other_recipe(tmp_path, family, FAMILIES[family])
    words = ("--name", f"other-{family}", "--allow-unsafe")
    report = program.answer("rehearse", str(recipe), *words)
    assert not report["is_compared"]
    assert "start" in report["proved"]
    assert "weights" in report["not_proved"]
    # vLLM refuses min-p beside drafts on every engine.
    assert refused(report) == (["sampling with min-p"] if "speculative" in FAMILIES[family] else [])
    if "tool_call_parser" in FAMILIES[family]:
        assert "a tool call" in report["proved"]
    has_turboquant = "a turboquant_4bit_nc cache" in report["proved"]
    assert has_turboquant is ("turboquant" in FAMILIES[family])


def test_a_parser_that_does_not_exist_is_said_before_anything_starts(
    program: Program, tmp_path: Path
) -> None:
    recipe = other_recipe(tmp_path, "llama", "tool_call_parser: lama3_json")
    done = program.run("rehearse", str(recipe))
    assert done.returncode == 3
    assert "lama3_json" in done.stderr
    assert "llama3_json" in done.stderr
