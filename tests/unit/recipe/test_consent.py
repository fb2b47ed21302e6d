"""What a recipe from elsewhere may not do, and that no value of one is more than a value."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import ConsentNeededError, RecipeError
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.launch import bound_host
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.flags import VALUE_FLAGS, flag_of
from sparkdeploy.recipe.load import Resolved, load_engine, load_recipe
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import load_settings
from tests.fakes.plans import FOLDERS, made_stages, model_fact
from tests.launching import container_spec
from tests.unit.conftest import SHIPPED
from tests.unit.program import Run

V2 = load_recipe(SHIPPED, "v2")

ASKED = [
    "serve: {env: {PYTHONPATH: /m/hub}}",
    "serve: {extra_args: [--worker-cls, evil.Worker]}",
    "serve: {extra_args: [--seed, '1']}",
    "serve: {hf_overrides: {max_position_embeddings: 65536}}",
    "serve: {default_chat_template_kwargs: {enable_thinking: false}}",
    "serve: {speculative: {method: custom_class, tokens: 2}}\ncheckpoint: {mtp: 'off'}",
    "serve: {lora: [{name: x, path: /etc}]}",
    "mods: [{run: echo}]",
    "checkpoint: {fp8_dense: {mode: prebuilt, source: /etc}}",
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
    "limits: {memory_floor_gib: 0}",
    "serve: {extra_args: [other/model]}",
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


@pytest.mark.parametrize("body", ASKED)
def test_a_recipe_from_elsewhere_needs_consent(tmp_path: Path, body: str) -> None:
    recipe = from_elsewhere(tmp_path, body)
    with pytest.raises(RecipeError) as refused:
        resolved(recipe)
    assert "--allow-unsafe" in f"{refused.value.detail} {refused.value.hint}"
    assert "their.yaml" in f"{refused.value.detail} {refused.value.message}"
    assert resolved(recipe, "allow_unsafe=true").recipe.allow_unsafe


def test_a_consent_lasts_as_long_as_its_files_and_what_is_asked(tmp_path: Path) -> None:
    body = "serve: {chat_template: a.jinja}\nmods: [{folder: mods/m}]"
    recipe = from_elsewhere(tmp_path, body)
    theirs = tmp_path / "elsewhere"
    (theirs / "a.jinja").write_text("one")
    (theirs / "mods" / "m").mkdir(parents=True)
    (theirs / "mods" / "m" / "run.sh").write_text("echo one\n")

    def ask() -> Path:
        with pytest.raises(ConsentNeededError) as needed:
            resolved(recipe)
        assert needed.value.record is not None
        return needed.value.record

    def allow() -> None:
        record = ask()
        record.parent.mkdir(parents=True, exist_ok=True)
        record.touch()
        assert len(resolved(recipe).allowed) == 2

    allow()
    for file in ("a.jinja", "mods/m/run.sh", "their.yaml"):
        (theirs / file).write_text((theirs / file).read_text() + "# changed\n")
        allow()
    (theirs / "mods" / "m" / "more.sh").write_text("")
    allow()
    # What is beyond the size that an image build takes is in no digest, and allowed by none.
    with (theirs / "mods" / "m" / "large").open("wb") as large:
        large.truncate(65 << 20)
    assert ask() != ask()
    (theirs / "mods" / "m" / "large").unlink()
    assert len(resolved(recipe).allowed) == 2
    (tmp_path / "key").write_text((theirs / "a.jinja").read_text())
    (theirs / "a.jinja").unlink()
    (theirs / "a.jinja").symlink_to(tmp_path / "key")
    assert not ask().exists()


def test_what_a_recipe_of_ones_own_sets_is_no_question_but_its_switches(tmp_path: Path) -> None:
    """A stranger that extends it names another model."""
    own = load_settings().config_dir / "recipes"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(
        "schema: 1\nname: mine\ntitle: t\nextends: v2\n"
        "serve: {trust_remote_code: true, extra_args: [--seed, '1'], env: {A: b}}\n"
    )
    theirs = tmp_path / "their.yaml"
    theirs.write_text("schema: 1\nname: their\ntitle: t\nextends: mine\n")
    assert not resolved("mine").allowed
    with pytest.raises(ConsentNeededError) as needed:
        resolved(str(theirs))
    assert "asks for 1 thing " in needed.value.message
    assert "trust_remote_code" in str(needed.value.detail)


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
        "    NCCL_NET: IB\n"
        "  extra_args: [--async-scheduling, --worker-cls, evil.Worker]\n"
        "limits: {memory_floor_gib: 1}\n"
    )
    with pytest.raises(ConsentNeededError) as refused:
        resolved(from_elsewhere(tmp_path, body))
    assert "asks for 7 things that need your consent" in refused.value.message
    lines = str(refused.value.detail).splitlines()
    for line, words in (
        (6, "serve.trust_remote_code: True: the model's repository runs Python"),
        (7, "serve.chat_template: /etc/passwd: vLLM reads this file"),
        (9, "serve.env.CUDA_HOME: CUDA_HOME=/x: it loads code of its choice"),
        (10, "serve.env.NCCL_NET: NCCL_NET=IB: it loads code of its choice"),
        (11, "serve.extra_args.0: --async-scheduling: it changes how vLLM computes"),
        (11, "serve.extra_args.1: --worker-cls evil.Worker: it loads code of its choice"),
        (12, "limits.memory_floor_gib: 1.0: below 4 GiB"),
    ):
        assert [item for item in lines if f"their.yaml:{line}: {words}" in item], words
    assert "--allow-unsafe" in str(refused.value.hint)


ORDINARY = [
    "limits: {memory_floor_gib: 8}",
    "serve: {trust_remote_code: false}",
    "serve: {override_generation_config: {temperature: 0.6, top_p: 0.95, max_new_tokens: null}}",
    "serve: {load_format: fastsafetensors, attention_backend: FLASHINFER, kv_cache_dtype: fp8}",
    "serve: {tool_call_parser: minimax_m2, reasoning_parser: minimax_m2_append_think}",
    "model: {repo: nvidia/Qwen3.6-35B-A3B-NVFP4, served_name: qwen35b}",
    "cluster: {tensor_parallel: 4, backend: native}",
]


@pytest.mark.parametrize("body", ORDINARY)
def test_an_ordinary_recipe_from_elsewhere_needs_no_consent(tmp_path: Path, body: str) -> None:
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


@given(st.sampled_from(STRINGS), text, st.booleans())
def test_whatever_stands_in_a_recipe_the_shape_of_its_container_stays(
    path: tuple[str, ...], value: str, is_public: bool
) -> None:
    recipe = changed(path, value)
    if recipe is None:
        return
    deployment = Deployment("main", is_public=is_public)
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
    assert spec.command[host + 1] == bound_host(is_public=is_public)


ENGINE = load_engine(SHIPPED, "cuda-0.25")
CALM = st.from_regex(r"[\w./:@+ ;-]{1,20}\n?", fullmatch=True)


def instructions(engine: Engine) -> list[list[str]]:
    stages = made_stages(engine)
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


def test_a_plan_names_what_up_will_ask_about_and_asks_nothing(tmp_path: Path, run: Run) -> None:
    body = "mods: [{run: touch /tmp/x}]\nserve: {env: {" + ", ".join(f"A{n}: b" for n in range(9))
    recipe = str(from_elsewhere(tmp_path, body + "}}"))
    for words in ((), ("--hardware", "spark")):
        said = run("plan", recipe, *words).stdout
        assert "`up` asks for your consent to mods.0: touch /tmp/x: a mod runs as root" in said
        assert "`up` asks for your consent to 2 more things" in said
    assert "touch /tmp/x" in run("plan", recipe, "--show", "mods").stdout
    for line in ("plan {} --check", "up {}", "export compose {}"):
        refused = run(*line.format(recipe).split())
        assert refused.returncode == 3
        assert "10 things that need your consent" in refused.stderr
    assert not (load_settings().state_dir / "consents").exists()
