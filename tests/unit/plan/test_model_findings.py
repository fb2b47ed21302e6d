"""A recipe is held against the small files of its model before anything is downloaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sparkdeploy.checkpoint.contents import Described
from sparkdeploy.checkpoint.repo_files import files_here
from sparkdeploy.checkpoint.safetensors import write_file
from sparkdeploy.checks.report import Finding, Verdict
from sparkdeploy.estimate.model_findings import (
    UNIQUE_NAMES,
    HeadCount,
    attention_findings,
    head_counts,
    model_findings,
    stray_layers,
)
from sparkdeploy.plan.models import layers_of
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.mods import FoundMod, maker_of
from sparkdeploy.recipe.serve import Serve
from sparkdeploy.settings import load_settings
from tests.unit.estimate.shipped import MODELS
from tests.unit.program import Run

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 720_720,
    "vocab_size": 32,
    "max_position_embeddings": 4096,
}
GATED = CONFIG | {
    "model_type": "qwen3_5_text",
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 12,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}


def write_model(folder: Path, files: dict[str, list[str]], **config: object) -> Path:
    """Write a model of one-element tensors: their names by file."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    for file, names in files.items():
        write_file(folder / file, {name: ("F32", (1,), bytes(4)) for name in names})
    return folder


@pytest.fixture
def plan_of(tmp_path: Path, run: Run) -> Any:
    """Return what `plan` says of a recipe for a folder, with an estimate and without."""

    def said(folder: Path, *settings: str, code: int = 4) -> str:
        recipe = tmp_path / "mine.yaml"
        recipe.write_text(
            "schema: 1\nname: mine\ntitle: a model of mine\nengine: cuda-0.33\n"
            f"model: {{path: {folder}}}\ncluster: {{tensor_parallel: 1}}\n"
        )
        words = [word for it in settings for word in ("--set", it)]
        plain = run("plan", str(recipe), "--allow-unsafe", *words)
        estimate = run("plan", str(recipe), "--allow-unsafe", "--hardware", "spark", *words)
        assert estimate.returncode == code, estimate.stderr
        text = plain.stdout + plain.stderr
        for line in estimate.stdout.splitlines():
            assert not line.startswith(("  x ", "  ! ")) or line in text, "both say the same"
        return estimate.stdout + estimate.stderr + text

    return said


@given(st.integers(1, 96), st.integers(1, 16), st.integers(1, 24), st.integers(1, 99))
def test_ranks_divide_heads_or_hold_the_same_one(
    kv: int, group: int, ranks: int, width: int
) -> None:
    sizes = {"num_key_value_heads": kv, "intermediate_size": width}
    config = CONFIG | {"num_attention_heads": kv * group, **sizes}
    found = [*attention_findings(Serve(), "a model", config, ranks=(ranks, 1))]
    taken = (kv * group) % ranks == 0 and (kv % ranks == 0 or ranks % kv == 0)
    taken = taken and width % ranks == 0
    assert bool(found) != taken
    for finding in found:
        assert finding.fix is not None
        assert f"cluster.pipeline_parallel={ranks}" in finding.fix
        first = finding.fix.partition("cluster.tensor_parallel=")[2].partition(" ")[0]
        assert all(it.divides(int(first)) for it in head_counts(config, layers_of(config)[0]))


@pytest.mark.parametrize(
    ("changes", "ranks", "uneven"),
    [
        ({}, 3, ["4 KV heads"]),
        ({}, 8, ["12 attention heads"]),
        (GATED, 3, ["4 KV heads", "4 linear-attention key heads"]),
        (GATED, 4, []),
        ({"model_type": "somebodys"}, 5, ["12 attention heads", "4 KV heads"]),
        ({"model_type": "somebodys", "kv_lora_rank": 8}, 3, []),
        ({"num_attention_heads": 10**400}, 3, []),
        ({"num_attention_heads": "12"}, 3, []),
        ({"model_type": ["qwen3"]}, 5, ["12 attention heads", "4 KV heads"]),
    ],
)
def test_each_kind_of_heads_is_named(
    changes: dict[str, Any], ranks: int, uneven: list[str]
) -> None:
    found = [*attention_findings(Serve(), "a model", CONFIG | changes, ranks=(ranks, 1))]
    named = ", ".join(uneven)
    assert [it.seen for it in found] == (
        [f"a model has {named}: tensor parallel size {ranks} does not divide them"] if named else []
    )


