"""What a deployment answers: by vLLM's rule for its model, and by the routes of its server."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.export.neighbours import LITELLM_MODES
from sparkdeploy.plan.models import locate_model
from sparkdeploy.recipe.answers import ROUTES, Answers, Task, planned_answers, task_of
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.serve import Serve
from sparkdeploy.settings import load_settings

TASKS = st.lists(st.sampled_from(Task), min_size=1, unique=True).map(
    lambda tasks: Answers(tuple(tasks))
)


@pytest.mark.parametrize(
    ("architecture", "more", "main"),
    [
        ("Qwen3_5MoeForConditionalGeneration", {}, Task.CHAT),
        ("ChatGLMModel", {}, Task.CHAT),
        ("InternVLChatModel", {}, Task.CHAT),
        ("Qwen2_5OmniModel", {}, Task.CHAT),
        ("BertModel", {}, Task.EMBEDDINGS),
        ("Qwen3Model", {}, Task.EMBEDDINGS),
        ("BgeM3EmbeddingModel", {}, Task.EMBEDDINGS),
        ("XLMRobertaForSequenceClassification", {"id2label": {"0": "LABEL_0"}}, Task.RERANK),
        ("BertForSequenceClassification", {"num_labels": 1}, Task.RERANK),
        ("BertForSequenceClassification", {}, Task.CLASSIFY),
        ("BertForSequenceClassification", {"num_labels": True}, Task.CLASSIFY),
        ("BertForSequenceClassification", {"id2label": {"0": "a", "1": "b"}}, Task.CLASSIFY),
        ("JinaVLForRanking", {}, Task.RERANK),
        ("HF_ColBERT", {}, Task.RERANK),
        ("Qwen2ForProcessRewardModel", {}, Task.POOLING),
        ("BertForTokenClassification", {}, Task.POOLING),
        ("WhisperForConditionalGeneration", {}, Task.TRANSCRIPTIONS),
        ("Qwen3ASRForConditionalGeneration", {}, Task.TRANSCRIPTIONS),
        ("VoxtralForConditionalGeneration", {}, Task.CHAT),
    ],
)
def test_a_model_answers_what_its_architecture_is_for(
    architecture: str, more: dict[str, Any], main: Task
) -> None:
    assert planned_answers(Serve(), {"architectures": [architecture], **more}).main is main


@pytest.mark.parametrize("named", [None, "BertModel", [], {}, 0, [None], [[]]])
def test_a_config_without_architectures_is_taken_for_text(named: object) -> None:
    assert planned_answers(Serve(), {"architectures": named}).main is Task.CHAT


def test_a_recipe_says_more_than_a_config(shipped: Library) -> None:
    text = {"architectures": ["Qwen3ForCausalLM"]}
    assert planned_answers(Serve(runner="pooling"), text).main is Task.EMBEDDINGS
    assert planned_answers(Serve(), text, {"modules.json"}).main is Task.EMBEDDINGS
    assert planned_answers(Serve(runner="generate"), text, {"modules.json"}).main is Task.CHAT
    classes = Serve(runner="pooling", convert="classify")
    assert planned_answers(classes, {**text, "num_labels": 3}).main is Task.CLASSIFY
    reranker = load_recipe(shipped, "qwen3-vl-reranker").recipe.serve
    assert planned_answers(reranker, {"architectures": ["Qwen3VLForX"]}).main is Task.RERANK


def test_a_model_without_a_chat_template_continues_texts() -> None:
    untrained = planned_answers(Serve(), {"architectures": ["X"]}, has_template=False)
    assert untrained.main is Task.COMPLETIONS
    assert untrained.has("/v1/chat/completions")


def test_every_kind_has_routes_of_its_own_and_a_request() -> None:
    paths = [path for found in ROUTES.values() for path in found]
    assert set(ROUTES) == set(Task)
    assert len(paths) == len(set(paths))
    for task in Task:
        assert task_of(task.path) is task
        assert task.example("m")["model"] == "m"
    assert set(LITELLM_MODES) == set(Task) - {Task.SCORE, Task.CLASSIFY, Task.POOLING}


@given(TASKS)
def test_a_label_gives_back_what_was_written(answers: Answers) -> None:
    assert Answers.of_label(answers.as_label()) == answers


@given(TASKS, TASKS)
def test_the_routes_of_a_server_have_the_last_word(planned: Answers, served: Answers) -> None:
    routes = [path for task in served.tasks for path in ROUTES[task]]
    found = planned.corrected([*routes, "/health"])
    assert set(found.tasks) == set(served.tasks)
    agreed = [task for task in planned.tasks if task in served.tasks]
    assert list(found.tasks[: len(agreed)]) == agreed
    assert planned.corrected(["/health"]) == planned


@pytest.mark.parametrize(
    ("config", "answered", "has_canary"),
    [
        ({"architectures": ["BertModel"], "model_type": "bert"}, "embeddings", False),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "completions", True),
    ],
)
def test_a_plan_knows_what_the_model_of_a_folder_answers(
    shipped: Library, tmp_path: Path, config: dict[str, Any], answered: str, *, has_canary: bool
) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8}
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, **sizes}))
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 8}')
    recipe = load_recipe(shipped, "baseline", (f"model.path={folder}",)).recipe
    fact = locate_model(recipe, load_settings()).fact
    assert fact.answers.main.value == answered
    assert fact.answers.writes_text is has_canary
