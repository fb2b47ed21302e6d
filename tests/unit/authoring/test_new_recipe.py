"""`new`: a recipe from what a model's owner publishes or from another recipe, with its guesses."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from sparkdeploy import yaml_text
from sparkdeploy.authoring.new_model import KNOBS, changing_text
from sparkdeploy.plan.models import locate_model
from sparkdeploy.recipe.load import Library, library, load_recipe
from sparkdeploy.settings import load_settings
from tests.families import config
from tests.hub.double import REPO, HubDouble, publish
from tests.unit.authoring.new_models import folder_at, folder_of, made, weights_of
from tests.unit.conftest import REPOSITORY
from tests.unit.program import Run


def observed_unfit(recipe: str, *settings: str) -> tuple[str, ...]:
    """What `plan` would refuse of a recipe's conversion."""
    read = load_settings()
    return locate_model(load_recipe(library(read), recipe, settings).recipe, read).fact.unfit


def test_a_known_model_gets_parsers_engine_and_the_context_that_fits(run: Run) -> None:
    recipe = made(run, "--model", "openai/gpt-oss-120b")
    assert recipe["engine"] == "cuda-0.25"
    assert recipe["model"] == {"repo": "openai/gpt-oss-120b"}
    assert recipe["serve"] == {
        "max_model_len": 131072,
        "gpu_memory_utilization": 0.85,
        "reasoning_parser": "openai_gptoss",
        "tool_call_parser": "openai",
        "enable_auto_tool_choice": True,
    }
    guesses = [line for line in str(recipe["text"]).splitlines() if "# guess: " in line]
    assert len(guesses) == 6
    assert str(recipe["verdict"]).startswith("fits on NVIDIA DGX Spark")
    assert run("show", "mine").returncode == 0
    assert recipe["path"] == str(load_settings().config_dir / "recipes" / "mine.yaml")


def test_a_model_that_is_too_large_is_for_several_machines(run: Run) -> None:
    weights = "Intel/Qwen3.5-397B-A17B-int4-AutoRound"
    recipe = made(run, "--model", f"{weights}@v1")
    assert recipe["model"] == {"repo": weights, "revision": "v1"}
    assert recipe["cluster"] == {"tensor_parallel": 4, "min_nodes": 4}
    assert "fits on 4 of NVIDIA DGX Spark" in str(recipe["text"])
    assert recipe["next_step"] == "sparkdeploy plan mine --cluster"
    assert "sparkdeploy plan like --cluster" in run("new", "like", "--from", "minimax-m2.7").stdout


@pytest.mark.parametrize(
    ("name", "reasoning", "tools"),
    [
        ("Qwen3-8B", "qwen3", "hermes"),
        ("Qwen3-30B-A3B-FP8", "qwen3", "hermes"),
        ("qwen3-4b-thinking-2507-awq", "qwen3", "hermes"),
        ("Qwen3-30B-A3B-Instruct-2507", None, "hermes"),
        ("Qwen3-Coder-30B-A3B-Instruct", None, "qwen3_coder"),
        ("DeepSeek-R1-0528-Qwen3-8B", "deepseek_r1", None),
        # These have none, or others, and the same architecture.
        ("Qwen3-8B-Base", None, None),
        ("Qwen3-Embedding-8B", None, None),
        ("Qwen3-8B-my-own", None, None),
    ],
)
def test_parsers_of_a_qwen3_are_those_of_its_variant(
    run: Run, tmp_path: Path, name: str, reasoning: str | None, tools: str | None
) -> None:
    folder = folder_of(tmp_path, "llama", architectures=["Qwen3ForCausalLM"])
    recipe = made(run, "--model", str(folder.rename(tmp_path / name)))
    serve = recipe["serve"]
    assert isinstance(serve, dict)
    assert (serve.get("reasoning_parser"), serve.get("tool_call_parser")) == (reasoning, tools)
    assert "most recipes of Qwen3" not in str(recipe["text"])


def test_a_recipe_from_another_one_says_what_differs_alone(run: Run) -> None:
    recipe = made(run, "--model", "Qwen/Qwen3.6-27B-FP8", "--from", "qwen3.6-35b")
    assert recipe["extends"] == "qwen3.6-35b"
    assert set(yaml_text.load(str(recipe["text"]), "x")) == {
        *("schema", "name", "title", "extends", "model", "serve")
    }
    assert run.answer("show", "mine", "--json")["serve"]["tool_call_parser"] == "qwen3_coder"
    assert "# All else is qwen3.6-35b's.\n" in str(recipe["text"])