def test_one_group_of_states_is_on_every_rank() -> None:
    assert not HeadCount("groups", 2).divides(4)
    assert HeadCount("KV heads", 2, is_replicated=True).divides(4)
    assert not HeadCount("KV heads", 2, is_replicated=True).divides(3)


def test_a_recipe_of_three_nodes_is_refused_by_its_heads(run: Run) -> None:
    done = run(
        "plan", "v2", "--cluster", "--hardware", "spark", "--set", "cluster.tensor_parallel=3"
    )
    assert done.returncode == 4
    assert done.stdout.startswith("would not start on 3 x NVIDIA DGX Spark")
    for words in ("32 attention heads", "2 KV heads", "16 linear-attention key heads"):
        assert words in done.stdout
    assert "(2 or 4 or 8 or 16 works)" in done.stdout
    assert "--set cluster.tensor_parallel=1 --set cluster.pipeline_parallel=3" in done.stdout


def test_what_is_shipped_goes_with_its_models(shipped: Library) -> None:
    for name in shipped.recipe_files():
        resolved = load_recipe(shipped, name)
        known = MODELS.get(resolved.recipe.model.known_as)
        if known is not None:
            cluster = resolved.recipe.cluster
            ranks = cluster.tensor_parallel, cluster.pipeline_parallel
            described = Described(known.config)
            assert not [*model_findings(resolved, described, ranks=ranks)], name


names = st.integers(1, 60).flatmap(
    lambda count: st.tuples(st.just(count), st.integers(0, 1), st.sets(st.integers(0, count - 1)))
)


@given(names, st.sampled_from(["model-", "model.safetensors-", "model--", ""]))
def test_numbered_files_tell_how_many_there_are(
    drawn: tuple[int, int, set[int]], stem: str
) -> None:
    count, first, gone = drawn
    here = [
        f"{stem}{number + first:05}-of-{count:05}.safetensors"
        for number in range(count)
        if number not in gone
    ]
    # Without its first file a row that counts from 0 looks like one that counts from 1.
    assume(here and (first == 1 or 0 not in gone))
    found = files_here([*here, "config.json", "original/model-00001-of-00099.safetensors"])
    assert found == ((len(here), count) if gone else None)
    assert files_here(here, here) is None, "an index goes before numbers"


@pytest.mark.parametrize(
    ("names", "counted"),
    [
        (["model-00001-of-000163.safetensors"], (1, 163)),
        ([f"model-{at:05}-of-000002.safetensors" for at in (1, 2)], None),
        ([f"model-{at:05}-of-00002.safetensors" for at in (0, 1, 2)], None),
        (["model-1-of-999999999.safetensors"], (1, 999_999_999)),
        (["model-0-of-0.safetensors"], None),
        (["model.safetensors", "pytorch_model-00001-of-00003.bin"], None),
        (["model-Q4-00002-of-00003.gguf"], (1, 3)),
        (["model-Q4-00002-of-00003.gguf", "model-Q8.gguf"], None),
        (["Q4-00002-of-00003.gguf", "Q8-00001-of-00002.gguf", "Q8-00002-of-00002.gguf"], None),
        (["model.safetensors", "model-00001-of-00003.safetensors"], None),
        (["model-extra.safetensors", "model-00001-of-00003.safetensors"], (1, 3)),
        (["a-00001-of-00001.safetensors", "b-00001-of-00002.safetensors"], (1, 2)),
        (["00001-of-00002.safetensors", "notes-00001-of-00009.txt"], (1, 2)),
        ([], None),
    ],
)
def test_rows_of_files_are_counted_as_their_authors_name_them(
    names: list[str], counted: tuple[int, int] | None
) -> None:
    assert files_here(names) == counted


