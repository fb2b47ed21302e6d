"""`new`: a recipe from what a model's owner publishes, with a comment at each guess."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sparkdeploy import yaml_text
from sparkdeploy.settings import load_settings
from tests.unit.commands.new_models import folder_of, made

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.program import Run


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
    recipe = made(run, "--model", "Intel/Qwen3.5-397B-A17B-int4-AutoRound")
    nodes = yaml_text.load("{tensor_parallel: 4, min_nodes: 4}", "x")
    assert recipe["cluster"] == nodes


def test_a_folder_without_weights_is_not_known_to_fit(run: Run, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "llama", max_position_embeddings=4096)
    recipe = made(run, "--model", str(folder))
    assert recipe["model"] == {"path": str(folder)}
    assert "temperature 0.6, top_k 20" in str(recipe["text"])
    assert "No parsers for it in our table" in str(recipe["text"])


def test_an_architecture_of_a_newer_release_takes_the_newest_engine(
    run: Run, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, "llama", architectures=["Glm5NextForCausalLM"])
    recipe = made(run, "--model", str(folder))
    assert (recipe["engine"], recipe["least_vllm"]) == ("cuda-0.33", "0.30.0")
    assert "reasoning_parser: glm45" in str(recipe["text"])


def test_a_recipe_from_another_one_says_what_differs_alone(run: Run) -> None:
    recipe = made(run, "--model", "Qwen/Qwen3.6-27B-FP8", "--from", "qwen3.6-35b")
    assert recipe["extends"] == "qwen3.6-35b"
    assert set(yaml_text.load(str(recipe["text"]), "x")) == {
        *("schema", "name", "title", "extends", "model", "serve")
    }
    assert run.answer("show", "mine", "--json")["serve"]["tool_call_parser"] == "qwen3_coder"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("Bad Name", "--model", "a/b"), 2),
        (("mine", "--model", "no model"), 2),
        (("mine", "--model", "un/known", "--offline"), 6),
        (("mine", "--model", "openai/gpt-oss-120b", "--from", "absent"), 3),
    ],
)
def test_what_cannot_be_made_leaves_no_file(run: Run, words: tuple[str, ...], code: int) -> None:
    done = run("new", *words)
    assert (done.returncode, done.stderr.count("error:")) == (code, 1)
    assert not (load_settings().config_dir / "recipes").exists()


def test_a_recipe_that_is_there_stays(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("kept")
    done = run("new", "mine", "--model", "openai/gpt-oss-120b", "-o", str(path))
    assert done.returncode == 3
    assert path.read_text() == "kept"


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
