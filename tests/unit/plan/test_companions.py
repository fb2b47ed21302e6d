"""Adapters beside the model: looked for, told when they are missing, and mounted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.program import Run

pytestmark = pytest.mark.usefixtures("no_docker")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    return folder


def recipe(folder: Path, lora: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(
        "schema: 1\nname: mine\ntitle: t\nengine: cuda-0.25\nmodel: {path: ./model}\n"
        f"serve: {{lora: [{lora}]}}\n"
    )
    return str(path)


def test_an_adapters_folder_is_mounted(
    run: Run, model: Path, adapter: Path, tmp_path: Path
) -> None:
    assert model.is_dir()
    path = recipe(tmp_path, "{name: birds, path: ./adapter}")
    spec = json.loads(run("plan", path, "--allow-unsafe", "--json").stdout)["container"]["spec"]
    mounts = {mount["source"]: mount["target"] for mount in spec["mounts"]}
    inside = mounts[str(adapter)]
    words = spec["command"]
    at = words.index("--lora-modules")
    assert json.loads(words[at + 1]) == {"name": "birds", "path": inside}


def test_an_adapter_of_a_hub_is_told_when_it_is_missing(
    run: Run, model: Path, tmp_path: Path
) -> None:
    assert model.is_dir()
    done = run("plan", recipe(tmp_path, "{name: birds, repo: lab/birds}"), "--allow-unsafe")
    assert "lab/birds is not here" in done.stdout


def test_an_adapter_without_a_place_is_a_mistake(run: Run, model: Path, tmp_path: Path) -> None:
    assert model.is_dir()
    done = run("plan", recipe(tmp_path, "{name: birds}"), "--allow-unsafe")
    assert done.returncode == 3
    assert "serve.lora.0" in done.stderr


def test_a_model_that_an_older_release_does_not_know_is_said_by_its_config(
    run: Run, model: Path, tmp_path: Path
) -> None:
    (model / "config.json").write_text(json.dumps({"architectures": ["Step5ForCausalLM"]}))
    path = tmp_path / "mine.yaml"
    path.write_text("schema: 1\nname: mine\ntitle: t\nengine: cuda-0.25\nmodel: {path: ./model}\n")
    done = run("plan", str(path), "--allow-unsafe")
    assert "vLLM 0.25.1 does not know Step5ForCausalLM, which came with 0.33.0" in done.stdout


@pytest.mark.parametrize(
    ("architecture", "engine", "came"),
    [
        ("DFlash2DraftModel", "cuda-0.25", "0.28.0"),
        ("DFlash2DraftModel", "cuda-0.33", None),
        ("DFlashDraftModel", "cuda-0.25", None),
    ],
)
def test_a_drafter_that_an_older_release_does_not_know_is_said_by_its_config(
    run: Run, model: Path, tmp_path: Path, architecture: str, engine: str, came: str | None
) -> None:
    assert model.is_dir()
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (tmp_path / "draft" / "model.safetensors").touch()
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"schema: 1\nname: mine\ntitle: t\nengine: {engine}\nmodel: {{path: ./model}}\n"
        "serve: {speculative: {method: dflash, model: ./draft, tokens: 7}}\n"
    )
    # A drafter's folder in a recipe run by its path needs consent.
    said = run("plan", str(path), "--allow-unsafe").stdout
    told = f"vLLM 0.25.1 does not know {architecture} of {tmp_path / 'draft'}, which came with"
    assert (f"{told} {came}" in said) is (came is not None)


def test_a_drafters_folder_is_mounted_and_named(run: Run, model: Path, tmp_path: Path) -> None:
    assert model.is_dir()
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text("{}")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "schema: 1\nname: mine\ntitle: t\nengine: cuda-0.33\nmodel: {path: ./model}\n"
        "serve: {speculative: {method: dflash, model: ./draft, tokens: 7}}\n"
    )
    done = run("plan", str(path), "--allow-unsafe", "--json")
    spec = json.loads(done.stdout)["container"]["spec"]
    mounts = {mount["source"]: mount["target"] for mount in spec["mounts"]}
    words = spec["command"]
    drafting = json.loads(words[words.index("--speculative-config") + 1])
    assert drafting["model"] == mounts[str(tmp_path / "draft")]