@pytest.mark.parametrize(
    ("file", "model_type"),
    [("model-00001-of-00039", "newfamily"), ("model.safetensors-00002-of-00039", "qwen3")],
)
def test_a_cut_download_is_blocked(
    tmp_path: Path, run: Run, plan_of: Any, file: str, model_type: str
) -> None:
    folder = write_model(tmp_path / "cut", {f"{file}.safetensors": ["a"]}, model_type=model_type)
    assert "has 1 of 39 files of its weights" in plan_of(folder, code=6)
    done = run("checkpoint", "verify", str(folder))
    assert done.returncode == 6
    assert "has 1 of 39 files of its weights" in done.stderr


def test_a_snapshot_of_another_program_is_counted_too(run: Run, tmp_path: Path) -> None:
    snapshots = load_settings().hub_cache / "models--lab--cut" / "snapshots"
    snapshots.mkdir(parents=True)
    write_model(snapshots / ("1" * 40), {"model-00003-of-00039.safetensors": ["a"]})
    refs = snapshots.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("1" * 40)
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "schema: 1\nname: mine\ntitle: t\nengine: cuda-0.33\nmodel: {repo: lab/cut}\n"
    )
    said = " ".join(run("plan", str(recipe)).stdout.split())
    assert (
        "lab/cut has 1 of 39 files of its weights fix: sparkdeploy checkpoint pull lab/cut" in said
    )
    assert run.answer("checkpoint", "ls", "--json")[0]["state"] == "not pinned, 1 of 39 files"
    assert "1 of 39 files" in run("plan", str(recipe), "--hardware", "here").stderr


def test_an_index_counts_what_is_gone(tmp_path: Path, plan_of: Any) -> None:
    folder = write_model(tmp_path / "gone", {"one.safetensors": ["a"]})
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    said = plan_of(folder, code=6)
    assert "has 1 of 2 files of its weights" in said
    assert "it lacks two.safetensors" in said


def test_a_loader_of_unique_names_names_its_files(tmp_path: Path, plan_of: Any) -> None:
    folder = write_model(tmp_path / "bin", {})
    (folder / "pytorch_model.bin").write_bytes(b"x")
    said = plan_of(folder, "serve.load_format=fastsafetensors")
    assert "load format fastsafetensors reads *.safetensors" in said