@pytest.mark.parametrize(
    ("base", "family", "names"),
    [
        ("v2", "qwen3-dense", ["fp8_dense", "lm_head", "mtp"]),
        ("v2-hub", "llama", ["fp8_dense", "mtp"]),
        ("v2", "qwen3-next", []),
        ("baseline", "qwen3-dense", []),
    ],
)
def test_what_a_model_cannot_have_of_its_base_is_switched_off(
    run: Run, tmp_path: Path, base: str, family: str, names: list[str]
) -> None:
    folder = folder_of(tmp_path, family)
    done = run("new", "mine", "--model", str(folder), "--from", base)
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    told = [line for line in done.stdout.splitlines() if line.startswith("# switched off")]
    assert [line.partition(f"have {base}'s checkpoint.")[2].split(":")[0] for line in told] == names
    text = (load_settings().config_dir / "recipes" / "mine.yaml").read_text()
    assert text.count("# this model cannot have it: ") == len(names) + ("mtp" in names)
    assert "written to" in last
    assert observed_unfit("mine") == ()
    assert bool(names) == bool(observed_unfit(base, f"model.path={folder}"))


@pytest.mark.usefixtures("no_docker")
def test_the_next_step_is_a_command_that_works(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    (work / "there").mkdir(parents=True)
    monkeypatch.chdir(work)
    folder = folder_of(tmp_path, "llama")
    beside = folder.rename(work / "model")
    for path in ("./my own", "there/mine.yaml"):
        told = run.answer("new", "mine", "--model", str(beside), "-o", path, "--json")
        name = shlex.quote(f"./{path.removeprefix('./')}")
        assert told["next_step"] == f"sparkdeploy plan {name} --allow-unsafe"
        done = run(*shlex.split(told["next_step"])[1:])
        # A machine without a GPU, and a folder without weights.
        assert done.returncode == 4, done.stderr
        assert "mine: model" in done.stdout


def test_a_recipe_of_ones_own_that_hides_a_shipped_one_is_marked(run: Run) -> None:
    own = load_settings().config_dir / "recipes"
    own.mkdir(parents=True)
    (own / "v2.yaml").write_text("schema: 1\nname: v2\ntitle: My own\nextends: mtp-2\n")
    (own / "mine.yaml").write_text("schema: 1\nname: mine\ntitle: Other\nextends: v2\n")
    marked = [line for line in run("list", "--all").stdout.splitlines() if "(yours" in line]
    assert [line.partition("My own")[2] for line in marked] == [
        " (yours, instead of the shipped one)"
    ]
    rows = {row["name"]: row for row in run.answer("list", "--json")["recipes"]}
    assert [name for name, row in rows.items() if row["replaces_shipped"]] == ["v2"]


@pytest.mark.parametrize(
    "hostile",
    [
        {"architectures": ["x\nengine: evil"]},
        {"max_position_embeddings": 10**30},
        {"architectures": 7, "model_type": ["\x1b[31m"]},
        {"max_position_embeddings": "many"},
    ],
)
def test_a_hostile_configuration_writes_nothing_but_comments(
    run: Run, tmp_path: Path, hostile: dict[str, object]
) -> None:
    folder = folder_of(tmp_path, "llama", **hostile)
    done = run("new", "mine", "--model", str(folder), "--json")
    assert done.returncode in (0, 6)
    if done.returncode == 0:
        content = yaml_text.load(json.loads(done.stdout)["text"], "x")
        assert content["engine"] in ("cuda-0.25", "cuda-0.33")


OWN = {"name", "title", "extends", "source", "preview", "expect"}
SHIPPED = sorted(path.stem for path in (REPOSITORY / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("base", SHIPPED)
def test_with_every_line_taken_it_is_still_its_base(
    shipped: Library, tmp_path: Path, base: str
) -> None:
    recipe = load_recipe(shipped, base).recipe
    text = changing_text("mine", base, recipe)
    path = tmp_path / "mine.yaml"
    for written in (text, re.sub(r"^( *)# (\w+: )", r"\1\2", text, flags=re.MULTILINE)):
        path.write_text(written)
        made = load_recipe(shipped, str(path), ["allow_unsafe=true"]).recipe
        assert made.model_dump(exclude={*OWN, "allow_unsafe"}) == recipe.model_dump(
            exclude={*OWN, "allow_unsafe"}
        )
    assert written.count("#") < text.count("#") - sum(map(len, KNOBS.values()))


def test_knobs_have_their_present_values_and_units(run: Run) -> None:
    text = run("new", "mine", "--from", "v2").stdout
    assert re.search(r"^  # max_model_len: 262144 +# tokens: ", text, re.MULTILINE)
    assert re.search(r"^  # port: 8000 +# port: ", text, re.MULTILINE)
    assert re.search(r"^  # memory_floor_gib: 4.0 +# GiB: ", text, re.MULTILINE)
    assert text.startswith("# yaml-language-server: $schema=file:///")
    assert text.endswith("`sparkdeploy plan mine` says what `up` would do\n")
    assert (load_settings().config_dir / "recipes" / "mine.yaml").is_file()
    printed = run("new", "v2", "--from", "mtp-1", "-o", "-").stdout
    assert yaml_text.load(printed, "x")["title"] == "mtp-1, changed"
    assert not Path("-").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("mine",), 2, "--from RECIPE"),
        (("mine", "--from", "v2", "-o", ""), 2, "-o names no file"),
        (("mine", "--from", "nothere"), 3, "there is no recipe nothere"),
        (("Mine", "--from", "v2"), 2, "is no recipe name"),
        (("Bad Name", "--model", "a/b"), 2, "is no recipe name"),
        (("v2", "--from", "v2"), 3, "v2 is a recipe that is shipped"),
        (("mine", "--model", "no model"), 2, "names neither"),
        (("mine", "--model", "un/known", "--offline"), 6, "un/known is not known"),
        (("mine", "--model", "openai/gpt-oss-120b", "--from", "absent"), 3, "no recipe absent"),
    ],
)
def test_what_cannot_be_made_is_said_and_leaves_no_file(
    run: Run, words: tuple[str, ...], code: int, said: str
) -> None:
    done = run("new", *words)
    assert (done.returncode, done.stderr.count("error:")) == (code, 1)
    assert said in done.stderr
    assert "sparkdeploy-new-" not in done.stderr
    assert not (load_settings().config_dir / "recipes").exists()


