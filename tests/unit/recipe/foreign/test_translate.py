"""A recipe of others as one of ours: each value, its line, and what was left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.foreign.source_recipe import tables
from sparkdeploy.recipe.load import Resolved, load_engine, load_recipe
from tests.unit.recipe.foreign.samples import ALLOWED, CASES, SHELF, V1, V2, WITH_WORDS, left_out


def test_a_recipe_of_eugrs_becomes_ours(theirs: Callable[..., Resolved]) -> None:
    resolved = theirs(V1)
    recipe, serve = resolved.recipe, resolved.recipe.serve
    assert (recipe.name, recipe.title) == ("parrot-35b-fp8", "Parrot on one machine, or two")
    assert resolved.engine.name == "cuda-0.33"
    assert recipe.model.repo == "bird/Parrot-35B-FP8"
    assert recipe.model.served_names == ("bird/Parrot-35B-FP8",)
    assert (serve.port, serve.max_model_len, serve.gpu_memory_utilization) == (8001, 65536, 0.8)
    assert serve.default_chat_template_kwargs == {"enable_thinking": True, "thinking_budget": 4096}
    assert serve.compilation_config == {"pass_config": {"fuse_act_quant": True}}
    assert serve.speculative is not None
    assert (serve.speculative.method, serve.speculative.tokens) == ("mtp", 2)
    assert serve.speculative.further == {"moe_backend": "triton"}
    assert serve.extra_args == ["--async-scheduling"]
    assert serve.env == {"VLLM_MARLIN_USE_ATOMIC_ADD": "1"}
    assert (recipe.cluster.tensor_parallel, recipe.cluster.backend) == (2, "native")


def test_every_value_remembers_its_line(theirs: Callable[..., Resolved]) -> None:
    resolved = theirs(V1)
    lines = V1.splitlines()
    for path, words in {
        ("serve", "max_model_len"): "--max-model-len",
        ("serve", "speculative"): "--speculative-config",
        ("cluster", "tensor_parallel"): "-tp",
        ("serve", "env", "VLLM_MARLIN_USE_ATOMIC_ADD"): "VLLM_MARLIN",
        ("engine",): "container:",
    }.items():
        line = resolved.origins[path].line
        assert line is not None
        assert words in lines[line - 1]


def test_no_line_is_lost_in_silence(theirs: Callable[..., Resolved]) -> None:
    resolved = theirs(V1)
    said = left_out(resolved)
    assert set(said) == {
        *("--host", "--distributed-executor-backend", "HF_TOKEN", "unused"),
        *("recipe_version", "build_args", "cluster_only"),
    }
    assert "the token never enters a container" in said["HF_TOKEN"]
    assert resolved.translation is not None
    assert "${HF_TOKEN}" not in repr(resolved.translation)


def test_a_command_is_made_from_the_defaults(theirs: Callable[..., Resolved]) -> None:
    resolved = theirs(V2)
    recipe = resolved.recipe
    assert resolved.engine.vllm == "0.32.0"
    assert recipe.image == "vllm/vllm-openai:v0.32.0"
    assert recipe.model.served_names == ("crow", "bird/Crow-8B")
    assert recipe.model.revision.startswith("1234567890")
    assert (recipe.cluster.min_nodes, recipe.cluster.max_nodes) == (2, 4)
    assert (recipe.serve.trust_remote_code, recipe.serve.enable_prefix_caching) == (True, False)
    assert recipe.serve.kv_cache_dtype == "fp8"
    assert recipe.serve.extra_args == ["--cudagraph-capture-sizes", "1", "2"]
    said = left_out(resolved)
    assert said["no_flag_of_vllm"] == "no flag of vLLM's is called so"
    assert {"NCCL_IB_HCA", "executor_config", "post_exec", "variants", "metadata"} <= said.keys()


def test_their_launch_parameters_are_set(theirs: Callable[..., Resolved]) -> None:
    resolved = theirs(V1, "max_model_len=4096", "tensor_parallel=4", "max_num_seqs=7")
    recipe = resolved.recipe
    assert recipe.serve.max_model_len == 4096
    assert recipe.cluster.tensor_parallel == 4
    # It has no place in the command, and is one of vLLM's flags.
    assert recipe.serve.max_num_seqs == 7
    assert str(resolved.origins["serve", "max_num_seqs"]) == "--set max_num_seqs"
    assert theirs(V1, "serve.port=8005").recipe.serve.port == 8005


def test_a_variant_is_taken_by_its_name(theirs: Callable[..., Resolved]) -> None:
    resolved = theirs(V2, "max_num_seqs=3", "variant=long")
    recipe, serve = resolved.recipe, resolved.recipe.serve
    assert (serve.max_model_len, serve.max_num_seqs, serve.kv_cache_dtype) == (131072, 3, "auto")
    assert serve.env == {"NCCL_DEBUG": "INFO", "VLLM_LOGGING_LEVEL": "DEBUG"}
    assert (recipe.image, recipe.model.revision) == ("vllm/vllm-openai:v0.33.0", "2" * 40)
    assert (recipe.mods[0].folder, recipe.mods[1].run) == ("mods/crow", "nc 8000")
    assert recipe.cluster.min_nodes == 3
    line = resolved.origins["serve", "max_model_len"].line
    assert line is not None
    assert V2.splitlines()[line - 1] == "    max_model_len: 131072"
    with pytest.raises(RecipeError, match="no variant lang") as refused:
        theirs(V2, "variant=lang")
    assert refused.value.hint == "did you mean long?"


def test_words_before_vllm_and_mounts_are_understood(theirs: Callable[..., Resolved]) -> None:
    resolved = theirs(WITH_WORDS)
    recipe = resolved.recipe
    assert recipe.model.path is not None
    assert recipe.model.path.endswith("/models/owl")
    assert recipe.model.repo == "bird/Owl-1B"
    assert recipe.serve.env == {"OMP_NUM_THREADS": "4"}
    assert recipe.serve.max_num_seqs == 4
    assert [mod.name for mod in recipe.mods] == ["pip install owl-kernels"]
    said = left_out(resolved)
    assert said["pip install more"].startswith("a shell's command beside vLLM")
    assert said["CUDA_HOME"] == "the image decides it"
    assert "package" not in said


def test_nothing_foreign_passes_without_consent(tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text(WITH_WORDS)
    with pytest.raises(RecipeError, match="your consent") as refused:
        load_recipe(SHELF, str(path))
    said = str(refused.value.detail)
    assert "pip install owl-kernels: a mod runs as root" in said
    assert "an image is code of others" in said
    assert "model.path" in said


@pytest.mark.parametrize(("container", "engine", "image"), CASES["images"])
def test_an_image_under_a_local_name_is_known(
    theirs: Callable[..., Resolved], container: str, engine: str, image: str | None
) -> None:
    resolved = theirs(V1.replace("vllm-node", container))
    assert (resolved.engine.name, resolved.recipe.image) == (engine, image)


def test_an_unknown_local_image_is_asked_for(theirs: Callable[..., Resolved]) -> None:
    unknown = V1.replace("vllm-node", "my-build")
    with pytest.raises(RecipeError, match="author's own machine") as refused:
        theirs(unknown)
    assert "--set engine=cuda-0.33" in str(refused.value.hint)
    assert theirs(unknown, "engine=cuda-0.33").engine.name == "cuda-0.33"


@pytest.mark.parametrize("name", sorted(tables()["images"]))
def test_what_stands_for_an_image_exists(name: str) -> None:
    known = tables()["images"][name]
    assert {*known} in ({"engine", "source", "date"}, {"image", "source", "date"})
    if "engine" in known:
        assert load_engine(SHELF, known["engine"]).runs_on == "cuda"


@pytest.mark.parametrize("table", ["keys", "flags", "env"])
def test_what_is_left_out_has_a_reason(table: str) -> None:
    assert all(isinstance(it, str) and len(it) >= 8 for it in tables()[table].values())


@pytest.mark.parametrize(("line", "server"), CASES["servers"])
def test_another_server_is_named_in_one_line(
    theirs: Callable[..., Resolved], line: str, server: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        theirs(f"model: a/b\ncontainer: vllm-node\n{line}\n")
    said = refused.value.message
    assert f"the recipe is for {server}, and sparkdeploy serves with vLLM" in said
    assert "\n" not in said


def test_a_recipe_of_ours_may_extend_one_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text(V1)
    child = tmp_path / "child.yaml"
    child.write_text(
        "schema: 1\nname: child\ntitle: t\nextends: theirs\nserve: {max_num_seqs: 2}\n"
    )
    recipe = load_recipe(SHELF, str(child), [ALLOWED]).recipe
    assert (recipe.serve.port, recipe.serve.max_num_seqs) == (8001, 2)


def test_a_file_of_something_else_is_no_recipe(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("services: {}\n")
    with pytest.raises(RecipeError, match="is no recipe"):
        load_recipe(SHELF, str(path))


def test_a_chat_template_beside_the_recipe_is_taken(
    theirs: Callable[..., Resolved], tmp_path: Path
) -> None:
    text = V1.replace("--enable-prefix-caching", "--chat-template bird.jinja")
    assert "the model's own template" in left_out(theirs(text))["--chat-template bird.jinja"]
    (tmp_path / "bird.jinja").write_text("x")
    assert theirs(text).recipe.serve.chat_template == str(tmp_path / "bird.jinja")


def test_a_mod_may_bring_flags_of_its_own(theirs: Callable[..., Resolved]) -> None:
    text = V1.replace("--async-scheduling", "--of-a-mod 1")
    with pytest.raises(RecipeError) as refused:
        theirs(text)
    assert "vLLM 0.33.0 has no flag --of-a-mod" in str(refused.value.detail)
    warned = theirs(text.replace("mods: []", "mods: [mods/brings-it]"))
    assert any("--of-a-mod" in line for line in warned.warnings)


def test_a_template_below_workspace_is_one_that_a_mod_brings(
    theirs: Callable[..., Resolved],
) -> None:
    text = V1.replace("--enable-prefix-caching", "--chat-template /workspace/bird.jinja")
    modded = theirs(text.replace("mods: []", "mods: [mods/bird]"))
    assert modded.recipe.serve.chat_template_of_mod == "bird.jinja"


@pytest.mark.parametrize(("lines", "form", "name", "title"), CASES["called"])
def test_a_recipe_is_called_as_its_author_calls_it(
    theirs: Callable[..., Resolved], lines: str, form: str, name: str, title: str
) -> None:
    resolved = theirs(command(f"vllm serve org/name\n{lines}"))
    assert resolved.translation is not None
    assert resolved.translation.format == form
    assert (resolved.recipe.name, resolved.recipe.title) == (name, title)


@pytest.mark.parametrize("words", CASES["models"])
def test_the_model_is_found_wherever_the_command_names_it(
    theirs: Callable[..., Resolved], words: str
) -> None:
    model = theirs(command(words, head="")).recipe.model
    assert (model.repo, model.revision == "abc") == ("org/name", "snapshots" in words)


def test_names_and_a_launch_are_taken_where_the_command_leaves_them_out(
    theirs: Callable[..., Resolved],
) -> None:
    made = "defaults: {served_model_name: [one, two]}\nlaunch: vllm serve org/name --port 8001\n"
    recipe = theirs(f"model: org/name\ncontainer: vllm-node\n{made}").recipe
    assert (recipe.model.served_names, recipe.serve.port) == (("one", "two"), 8001)


def test_a_patch_of_a_pull_request_is_asked_for_as_a_mod(theirs: Callable[..., Resolved]) -> None:
    text = command("vllm serve org/name\nbuild_args: [--apply-vllm-pr, '1,2']\nmods: [mods/x]")
    with pytest.raises(RecipeError, match="are not fetched while an image is built") as refused:
        theirs(text)
    both = "'mods=[{folder: mods/x}, {folder: mods/vllm-pr-1}, {folder: mods/vllm-pr-2}]'"
    hint = f"--set {both}; or do without: --set 'mods=[{{folder: mods/x}}]'"
    assert str(refused.value.hint).endswith(hint)
    assert theirs(text, "mods=[]").recipe.mods == []


def command(words: str, head: str = "model: org/name\n") -> str:
    return f"{head}container: vllm-node\ncommand: |\n  {words}\n"


@pytest.mark.parametrize(("said", "is_on"), [("true", True), ("false", False)])
def test_a_switch_is_set_by_its_parameter(
    theirs: Callable[..., Resolved], said: str, is_on: bool
) -> None:
    typed = f"enforce_eager={said}"
    assert theirs(command("vllm serve org/name"), typed).recipe.serve.enforce_eager is is_on
    made = "model: org/name\ncontainer: vllm-node\ndefaults: {enforce_eager: true}\n"
    assert theirs(made, typed).recipe.serve.enforce_eager is is_on
    odd = theirs(command("vllm serve org/name"), "enforce_eager=5")
    assert left_out(odd)["5"] == "--enforce-eager takes no value"
    other = theirs(command("vllm serve org/name"), f"async_scheduling={said}").recipe
    assert other.serve.extra_args == [f"--{'' if is_on else 'no-'}async-scheduling"]


@pytest.mark.parametrize(
    "line", ["cluster_only: true", "solo_only: true", "mode: cluster", "mode: solo"]
)
def test_one_machine_or_several_is_no_line_that_is_left_out(
    theirs: Callable[..., Resolved], line: str
) -> None:
    resolved = theirs(command(f"vllm serve org/name\n{line}"))
    cluster = resolved.recipe.cluster
    assert (cluster.min_nodes, cluster.max_nodes) == ((2, None) if "cluster" in line else (None, 1))
    assert left_out(resolved) == {}


@pytest.mark.parametrize(("words", "field", "expected"), CASES["set"])
def test_flags_are_read_as_vllm_reads_them(
    theirs: Callable[..., Resolved], words: str, field: str, expected: object
) -> None:
    recipe = theirs(command(f"vllm serve org/name {words}")).recipe
    found: Any = recipe.model_dump(exclude_none=True)
    for key in field.split("."):
        found = found[key]
    assert found == expected


@pytest.mark.parametrize(("words", "named", "why"), CASES["left_out"])
def test_what_has_no_place_is_named_with_the_reason(
    theirs: Callable[..., Resolved], words: str, named: str, why: str
) -> None:
    assert left_out(theirs(command(words), "serve.lora=[]"))[named].startswith(why)


def test_an_adapter_that_a_stranger_names_stays_the_strangers(tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text(command("vllm serve org/name --lora-modules k=/outside/secret"))
    for typed in ([], ["lora_modules=mine=org/adapter"]):
        resolved = None
        try:
            resolved = load_recipe(SHELF, str(path), typed)
        except RecipeError as refused:
            assert "serve.lora" in str(refused.detail)  # noqa: PT017 - one of two ways to be safe
        assert resolved is None or "/outside" not in repr(resolved.recipe)


@pytest.mark.parametrize(
    "text",
    [*CASES["odd"], command("vllm serve a/b --hf-overrides" + ".a" * 3000 + " 1")],
)
def test_what_is_odd_is_no_bug(theirs: Callable[..., Resolved], text: str) -> None:
    theirs(text, "serve.extra_args=[]")


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        *CASES["wrong"],
        ("model: a/b\ncontainer: x/y\ncommand: " + "{a}" * 5000 + "\ndefaults: {a: "
         + "x" * 100_000 + "}\n", "port=8001"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_a_mistake_and_no_bug(
    theirs: Callable[..., Resolved], text: str, setting: str
) -> None:
    with pytest.raises(RecipeError):
        theirs(text, setting)
