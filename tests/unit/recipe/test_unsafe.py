"""What a recipe from elsewhere may not do, and that no value of one is more than a value."""

from __future__ import annotations

import shutil
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sparkdeploy.apply.drafting import Request, resolve
from sparkdeploy.errors import RecipeError
from sparkdeploy.image.stages import stages_of
from sparkdeploy.plan.container import Deployment, Weights, container_spec
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.recipe.flags import VALUE_FLAGS, flag_of
from sparkdeploy.recipe.load import Library, Resolved, load_engine, load_recipe
from sparkdeploy.recipe.schema import Engine, Recipe
from sparkdeploy.settings import load_settings
from tests.unit.conftest import REPOSITORY
from tests.unit.plan.facts import FOLDERS, model_fact

if TYPE_CHECKING:
    from pathlib import Path

SHELF = Library((REPOSITORY / "recipes",))
V2 = load_recipe(SHELF, "v2")

UNSAFE = [
    "serve: {env: {PYTHONPATH: /m/hub}}",
    "serve: {env: {LD_AUDIT: /m/hub/x.so}}",
    "serve: {env: {VLLM_PLUGINS: none}}",
    "serve: {env: {VLLM_SERVER_DEV_MODE: '1'}}",
    "serve: {env: {VLLM_ALLOW_INSECURE_SERIALIZATION: '1'}}",
    "serve: {env: {NCCL_NET_PLUGIN: /m/hub/x.so}}",
    "serve: {env: {TRITON_CACHE_DIR: /m/hub}}",
    "serve: {env: {HF_ENDPOINT: 'http://elsewhere'}}",
    "serve: {env: {https_proxy: 'http://elsewhere'}}",
    "serve: {extra_args: [--worker-cls, evil.Worker]}",
    "serve: {extra_args: ['--logits_processors=evil']}",
    "serve: {extra_args: [--allowed-local-media-path=/]}",
    "serve: {extra_args: [--tool-parser-plug, x.py]}",
    "serve: {extra_args: ['--kv-transfer-config.kv_connector=evil']}",
    "serve: {compilation_config: {inductor_passes: {x: evil.run}}}",
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


@pytest.mark.parametrize("body", UNSAFE)
def test_the_users_own_recipes_are_the_users_words(tmp_path: Path, body: str) -> None:
    own = load_settings().config_dir / "recipes"
    own.mkdir(parents=True)
    shutil.copy(from_elsewhere(tmp_path, body), own / "their.yaml")
    assert resolved("their").recipe.name == "their"


def test_what_is_typed_is_the_users_word(tmp_path: Path) -> None:
    recipe = from_elsewhere(tmp_path, "")
    typed = resolved(recipe, "serve.env={PYTHONPATH: /x}", "model.path=/etc")
    assert typed.recipe.serve.env == {"PYTHONPATH": "/x"}


def test_a_recipe_cannot_consent_to_itself(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as refused:
        resolved(from_elsewhere(tmp_path, "allow_unsafe: true"))
    assert "cannot allow itself" in str(refused.value.detail)


def test_a_link_out_of_the_recipes_folder_is_followed_first(tmp_path: Path) -> None:
    recipe = from_elsewhere(tmp_path, "model: {path: weights}")
    (tmp_path / "elsewhere" / "weights").symlink_to("/etc")
    with pytest.raises(RecipeError) as refused:
        resolved(recipe)
    assert "/etc lies outside" in str(refused.value.detail)


def test_a_model_beside_its_recipe_or_in_the_hub_cache_is_fine(tmp_path: Path) -> None:
    cache = load_settings().hub_cache
    for place in ("weights", str(cache / "models--a--b" / "snapshots" / "0")):
        resolved(from_elsewhere(tmp_path, f"model: {{path: '{place}'}}"))


@pytest.mark.parametrize(
    "argument",
    [
        "--hos=0.0.0.0",
        "--api-k",
        "--speculative-config.method",
        "-sc",
        "--middle",
        "--trust_remote_code",
    ],
)
def test_a_flag_that_sparkdeploy_decides_is_known_in_every_spelling(
    tmp_path: Path, argument: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        resolved(from_elsewhere(tmp_path, f"serve: {{extra_args: ['{argument}']}}"))
    words = str(refused.value.detail)
    assert "set by sparkdeploy" in words or "given twice" in words


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
    weights, deployment = Weights(model_fact()), Deployment("main", exposure)
    spec, plain = (
        container_spec(
            Resolved(item, V2.engine, {}),
            weights,
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
