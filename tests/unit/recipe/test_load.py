"""Recipes: inheritance, origins, and every mistake in one report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.document import read_document
from sparkdeploy.recipe.flags import field_arguments
from sparkdeploy.recipe.load import Library, load_all, load_engine, load_recipe
from sparkdeploy.recipe.report import list_lines, origin_lines, recipe_rows
from tests.unit.conftest import REPOSITORY
from tests.unit.plain import plain_lines

SHIPPED = sorted(Library((REPOSITORY / "recipes",)).recipe_files())


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_is_valid_and_named_like_its_file(shipped: Library, name: str) -> None:
    assert load_recipe(shipped, name).recipe.name == name


def test_every_shipped_engine_is_valid(shipped: Library) -> None:
    names = set(shipped.engine_files())
    assert names == {"cuda-0.19", "cuda-0.25", "cuda-0.33", "cpu-0.25", "cpu-0.32", "image"}
    assert {load_engine(shipped, name).name for name in names} == names


def test_reported_figures_are_not_inherited(shipped: Library) -> None:
    assert load_recipe(shipped, "mtp-2").recipe.expect is None


def test_three_mistakes_come_in_one_report_with_file_line_and_fix(
    shipped: Library, tmp_path: Path
) -> None:
    path = write(
        tmp_path,
        "mine",
        "schema: 1\nname: mine\ntitle: t\nextends: v2\n"
        "serve:\n  prot: 8001\n  max_num_seqs: many\n"
        "checkpoint:\n  mtp: 'off'\n",
    )
    with pytest.raises(RecipeError) as caught:
        load_recipe(shipped, str(path))
    assert caught.value.exit_code == 3
    lines = (caught.value.detail or "").splitlines()
    assert len(lines) == 3
    assert f"{path}:6: serve.prot: unknown key; did you mean port?" in lines
    assert any(line.startswith(f"{path}:7: serve.max_num_seqs: 'many'") for line in lines)
    assert any("serve.speculative" in line and "MTP" in line for line in lines)


def test_a_key_that_stands_twice_is_a_mistake(shipped: Library, tmp_path: Path) -> None:
    text = "schema: 1\nname: a\ntitle: t\ntitle: u\nextends: v2\n"
    with pytest.raises(RecipeError) as caught:
        load_recipe(shipped, str(write(tmp_path, "a", text)))
    assert ":4: title: the key stands twice" in (caught.value.detail or "")


def test_a_recipe_that_extends_itself_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a", "schema: 1\nname: a\ntitle: t\nextends: b\n")
    write(tmp_path, "b", "schema: 1\nname: b\ntitle: t\nextends: a\n")
    with pytest.raises(RecipeError, match="extends itself: a -> b -> a"):
        load_recipe(Library((tmp_path,)), "a")


def test_a_users_recipe_may_extend_the_shipped_one_of_its_name(
    shipped: Library, tmp_path: Path
) -> None:
    write(tmp_path, "v2", "schema: 1\nname: v2\ntitle: mine\nextends: v2\nserve: {port: 9000}\n")
    recipe = load_recipe(Library((tmp_path, *shipped.folders)), "v2").recipe
    assert (recipe.title, recipe.serve.port) == ("mine", 9000)


def test_an_unknown_recipe_is_met_with_the_closest_name(shipped: Library) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(shipped, "v2-tk")
    assert caught.value.hint == "did you mean v2-tq?"


def test_set_overrides_one_value_and_is_its_origin(shipped: Library) -> None:
    resolved = load_recipe(shipped, "v2", ["serve.max_num_seqs=3", "limits.memory_floor_gib=2"])
    assert resolved.recipe.serve.max_num_seqs == 3
    assert resolved.recipe.limits.memory_floor_gib == 2.0
    assert str(resolved.origins["serve", "max_num_seqs"]) == "--set serve.max_num_seqs"
    assert resolved.recipe.serve.port == 8000


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("serve.kv_cache_dtype=turboquant_4bit_nc", "cannot read a turboquant_4bit_nc KV cache"),
        ("checkpoint.mtp='off'", "needs the MTP weights"),
        ("checkpoint.fp8_dense.mode=prebuilt", "need a repository"),
        ("checkpoint.fp8_dense.from=hub", "makes no sense with mode online"),
        ("checkpoint.fp8_dense={mode: prebuilt, from: folder}", "from: folder needs model.path"),
        ("checkpoint.fp8_dense={mode: prebuilt, from: hub, source: a/b}", "a source is named"),
        ("checkpoint.fp8_dense.source=a/b", "makes no sense with mode online"),
        ("checkpoint.fp8_dense={mode: prebuilt, source: a/b, layers: all}", "of shared experts"),
        ("serve.quantization=fp8", "says itself how it is quantised"),
        ("checkpoint.lm_head=fp8", "int8"),
        ("serve.extra_args=['--max-model-len', '1']", "--max-model-len has a field of its own"),
        ("serve.extra_args=['--seed=1', '--seed', '2']", "--seed is given twice"),
        ("serve.extra_args=['-tp', '2']", "--tensor-parallel-size is set by sparkdeploy"),
        ("serve.extra_args=['--no-enforce-eager']", "--enforce-eager has a field of its own"),
        ("serve.env={A-B: x}", "no environment name"),
        ("limits={canary_idle_s: 60, stall_s: 0}", "so that nobody waits for the token"),
        ("model.repo=null", "has neither repo nor path"),
        ("engine=cuda-0.19", "lacks"),
    ],
)
def test_a_contradiction_is_an_error(shipped: Library, assignment: str, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(shipped, "v2", [assignment])
    assert words in (caught.value.detail or "")


def test_what_is_no_mapping_or_no_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is not a mapping"):
        read_document(write(tmp_path, "list", "- 1\n"))
    with pytest.raises(RecipeError, match="not valid YAML"):
        read_document(write(tmp_path, "broken", "a: [1\n"))


@pytest.mark.parametrize("revision", ["/etc", "../../..", "refs/../..", "-x"])
def test_a_revision_cannot_leave_the_cache(shipped: Library, revision: str) -> None:
    with pytest.raises(RecipeError):
        load_recipe(shipped, "v2", [f"model.revision={revision}"])


def test_show_gives_the_origin_of_each_value(shipped: Library) -> None:
    lines = plain_lines(origin_lines(load_recipe(shipped, "v2")))
    assert any(line.startswith("serve.port: 8000") and "# baseline.yaml:" in line for line in lines)
    assert any(
        line.startswith('checkpoint.lm_head: "int8"') and "v2.yaml" in line for line in lines
    )
    assert any(line.startswith("serve.max_num_seqs: null") and "default" in line for line in lines)


def test_a_broken_recipe_of_the_user_does_not_hide_the_others(
    shipped: Library, tmp_path: Path
) -> None:
    write(tmp_path, "mine", "schema: 1\n")
    both = Library((tmp_path, *shipped.folders))
    rows = list(recipe_rows(load_all(both), both))
    assert list(load_all(both, {"v2", "nobody's"})) == ["v2"]
    text = "\n".join(plain_lines(list_lines(rows, [], {"v2": "fits"}, "v2")))
    assert "broken: recipe mine has 4 mistakes: " in text
    assert re.search(r"^  \* v2 +fits +51 ", text, re.MULTILINE)
    assert "v2 " in text


INT4_FP8 = "checkpoint.mtp_weights=int4-fp8"


@pytest.mark.parametrize(
    ("recipe", "settings", "words"),
    [
        ("hybrid", (), "does not draft by MTP"),
        ("dflash", (), "does not draft by MTP"),
        ("v2", ("serve.speculative={moe_backend: triton}",), "triton runs no INT4 experts"),
        ("v2", ("engine=cuda-0.19", "checkpoint.fp8_dense={mode: off}"), "came with 0.25.1"),
    ],
)
def test_a_draft_layer_that_cannot_be_shrunk_is_refused(
    shipped: Library, recipe: str, settings: tuple[str, ...], words: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(shipped, recipe, (INT4_FP8, *settings))
    assert words in f"{caught.value.message} {caught.value.detail}"


def test_the_dtype_of_a_state_becomes_vllms_flag(shipped: Library) -> None:
    serve = load_recipe(shipped, "v3-fast").recipe.serve
    flags = dict(field_arguments(serve))
    assert flags["mamba_ssm_cache_dtype"] == ("--mamba-ssm-cache-dtype", "bfloat16")
    assert "mamba_ssm_cache_dtype" not in dict(
        field_arguments(load_recipe(shipped, "v3").recipe.serve)
    )
    twice = ("serve.extra_args=[--mamba-ssm-cache-dtype, float16]",)
    with pytest.raises(RecipeError) as caught:
        load_recipe(shipped, "v3-fast", twice)
    assert "has a field of its own" in f"{caught.value.message} {caught.value.detail}"


SHARED_INT4 = "checkpoint.shared_experts=int4"


@pytest.mark.parametrize("recipe", ["v2", "v2-hub"])
def test_shared_experts_cannot_be_int4_and_fp8(shipped: Library, recipe: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(shipped, recipe, (SHARED_INT4,))
    told = f"{caught.value.message} {caught.value.detail}"
    assert "cannot become INT4 and be FP8" in told
    assert "set checkpoint.fp8_dense.mode to off" in told


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("serve.max_model_len=x", "serve.max_model_len: 'x' is wrong; Input should be a valid"),
        ("model.served_name=5", "Input should be a valid string or a valid list"),
        ("cluster.speculative=x", "Input should be a mapping or 'off'"),
        ("cluster.speculative={tokens: x}", "cluster.speculative.tokens: 'x' is wrong"),
        ("serve.lora=[{nam: x}]", "serve.lora.0.nam: unknown key; did you mean name?"),
        ("model.repo=x", "; for example Qwen/Qwen3-8B"),
        ("limits.memory_floor_gib=true", "Input should be a number"),
    ],
)
def test_a_wrong_value_is_told_where_it_stands_and_what_may_stand_there(
    shipped: Library, assignment: str, told: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(shipped, "v2", [assignment])
    assert told in (caught.value.detail or "")