def test_some_loaders_need_each_tensor_once(tmp_path: Path, plan_of: Any) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    folder = write_model(tmp_path / "twice", {first: ["a", "b"], second: ["a", "c"]})
    index = {"weight_map": {"a": first, "b": first, "c": second}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    said = plan_of(folder, "serve.load_format=instanttensor")
    assert "load format instanttensor needs each tensor in one file" in said
    assert "--set serve.load_format=safetensors" in said


@pytest.mark.parametrize(
    ("loader", "names", "is_read"),
    [
        ("instanttensor", ["pytorch_model.bin"], False),
        ("pt", ["model.safetensors"], False),
        ("mistral", ["model.safetensors"], False),
        ("mistral", ["model.safetensors", "consolidated.safetensors"], True),
        ("sharded_state", ["model.safetensors"], False),
        ("npcache", ["pytorch_model.bin"], True),
        ("SafeTensors", ["model.safetensors"], True),
        ("dummy", ["pytorch_model.bin"], True),
        ("auto", ["pytorch_model.bin"], True),
        ("pt", [], True),
    ],
)
def test_a_loader_reads_the_files_that_are_there(
    shipped: Library, loader: str, names: list[str], is_read: bool
) -> None:
    assert loaded_by(shipped, loader, names=names) == ([] if is_read else ["model.loader"])


@pytest.mark.parametrize(
    ("loader", "refused"),
    [(None, 1), ("auto", 1), ("fastsafetensors", 1), ("dummy", 0), ("Dummy", 0), ("mistral", 0)],
)
def test_a_format_that_reads_other_files_takes_part_of_these(
    shipped: Library, loader: str | None, refused: int
) -> None:
    names, indexed = ["consolidated.safetensors"], ["model-00001-of-00002.safetensors"]
    found = loaded_by(shipped, loader, names=names, indexed=indexed)
    assert found == ["model.files"] * refused


def test_a_pattern_of_a_recipe_s_own_is_not_judged(shipped: Library) -> None:
    described = Described(CONFIG, names=["shard-0.safetensors"])
    own = ["--model-loader-extra-config", '{"pattern": "shard-{rank}.safetensors"}']
    refused = findings(shipped, described, load_format="sharded_state")
    assert [it.check for it in refused] == ["model.loader"]
    assert not findings(shipped, described, load_format="sharded_state", extra_args=own)


@pytest.mark.parametrize(("stated", "is_refused"), [(1, False), (None, True), (True, True)])
def test_a_drafter_is_divided_by_its_own_number_of_ranks(stated: object, is_refused: bool) -> None:
    drafting = {"method": "eagle3", "model": "lab/draft", "tokens": 3}
    own = {} if stated is None else {"draft_tensor_parallel_size": stated}
    serve = Serve.model_validate({"speculative": drafting | own})
    ranks = (8, 1)
    found = [*attention_findings(serve, "lab/draft", CONFIG, ranks=ranks, is_drafter=True)]
    assert bool(found) == is_refused
    assert [*attention_findings(serve, "a model", CONFIG, ranks=ranks)]


@pytest.mark.parametrize("loader", [*sorted(UNIQUE_NAMES), "safetensors", "auto", None])
def test_a_loader_of_unique_names_takes_no_tensor_twice(
    shipped: Library, loader: str | None
) -> None:
    is_refused = loader in UNIQUE_NAMES
    assert loaded_by(shipped, loader, repeated=["a"]) == (["model.loader"] if is_refused else [])


def loaded_by(shipped: Library, loader: str | None, **files: Any) -> list[str]:
    return [it.check for it in findings(shipped, Described(CONFIG, **files), load_format=loader)]


def findings(
    shipped: Library, described: Described, *, engine: str = "cuda-0.25", **serve: Any
) -> list[Finding]:
    resolved = load_recipe(shipped, "baseline", [f"engine={engine}"])
    changed = resolved.recipe.serve.model_copy(update={"max_model_len": None, **serve})
    recipe = resolved.recipe.model_copy(update={"serve": changed})
    return [*model_findings(replace(resolved, recipe=recipe), described)]


@pytest.mark.parametrize(
    ("stated", "strays"),
    [
        ({"modules_to_not_convert": ["model.layers.3.mlp.gate", "lm_head"]}, []),
        ({"modules_to_not_convert": ["model.layers.4.mlp.gate"]}, ["model.layers.4.mlp.gate"]),
        (
            {"ignore": [r"re:.*layers\.7\..*", r"re:.*layers\.[0-9]+\.mlp.*"]},
            [r"re:.*layers\.7\..*"],
        ),
        ({"dynamic": {r"-:model\.layers\.61\..*": {}}}, [r"-:model\.layers\.61\..*"]),
        ({"exclude_modules": ["model.layers.61*", "visual.layers.9"]}, ["model.layers.61*"]),
        ({"quantization": {"exclude": ["layers.9"]}}, ["layers.9"]),
        ({"ignored_layers": ["mtp.layers.0.mlp", "mtp.layers.48.mlp"]}, ["mtp.layers.48.mlp"]),
        ({"ignore": None, "dynamic": 5, "exclude": [None, 3, {}]}, []),
        (None, []),
        ([], []),
    ],
)
def test_quantisation_lists_name_layers_that_are_there(stated: Any, strays: list[str]) -> None:
    assert stray_layers(CONFIG | {"quantization_config": stated}) == strays


def test_a_list_may_have_a_draft_layer_that_nobody_reads() -> None:
    ignored = {"ignore": ["model.layers.4.mlp", "model.layers.5.mlp"]}
    config = CONFIG | {"quantization_config": ignored}
    assert stray_layers(config, drafts=False) == ["model.layers.5.mlp"]


@given(st.integers(0, 99), st.integers(0, 3))
def test_a_layer_is_a_stray_where_the_model_ends(number: int, drafts: int) -> None:
    config = CONFIG | {"num_nextn_predict_layers": drafts}
    config["quantization_config"] = {"ignore": [f"model.layers.{number}.mlp"]}
    assert bool(stray_layers(config)) == (number >= 4 + drafts)


@pytest.mark.parametrize(
    ("generation", "words"),
    [
        ({"max_new_tokens": 16}, ["cuts answers after 16 tokens"]),
        ({"max_new_tokens": 4096}, []),
        ({"repetition_penalty": 1.3}, ["changes answers: repetition_penalty 1.3"]),
        ({"repetition_penalty": 1.0, "presence_penalty": 0, "temperature": 0.6}, []),
        ({"max_new_tokens": True, "repetition_penalty": "2"}, []),
        ({"max_new_tokens": None, "max_length": 20}, []),
    ],
)
def test_a_generation_config_that_changes_answers_is_named(
    shipped: Library, generation: dict[str, object], words: list[str]
) -> None:
    described = Described(CONFIG, generation)
    found = findings(shipped, described, max_model_len=4096)
    assert len(found) == len(words)
    assert all(it in finding.seen for it, finding in zip(words, found, strict=True))
    for change in ({"generation_config": "vllm"}, {"runner": "pooling"}):
        assert findings(shipped, described, max_model_len=4096, **change) == []


def test_without_that_file_config_json_has_the_same_keys(shipped: Library) -> None:
    config = CONFIG | {"max_new_tokens": 16, "max_length": 20, "text_config": {"top_k": 3}}
    made = load_recipe(shipped, "v2")
    said = [
        it.seen for it in model_findings(made, Described(config)) if "config.json of" in it.seen
    ]
    assert len(said) == 1
    assert said[0].startswith("config.json of")
    assert "cuts answers after 16 tokens" in said[0]
    own = Described(config, {"temperature": 1})
    assert not [it for it in model_findings(made, own) if it.check == "model.generation"]
    # vLLM's releases take no `max_length`.
    only = Described(CONFIG, {"max_length": 20})
    assert not [it for it in model_findings(made, only) if it.check == "model.generation"]


def test_a_release_s_own_keys_of_a_generation_config_count(shipped: Library) -> None:
    described = Described(CONFIG, {"presence_penalty": 1.5})
    assert findings(shipped, described, engine="cuda-0.25") == []
    (found,) = findings(shipped, described, engine="cuda-0.33")
    assert "changes answers: presence_penalty 1.5" in found.seen


def test_plan_says_that_answers_are_cut(tmp_path: Path, plan_of: Any) -> None:
    folder = write_model(tmp_path / "short", {"model.safetensors": ["a"]})
    (folder / "generation_config.json").write_text('{"max_new_tokens": 16}')
    said = plan_of(folder, "serve.max_model_len=4096", code=0)
    assert said.count("cuts answers after 16 tokens") == 2
    assert said.count("fix: --set serve.generation_config=vllm") == 2


def test_yarn_is_taken_and_its_second_key_named(shipped: Library) -> None:
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}
    overrides: dict[str, Any] = {"rope_parameters": yarn}
    asked: dict[str, Any] = {"max_model_len": 8192, "hf_overrides": overrides}
    described = Described(CONFIG)
    (found,) = findings(shipped, described, engine="cuda-0.33", **asked)
    assert found.fix == "--set serve.hf_overrides.max_position_embeddings=8192"
    assert found.verdict is Verdict.WARN
    assert findings(shipped, described, engine="cuda-0.25", **asked) == []
    (refused,) = findings(shipped, described, **{**asked, "max_model_len": 8193})
    assert refused.verdict is Verdict.FAIL
    overrides["max_position_embeddings"] = 8192
    assert findings(shipped, described, engine="cuda-0.33", **asked) == []


