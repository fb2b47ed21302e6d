"""Models that are not here, as a hub describes them: fits or not, and never passed in silence."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.errors import CheckpointError
from tests.families import config
from tests.families.checkpoints import Tensors, packed, plain, write
from tests.hub.double import REPO, HubDouble, publish
from tests.unit.program import Run


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "other.yaml"
    path.write_text(
        "schema: 1\nname: other\ntitle: another family\nengine: cuda-0.25\n"
        f"model: {{repo: {REPO}, revision: v1}}\nserve: {{max_model_len: 8192}}\n"
    )
    return str(path)


@pytest.mark.parametrize("family", ["gpt-oss", "llama", "deepseek-v3", "nemotron-h", "gemma4"])
def test_a_verdict_comes_first_and_from_the_hub(
    run: Run, hub: HubDouble, recipe: str, tmp_path: Path, family: str
) -> None:
    odd: Tensors = {"model.x.weight": ("BF16", (8, 8))}
    tensors = plain(family) if family != "gemma4" else odd
    publish(hub, write(tmp_path / "model", tensors, config(family)))
    done = run("plan", recipe, "--hardware", "spark")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fits on NVIDIA DGX Spark")
    assert "requests of" in done.stdout.splitlines()[0]
    content = run.answer("plan", recipe, "--hardware", "spark", "--json")
    assert content["capacity"]["facts"].startswith("safetensors headers on the hub")
    assert content["verdict"]["fits"] == "fits"


def test_an_architecture_that_nobody_knows_is_counted_by_its_headers(
    run: Run, hub: HubDouble, recipe: str, tmp_path: Path
) -> None:
    publish(hub, write(tmp_path / "model", plain("llama"), {"model_type": "starship"}))
    done = run("plan", recipe, "--hardware", "spark")
    assert done.stdout.startswith("may fit on")
    assert "not known: how a 'starship' model keeps a request" in done.stdout
    plan = run("plan", recipe)
    assert "what a request takes is not known" in plan.stdout


def test_weights_that_are_too_large_do_not_fit(
    run: Run, hub: HubDouble, recipe: str, tmp_path: Path
) -> None:
    publish(hub, write(tmp_path / "model", plain("llama"), config("llama")))
    little = "serve.gpu_memory_utilization=0.001"
    done = run("plan", recipe, "--hardware", "spark", "--set", little)
    assert done.stdout.startswith("does not fit on")
    assert "weights and reserves take" in done.stdout.splitlines()[0]


def test_sizes_alone_give_room_and_no_speed(
    run: Run, hub: HubDouble, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed by a method whose bytes are not derived, and no header came in time."""
    publish(hub, write(tmp_path / "model", *packed("llama", "modelopt")))
    late = threading.Event()

    def silent(*_: object) -> None:
        late.wait(20)
        raise CheckpointError("it came too late")

    monkeypatch.setattr("sparkdeploy.checkpoint.published.ASKING_LIMIT_S", 1.0)
    monkeypatch.setattr("sparkdeploy.checkpoint.published.remote_tensors", silent)
    content = run.answer("plan", recipe, "--hardware", "spark", "--json")
    late.set()
    assert content["capacity"]["facts"].startswith("file sizes on the hub")
    assert content["verdict"]["fits"] == "fits"
    assert content["verdict"]["tok_s"] is None


def test_a_hub_that_says_nothing_is_waited_for_some_seconds_only(
    run: Run, hub: HubDouble, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hub, write(tmp_path / "model", plain("llama"), config("llama")))
    monkeypatch.setattr("sparkdeploy.checkpoint.published.ASKING_LIMIT_S", 0.2)
    answer = threading.Event()

    def silent(*_: object) -> None:
        answer.wait(20)
        raise CheckpointError("it came too late")

    monkeypatch.setattr(Hub, "describe", silent)
    done = run("plan", recipe, "--check")
    # There is no GPU, which goes before.
    assert done.returncode == 4
    assert "memory was not checked" in done.stdout
    assert "did not answer within" in done.stdout
    answer.set()


def test_a_plan_counts_what_the_hub_lists(
    run: Run, hub: HubDouble, recipe: str, tmp_path: Path
) -> None:
    """Weights once: Mistral's second set of files is not downloaded."""
    folder = write(tmp_path / "model", plain("llama"), config("llama"))
    (folder / "consolidated.safetensors").write_bytes(b"0" * 5_000_000)
    publish(hub, folder)
    content = json.loads(run("plan", recipe, "--json").stdout)
    needs = content["ranks"][0]["needs"]
    weights = (folder / "model.safetensors").stat().st_size
    assert weights < needs["download_bytes"] < weights + 5_000_000
    assert needs["weights_bytes"] == weights
    assert "memory was not checked" not in json.dumps(content)


def test_a_conversion_that_the_model_does_not_have_is_refused_before_the_download(
    run: Run, hub: HubDouble, recipe: str, tmp_path: Path
) -> None:
    publish(hub, write(tmp_path / "model", *packed("qwen3-moe", "awq")))
    done = run("plan", recipe, "--set", "checkpoint={mtp: required}")
    assert "its config.json has no draft layer that is known (a 'qwen3_moe' model)" in done.stdout


def test_a_model_that_writes_no_text_has_no_tokens_a_second(run: Run) -> None:
    rows = {row["recipe"]: row for row in run.answer("list", "--fits", "spark", "--json")}
    assert rows["qwen3-vl-reranker"]["tok_s"] is None
    assert "speed" not in rows["qwen3-vl-reranker"]["words"]


def test_what_is_converted_while_loading_counts_converted(run: Run) -> None:
    verdict = run.answer("plan", "gemma4-26b", "--hardware", "spark", "--json")["capacity"]
    stored, loaded = verdict["stored_bytes"], verdict["loaded_bytes"]
    assert loaded["routed experts"] == stored["routed experts"] // 2
    assert loaded["embeddings"] == stored["embeddings"]
