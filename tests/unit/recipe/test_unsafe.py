"""What a recipe from elsewhere may not do, and that no value of one is more than a value."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import RecipeError
from sparkdeploy.image.stages import stages_of
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.flags import VALUE_FLAGS, flag_of
from sparkdeploy.recipe.load import Library, Resolved, load_engine, load_recipe
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import load_settings
from tests.fakes.plans import FOLDERS, model_fact
from tests.launching import container_spec
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

SHELF = Library((REPOSITORY / "recipes",))
V2 = load_recipe(SHELF, "v2")

UNSAFE = [
    "serve: {env: {PYTHONPATH: /m/hub}}",
    "serve: {extra_args: [--worker-cls, evil.Worker]}",
    "serve: {compilation_config: {inductor_passes: {x: evil.run}}}",
    "serve: {trust_remote_code: true}",
    "serve: {load_format: pt}",
    "serve: {override_generation_config: {evil: 1}}",
    "serve: {<<: {trust_remote_code: true}}",
    "serve: {speculative: {method: dflash, tokens: 2, model: ../x}}\ncheckpoint: {mtp: 'off'}",
    "cluster: {speculative: {method: dflash, tokens: 2, model: /x}}",
    "serve: {speculative: {method: mtp, tokens: 2, code_revision: x}}",
    "cluster: {backend: ray}",
    "limits: {memory_floor_gib: 3.99}",
    f"engine: image\nimage: there/x@sha256:{'0' * 64}",
    "model: {path: /etc}",
    "serve: {chat_template: /etc/passwd}",
]


def from_elsewhere(folder: Path, body: str) -> str:
    path = folder / "elsewhere" / "their.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"schema: 1\nname: their\ntitle: t\nextends: v2\n{body}\n")
    return str(path)


def resolved(recipe: str, *assignments: str) -> Resolved:
    return resolve(Request(recipe, assignments), load_settings())


@pytest.mark.parametrize("body", UNSAFE)
def test_a_recipe_from_elsewhere_needs_consent(tmp_path: Path, body: str) -> None:
    recipe = from_elsewhere(tmp_path, body)
    with pytest.raises(RecipeError) as refused:
        resolved(recipe)
    assert "--allow-unsafe" in f"{refused.value.detail} {refused.value.hint}"
    assert "their.yaml" in f"{refused.value.detail} {refused.value.message}"
    assert resolved(recipe, "allow_unsafe=true").recipe.allow_unsafe


def test_a_recipe_cannot_consent_to_itself(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as refused:
        resolved(from_elsewhere(tmp_path, "allow_unsafe: true"))
    assert "cannot allow itself" in str(refused.value.detail)


def test_all_that_needs_consent_is_listed_at_once_with_its_line(tmp_path: Path) -> None:
    body = (
        "serve:\n"
        "  trust_remote_code: true\n"
        "  chat_template: /etc/passwd\n"
        "  env:\n"
        "    CUDA_HOME: /x\n"
        "    NCCL_NET: evil\n"
        "  extra_args: [--worker-cls, evil.Worker]\n"
        "limits: {memory_floor_gib: 1}\n"
    )
    with pytest.raises(RecipeError) as refused:
        resolved(from_elsewhere(tmp_path, body))
    assert "asks for 6 things that need your consent" in refused.value.message
    lines = str(refused.value.detail).splitlines()
    for line, words in (
        (6, "serve.trust_remote_code: True: the model's repository runs Python"),
        (7, "serve.chat_template: /etc/passwd lies outside"),
        (9, "serve.env.CUDA_HOME: CUDA_HOME=/x: not on the list"),
        (10, "serve.env.NCCL_NET: NCCL_NET=evil: without consent it is IB|Socket"),
        (11, "serve.extra_args.0: --worker-cls evil.Worker: not on the list"),
        (12, "limits.memory_floor_gib: 1.0: below 4 GiB"),
    ):
        assert [item for item in lines if f"their.yaml:{line}: {words}" in item], words
    assert "--allow-unsafe" in str(refused.value.hint)


HARMLESS = [
    "limits: {memory_floor_gib: 8}",
    "serve: {trust_remote_code: false}",
    "serve: {env: {VLLM_MARLIN_USE_ATOMIC_ADD: '1', NCCL_NET: IB}}",
    "serve: {extra_args: [--async-scheduling, --block-size, '64', --moe-backend=marlin]}",
    "serve: {compilation_config: {cudagraph_mode: FULL_AND_PIECEWISE, custom_ops: [all]}}",
    "serve: {override_generation_config: {temperature: 0.6, top_p: 0.95, max_new_tokens: null}}",
    "serve: {load_format: fastsafetensors, attention_backend: FLASHINFER, kv_cache_dtype: fp8}",
    "serve: {tool_call_parser: minimax_m2, reasoning_parser: minimax_m2_append_think}",
    "model: {repo: nvidia/Qwen3.6-35B-A3B-NVFP4, served_name: qwen35b}",
    "cluster: {tensor_parallel: 4, backend: native}",
]


@pytest.mark.parametrize("body", HARMLESS)
def test_a_harmless_recipe_from_elsewhere_needs_no_consent(tmp_path: Path, body: str) -> None:
    assert resolved(from_elsewhere(tmp_path, body)).recipe.name == "their"


@pytest.mark.parametrize(
    "value", ["--headless", "-x", "", "a b", "a\nb", "a\x1b[2J", "--api-key=x"]
)
@pytest.mark.parametrize(
    "field", ["attention_backend", "reasoning_parser", "tool_call_parser", "load_format"]
)
def test_no_value_passes_for_a_flag(field: str, value: str) -> None:
    content = V2.recipe.model_dump(by_alias=True)
    content["serve"][field] = value
    with pytest.raises(ValidationError):
        Recipe.model_validate(content)


text = st.text(st.characters(exclude_categories=["Cs"]))


def changed(path: tuple[str, ...], value: Any) -> Recipe | None:
    """The recipe with one value changed, or None when the format refuses it."""
    content = V2.recipe.model_dump(by_alias=True)
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    try:
        return Recipe.model_validate(content)
    except ValidationError:
        return None


STRINGS = [
    ("title",),
    ("model", "served_name"),
    *(("serve", field) for field in VALUE_FLAGS if field not in {"max_model_len"}),
]


@given(st.sampled_from(STRINGS), text, st.sampled_from(Exposure))
def test_whatever_stands_in_a_recipe_the_shape_of_its_container_stays(
    path: tuple[str, ...], value: str, exposure: Exposure
) -> None:
    recipe = changed(path, value)
    if recipe is None:
        return
    deployment = Deployment("main", exposure)
    spec, plain = (
        container_spec(
            Resolved(item, V2.engine, {}),
            model_fact(),
            image="i",
            deployment=deployment,
            folders=FOLDERS,
        )
        for item in (recipe, V2.recipe)
    )
    for part in ("cap_drop", "cap_add", "devices", "mounts", "network", "read_only_root", "user"):
        assert getattr(spec, part) == getattr(plain, part)
    assert spec.security_options == ("no-new-privileges",)
    # What is printable besides changes with the Unicode that a Python knows.
    kinds = {unicodedata.category(sign) for item in spec.labels.values() for sign in item}
    assert not kinds & {"Cc", "Cs", "Zl", "Zp"}
    flags = [word for word in map(flag_of, spec.command) if word]
    expected = [word for word in map(flag_of, plain.command) if word]
    assert set(expected) ^ set(flags) <= set(VALUE_FLAGS.values())
    host = spec.command.index("--host")
    assert spec.command[host + 1] == exposure.host


ENGINE = load_engine(SHELF, "cuda-0.25")
CALM = st.from_regex(r"[\w./:@+ ;-]{1,20}\n?", fullmatch=True)


def instructions(engine: Engine) -> list[list[str]]:
    stages = stages_of(engine, base_source="registry", architecture="aarch64", resources=REPOSITORY)
    return [
        [line.split()[0] for line in stage.dockerfile.splitlines() if line[:1].isupper()]
        for stage in stages
    ]


@given(st.sampled_from(["vllm", "torch", "cuda", "torch_arch_list", "note", "image"]), text | CALM)
def test_no_value_of_an_engine_adds_an_instruction_to_a_dockerfile(field: str, value: str) -> None:
    content = ENGINE.model_dump(by_alias=True)
    place = content["base"] if field == "image" else content
    place[field] = value
    try:
        engine = Engine.model_validate(content)
    except ValidationError:
        return
    assert instructions(engine) == instructions(ENGINE)