@pytest.mark.parametrize(
    ("mods", "maker"),
    [
        (["mkdir -p /workspace/drafter"], "mkdir -p /workspace/drafter"),
        (["echo hello", "cp -r x /workspace/drafter/"], "cp -r x /workspace/drafter/"),
        (["echo hello"], None),
        ([], None),
    ],
)
def test_a_mod_makes_what_its_commands_name(mods: list[str], maker: str | None) -> None:
    found = [FoundMod(run, None, run, needs_network=False) for run in mods]
    assert maker_of("/workspace/drafter", found) == maker


def test_a_drafter_in_the_image_names_the_mod_that_makes_it(tmp_path: Path, plan_of: Any) -> None:
    folder = write_model(tmp_path / "model", {"model.safetensors": ["a"]})
    (tmp_path / "mods" / "make").mkdir(parents=True)
    (tmp_path / "mods" / "make" / "run.sh").write_text("cp -r x /workspace/drafter\n")
    drafting = "serve.speculative={method: dflash, model: /workspace/drafter, tokens: 7}"
    said = " ".join(plan_of(folder, drafting, "mods=[{folder: mods/make}]", code=0).split())
    assert "is a folder of the image that mod mods/make makes" in said
    assert "--set serve.speculative.subfolder=FOLDER" in said
    assert "no mod of the recipe makes it" in plan_of(folder, drafting)


