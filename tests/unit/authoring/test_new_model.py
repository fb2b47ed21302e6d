"""`new` for models as they come: strange names, places and configurations, every use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkdeploy import yaml_text
from tests.families import config
from tests.hub.double import Repo, hub_double
from tests.unit.authoring.new_models import folder_at, folder_of, made, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hub.double import HubDouble
    from tests.unit.program import Run


COMMIT, REPO = "1" * 40, "lab/other"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubDouble]:
    with hub_double() as double:
        monkeypatch.setenv("HF_ENDPOINT", double.endpoint)
        # `--offline` sets it for the whole process, which here is that of all tests.
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        yield double


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
        (["StarshipForCausalLM"], "cuda-0.25", None, "None of our engines knows"),
        ([], "cuda-0.25", None, "config.json names no architecture"),
    ],
)
def test_the_engine_is_the_first_whose_registry_has_the_model(
    run: Run,
    tmp_path: Path,
    architectures: list[str],
    engine: str,
    least: str | None,
    words: str,
) -> None:
    folder = folder_of(tmp_path, "llama", architectures=architectures, model_type=None)
    recipe = made(run, "--model", str(folder))
    assert (recipe["engine"], recipe.get("least_vllm")) == (engine, least)
    assert words in str(recipe["text"])


def test_code_of_the_models_own_needs_consent(run: Run, tmp_path: Path) -> None:
    own = {"architectures": ["StarshipForCausalLM"], "auto_map": {"AutoConfig": "x.y"}}
    text = str(made(run, "--model", str(folder_of(tmp_path, "llama", **own)))["text"])
    assert "serve.trust_remote_code: true, and your consent" in text


def publish(hub: HubDouble, folder: Path, token: str | None = None) -> None:
    hub.repos[REPO] = Repo({COMMIT: folder}, {"main": COMMIT}, token=token)


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
    done = run("new", "mine", "--model", str(folder) if is_here else REPO)
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
        (
            {CONTEXT: 4096, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            8192,
        ),
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