@pytest.mark.parametrize("name", ["123", "null", "true", "1.5", "2024-01-01"])
def test_a_name_that_yaml_takes_for_something_else_stays_a_name(run: Run, name: str) -> None:
    told = run.answer("new", name, "--model", "openai/gpt-oss-120b", "--json")
    assert yaml_text.load(told["text"], "x")["name"] == name
    assert run("show", name).returncode == 0


def test_a_recipe_file_that_is_extended_is_found_from_any_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = tmp_path / "we ird: #y.yaml"
    base.write_text("schema: 1\nname: y\ntitle: t\nextends: v2\n")
    recipe = made(run, "--model", "openai/gpt-oss-120b", "--from", "./we ird: #y.yaml")
    assert recipe["extends"] == str(base)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("./o/nl\nx", "names neither a repository nor a folder"),
        ("a/b/c", "ORG/NAME@REVISION as on the hub"),
        ("a/b@", "names neither"),
        ("", "names neither"),
        ("./" + "x/" * 2000, "names neither"),
    ],
)
def test_a_model_that_is_none_is_said_with_what_one_is(run: Run, model: str, words: str) -> None:
    done = run("new", "mine", "--model", model)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.parametrize("place", ["a-file/x.yaml", "a-file/b/x.yaml", "/proc/x.yaml", "9" * 300])
def test_a_place_that_takes_no_file_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a-file").write_text("kept")
    done = run("new", "mine", "--model", "openai/gpt-oss-120b", "-o", place)
    assert done.returncode == 4
    assert f"{place[:100]}" in done.stderr
    assert "cannot be written" in done.stderr
    Path("my own").mkdir()
    done = run("new", "mine", "--from", "v2", "-o", "my own")
    assert "fix: name a file in it: -o 'my own/mine.yaml'" in done.stderr