def test_a_drafter_that_nobody_knows_is_one_line_of_each_plan(tmp_path: Path, plan_of: Any) -> None:
    folder = write_model(tmp_path / "model", {"model.safetensors": ["a"]})
    drafting = "serve.speculative={method: eagle3, model: lab/nobody, tokens: 2}"
    said = plan_of(folder, drafting, code=0)
    seen = "! lab/nobody, beside the model, is not counted in memory and download: "
    assert said.count(seen) == 2
    assert said.count("fix: sparkdeploy checkpoint pull lab/nobody") == 2


@pytest.mark.parametrize(
    ("config", "settings", "seen"),
    [
        (
            {"model_type": "llama"},
            ["serve.speculative={method: mtp, tokens: 2}"],
            "has no layer that drafts (MTP)",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, ["serve.quantization=awq"], "by gptq"),
        ({"quantization_config": {"quant_method": "gptq"}}, ["serve.quantization=gptq_marlin"], ""),
        ({"quantization_config": {"quant_method": "x"}}, ["serve.quantization=awq"], ""),
        ({}, ["serve.quantization=fp8"], ""),
    ],
)
def test_drafts_and_quantisation_are_the_models_own(
    tmp_path: Path, plan_of: Any, config: dict[str, Any], settings: list[str], seen: str
) -> None:
    folder = write_model(tmp_path / "model", {"model.safetensors": ["a"]}, **config)
    said = plan_of(folder, *settings, code=4 if seen else 0)
    assert (seen or "fits on") in said


def test_the_width_of_feed_forward_layers_is_divided_too() -> None:
    found = [*attention_findings(Serve(), "it", CONFIG | {"intermediate_size": 33}, ranks=(2, 1))]
    assert "33 feed-forward channels" in found[0].seen


def test_a_model_without_safetensors_is_estimated_by_its_files(
    tmp_path: Path, plan_of: Any
) -> None:
    folder = write_model(tmp_path / "model", {})
    (folder / "pytorch_model.bin").write_bytes(bytes(100))
    assert "(100 B of files)" in plan_of(folder, code=0)


def test_a_pointer_of_git_lfs_is_no_file_of_weights(tmp_path: Path, plan_of: Any) -> None:
    folder = write_model(tmp_path / "model", {})
    for name in ("model.safetensors", "pytorch_model.bin"):
        file = folder / name
        file.write_text("version https://git-lfs.test/spec/v1\noid sha256:1\nsize 5\n")
        said = plan_of(folder, code=6)
        assert said.count(f"{file} is a pointer of Git LFS, and not the file itself") == 2
        assert f"git -C {folder} lfs pull" in said
        file.unlink()
