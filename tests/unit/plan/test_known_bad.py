"""What a release is known to do wrong: who meets a row, and what is started instead."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy.node import facts
from sparkdeploy.node.facts import NodeFact
from sparkdeploy.plan.known_bad import CONDITIONS, RecipeOnEngine, failures, mended, rows
from sparkdeploy.plan.report import backend_lines, plan_lines
from sparkdeploy.recipe.load import Library, Resolved, load_recipe
from sparkdeploy.recipe.releases import parse_version, releases
from tests.fakes.plans import DOCKER, SPARK, observed, plan
from tests.unit.checks import recorded
from tests.unit.plain import plain_lines

OFF = "--no-enable-flashinfer-autotune"
SLEEP = "serve.extra_args=[--enable-sleep-mode]"
FP8, NVFP4 = "qwen3.6-35b-mtp", "qwen3.6-35b-nvfp4"


def case_of(resolved: Resolved, vllm: str, gpus: int = 1) -> RecipeOnEngine:
    return RecipeOnEngine(resolved.recipe, resolved.engine.model_copy(update={"vllm": vllm}), gpus)


def met(shipped: Library, recipe: str, vllm: str, *settings: str, gpus: int = 1) -> set[str]:
    case = case_of(load_recipe(shipped, recipe, settings), vllm, gpus)
    return {row.name for row, _ in failures(case)}


def test_every_row_says_what_can_be_told_and_by_whom() -> None:
    flags = {form for release in releases().values() for form in release.spellings}
    for row in rows():
        assert row.to is None or parse_version(row.from_) <= parse_version(row.to), row.name
        assert set(row.when) <= set(CONDITIONS), row.name
        assert row.fix or row.arguments, row.name
        assert {it for it in row.arguments if it.startswith("-")} <= flags, row.name
        assert re.search(r"vllm#\d+", row.source), row.name
    assert {it for row in rows() for it in row.when} == set(CONDITIONS)


def test_what_a_fix_sets_can_be_typed(shipped: Library) -> None:
    fixes = [re.findall(r"--set ('[^']*'|[^\s,]+)", row.fix) for row in rows()]
    assert sum(map(len, fixes)) > len(fixes)
    for words in fixes:
        for word in words:
            load_recipe(shipped, FP8, shlex.split(word))


@pytest.mark.parametrize(
    ("name", "recipe", "vllm", "settings", "gpus"),
    [
        ("prefix caching beside MTP", FP8, "0.25.1", (), 1),
        ("prefix caching beside MTP", NVFP4, "0.33.0", (), 1),
        ("sleep mode", "gpt-oss-120b", "0.25.1", (SLEEP,), 1),
        ("memory at the start", "gpt-oss-120b", "0.29.0", (), 1),
        ("FlashInfer's tuning over several GPUs", "gpt-oss-120b", "0.29.0", (), 2),
        ("FlashInfer's tuning over several GPUs", "gpt-oss-120b", "0.26.0", (), 4),
        ("DeepGEMM", FP8, "0.24.0", (), 1),
        ("DeepGEMM", FP8, "0.27.1", (), 1),
        ("Marlin for NVFP4 experts", NVFP4, "0.33.0", (), 1),
        (
            "Marlin for NVFP4 experts",
            NVFP4,
            "0.33.0",
            ("serve.extra_args=[--moe-backend=marlin]",),
            1,
        ),
    ],
)
def test_a_recipe_meets_a_row(
    shipped: Library, name: str, recipe: str, vllm: str, settings: tuple[str, ...], gpus: int
) -> None:
    assert name in met(shipped, recipe, vllm, *settings, gpus=gpus)


@pytest.mark.parametrize(
    ("name", "recipe", "vllm", "settings", "gpus"),
    [
        # Left open, 0.25.1 caches nothing where layers keep states.
        ("prefix caching beside MTP", FP8, "0.25.1", ("serve.enable_prefix_caching=null",), 1),
        ("prefix caching beside MTP", NVFP4, "0.33.0", ("serve.enable_prefix_caching=false",), 1),
        ("prefix caching beside MTP", "qwen3.6-35b", "0.25.1", (), 1),
        ("prefix caching beside MTP", "gpt-oss-120b", "0.25.1", (), 1),
        ("sleep mode", "gpt-oss-120b", "0.25.1", (SLEEP.replace("--enable", "--no-enable"),), 1),
        ("memory at the start", "gpt-oss-120b", "0.33.0", (), 1),
        ("FlashInfer's tuning over several GPUs", "gpt-oss-120b", "0.25.1", (), 2),
        ("FlashInfer's tuning over several GPUs", "gpt-oss-120b", "0.33.0", (), 2),
        ("FlashInfer's tuning over several GPUs", "gpt-oss-120b", "0.29.0", (), 1),
        ("DeepGEMM", FP8, "0.25.1", (), 1),
        ("DeepGEMM", FP8, "0.24.0", ("serve.env={VLLM_USE_DEEP_GEMM: '0'}",), 1),
        ("Marlin for NVFP4 experts", "qwen3.8-27b-nvfp4", "0.33.0", (), 1),
        ("Marlin for NVFP4 experts", NVFP4, "0.33.0", ("engine=cuda-0.25",), 1),
        ("Marlin for NVFP4 experts", NVFP4, "0.33.0", ("serve.enable_expert_parallel=true",), 1),
    ],
)
def test_another_does_not(
    shipped: Library, name: str, recipe: str, vllm: str, settings: tuple[str, ...], gpus: int
) -> None:
    assert name not in met(shipped, recipe, vllm, *settings, gpus=gpus)


@pytest.mark.parametrize(
    "words",
    [
        [OFF],
        ["--disable-flashinfer-autotune"],
        ["--enable_flashinfer_autotune=False"],
        ["--kernel-config.enable_flashinfer_autotune=false"],
        ["--kernel-config", '{"enable_flashinfer_autotune": false}'],
    ],
)
def test_who_turned_it_off_already_is_told_nothing(shipped: Library, words: list[str]) -> None:
    recipe = load_recipe(shipped, "gpt-oss-120b").recipe
    serve = recipe.serve.model_copy(update={"extra_args": words})
    resolved = load_recipe(shipped, "gpt-oss-120b")
    case = case_of(
        replace(resolved, recipe=recipe.model_copy(update={"serve": serve})), "0.29.0", 2
    )
    assert "FlashInfer's tuning over several GPUs" not in {row.name for row, _ in failures(case)}
    assert mended(case) is case.recipe


def test_who_insists_is_warned_and_believed(shipped: Library) -> None:
    resolved = load_recipe(
        shipped, "gpt-oss-120b", ["serve.extra_args=[--enable-flashinfer-autotune]"]
    )
    case = case_of(resolved, "0.29.0", 2)
    assert (False, "remove --enable-flashinfer-autotune") in {
        (is_mended, row.fix) for row, is_mended in failures(case)
    }
    assert OFF not in mended(case).serve.extra_args


def test_the_arguments_of_a_row_are_added_once(shipped: Library) -> None:
    case = case_of(load_recipe(shipped, "gpt-oss-120b"), "0.29.0", 2)
    recipe = mended(case)
    assert recipe.serve.extra_args == [OFF]
    assert mended(replace(case, recipe=recipe)) is recipe


@pytest.mark.parametrize("choice", ["marlin", "triton", "b12x", "auto"])
def test_experts_that_a_recipe_chooses_stay(shipped: Library, choice: str) -> None:
    setting = f"serve.extra_args=[--moe-backend, {choice}]"
    case = case_of(load_recipe(shipped, NVFP4, [setting]), "0.33.0")
    assert mended(case) is case.recipe


def test_a_draft_layer_in_16_bits_does_not_get_the_experts_kernel(shipped: Library) -> None:
    named = load_recipe(shipped, NVFP4)
    assert mended(case_of(named, "0.33.0")).serve.speculative == named.recipe.serve.speculative
    left_open = load_recipe(shipped, NVFP4, ["serve.speculative.moe_backend=null"])
    drafting = mended(case_of(left_open, "0.33.0")).serve.speculative
    assert drafting is not None
    assert drafting.further == {"moe_backend": "auto"}


def test_the_plan_says_it_and_starts_what_it_says(shipped: Library) -> None:
    made = plan(shipped, observed(), NVFP4)
    said = " ".join(plain_lines(plan_lines(made)))
    assert "so it is started with --moe-backend b12x" in said
    assert "prefix caching beside MTP" in said
    assert "experts b12x (known to fail: Marlin for NVFP4 experts); vLLM chooses the rest" in said
    (planned,) = made.nodes
    assert planned.spec is not None
    assert "--moe-backend b12x" in " ".join(planned.spec.command)


@pytest.mark.parametrize(
    ("recipe", "setting", "words"),
    [
        ("gpt-oss-120b-fast", "serve.port=8001", "back ends: vLLM chooses"),
        (NVFP4, "serve.extra_args=[--moe-backend=triton]", "experts triton (the recipe's); vLLM"),
        ("v2", "serve.port=8001", "experts MARLIN (expected of vLLM); linear layers MarlinL"),
        ("v2", "engine=cpu-0.32", None),
    ],
)
def test_the_plan_names_back_ends_and_whose_choice_they_are(
    shipped: Library, recipe: str, setting: str, words: str | None
) -> None:
    said = "\n".join(backend_lines(plan(shipped, observed(), recipe, setting)))
    assert (words in said) if words is not None else not said


def test_the_guard_of_a_gpu_reads_the_kernel_s_log_where_it_may(shipped: Library) -> None:
    def devices(node: NodeFact, *settings: str) -> tuple[str, ...]:
        (planned,) = plan(shipped, observed(node=node), "baseline", *settings).nodes
        assert planned.spec is not None
        return planned.spec.devices

    open_log = replace(SPARK, shows_kernel_log=True)
    assert devices(SPARK) == ()
    assert devices(open_log) == ("/dev/kmsg:/dev/kmsg:r",)
    assert devices(open_log, "engine=cpu-0.32", "serve.attention_backend=null") == ()


@pytest.mark.parametrize(
    ("recording", "text", "shows"),
    [
        ("spark", "0\n", True),
        ("spark", "1\n", False),
        ("spark", "", False),
        ("spark", None, False),
        ("no-gpu", "0\n", False),
    ],
)
def test_a_log_is_shown_where_the_kernel_hides_it_from_nobody(
    recording: str, text: str | None, shows: bool
) -> None:
    machine = recorded.load("spark")
    if recording == "no-gpu":
        machine = replace(machine, commands={})
    if text is not None:
        files = {**machine.files, "/proc/sys/kernel/dmesg_restrict": text}
        machine = replace(machine, files=files)
    seen = facts.look_at(machine, "spark", DOCKER, Path("/models"))
    assert seen.shows_kernel_log is shows