@pytest.mark.parametrize(
    ("architectures", "engine", "least", "words"),
    [
        (
            ["LlamaForCausalLM"],
            "cuda-0.25",
            None,
            "the usual one; vLLM 0.25.1 has LlamaForCausalLM",
        ),
        (["MiniMaxText01ForCausalLM"], "cuda-0.19", None, "takes hours to compile"),
        (["Starship", "Glm5NextForCausalLM"], "cuda-0.33", "0.30.0", "does not know Starship"),
        (["Glm5NextForCausalLM", "LlamaForCausalLM"], "cuda-0.33", None, "older than GLM-5.3"),
        (["StarshipForCausalLM"], "cuda-0.25", None, "they have vLLM 0.19.1, 0.25.1, 0.33.0."),
        (["Starship", "B", "C", "D"], "cuda-0.25", None, "# Starship, B, C, ...; config.json of"),
        ([], "cuda-0.25", None, "config.json names no architecture"),
    ],
)
def test_the_engine_is_the_first_whose_registry_has_the_model(
    run: Run, tmp_path: Path, architectures: list[str], engine: str, least: str | None, words: str
) -> None:
    folder = folder_of(tmp_path, "llama", architectures=architectures, model_type=None)
    recipe = made(run, "--model", str(folder))
    assert (recipe["engine"], recipe.get("least_vllm")) == (engine, least)
    assert words in str(recipe["text"])
    assert "vLLM takes by itself: temperature 0.6.\n" in str(recipe["text"])


def test_code_of_the_models_own_needs_consent(run: Run, tmp_path: Path) -> None:
    own = {"architectures": ["StarshipForCausalLM"], "auto_map": {"AutoConfig": "x.y"}}
    text = str(made(run, "--model", str(folder_of(tmp_path, "llama", **own)))["text"])
    assert "serve.trust_remote_code: true, and your consent" in text


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["m-Q4_K_M.gguf", "README.md"], "has GGUF files alone"),
        (["config.json", "m-Q4_K_M.gguf"], "has GGUF files alone"),
        (["adapter_config.json", "adapter_model.safetensors"], "is a LoRA adapter"),
        (["model_index.json"], "a pipeline of diffusers"),
        (["params.json", "consolidated.safetensors"], "in Mistral's own format alone"),
    ],
)
@pytest.mark.parametrize("is_here", [True, False])
def test_what_is_no_model_is_told_by_its_files(
    run: Run, hub: HubDouble, tmp_path: Path, files: list[str], words: str, *, is_here: bool
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in files:
        (folder / name).write_text("{}")
    publish(hub, folder)
    done = run("new", "mine", "--model", str(folder) if is_here else f"{REPO}@v1")
    assert done.returncode == 6
    assert words in done.stderr
    assert "fix: name" in done.stderr


CONTEXT = "max_position_embeddings"


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ({CONTEXT: 2048}, 2048),
        ({CONTEXT: None, "n_positions": 1024}, 1024),
        ({CONTEXT: None, "max_target_positions": 448}, 448),
        ({CONTEXT: None, "seq_length": 2048}, 2048),
        ({CONTEXT: None, "model_max_length": 4096}, 4096),
        ({CONTEXT: 4096, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 8192),
        ({CONTEXT: 512, "text_config": {**config("llama"), CONTEXT: 1024}}, 1024),
    ],
)
def test_the_models_own_context_is_judged_however_short(
    run: Run, tmp_path: Path, more: dict[str, object], tokens: int
) -> None:
    told = run.answer("new", "mine", "--model", str(weights_of(tmp_path, **more)), "--json")
    assert yaml_text.load(told["text"], "x")["serve"]["max_model_len"] == tokens
    assert "what config.json allows, and it fits on NVIDIA DGX Spark" in told["text"]
    assert told["verdict"].startswith("fits on ")


@pytest.mark.parametrize(
    ("called", "more", "file"),
    [
        ("model", {"architectures": ["BertModel"]}, None),
        ("model", {"architectures": ["Qwen2ForSequenceClassification"]}, None),
        ("Qwen3-Embedding-8B", {}, None),
        ("model", {}, "modules.json"),
        ("Qwen3-Reranker-4B", {}, None),
    ],
)
def test_a_model_that_writes_no_text_is_pooled(
    run: Run, tmp_path: Path, called: str, more: dict[str, object], file: str | None
) -> None:
    folder = folder_at(tmp_path / called, "llama", **more)
    if file is not None:
        (folder / file).write_text("[]")
    recipe = made(run, "--model", str(folder))
    assert "runner: pooling" in str(recipe["text"])
    assert "tool calls" not in str(recipe["text"])
    assert ("hf_overrides" in str(recipe["text"])) == ("Reranker" in called)
