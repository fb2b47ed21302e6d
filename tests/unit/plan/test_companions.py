"""Adapters beside the model: looked for, told when they are missing, and mounted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.program import Done, Run

Plan = Callable[..., Done]

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


@pytest.fixture
def plan(run: Run, model: Path, tmp_path: Path) -> Plan:
    """Plan a recipe for that model, with what it says of serving; a folder needs consent."""
    assert model.is_dir()

    def planned(serve: str, *words: str, engine: str = "cuda-0.25") -> Done:
        path = tmp_path / "mine.yaml"
        path.write_text(
            f"schema: 1\nname: mine\ntitle: t\nengine: {engine}\nmodel: {{path: ./model}}\n"
            f"serve: {{{serve}}}\n"
        )
        return run("plan", str(path), "--allow-unsafe", *words)

    return planned


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return folder


DRAFTING = "speculative: {method: dflash, model: ./draft, tokens: 7}"


def option(spec: dict[str, Any], flag: str) -> Any:
    return json.loads(spec["command"][spec["command"].index(flag) + 1])


def spec_of(done: Done) -> tuple[dict[str, Any], dict[str, str]]:
    """The planned container, and where each path is mounted."""
    spec = json.loads(done.stdout)["container"]["spec"]
    return spec, {mount["source"]: mount["target"] for mount in spec["mounts"]}


def test_an_adapters_folder_is_mounted(plan: Plan, adapter: Path) -> None:
    spec, mounts = spec_of(plan("lora: [{name: birds, path: ./adapter}]", "--json"))
    inside = mounts[str(adapter)]
    assert option(spec, "--lora-modules") == {"name": "birds", "path": inside}


def test_an_adapter_of_a_hub_is_told_when_it_is_missing(plan: Plan) -> None:
    assert "lab/birds is not here" in plan("lora: [{name: birds, repo: lab/birds}]").stdout


def test_an_adapter_without_a_place_is_a_mistake(plan: Plan) -> None:
    done = plan("lora: [{name: birds}]")
    assert done.returncode == 3
    assert "serve.lora.0" in done.stderr


def test_a_model_that_an_older_release_does_not_know_is_said_by_its_config(
    plan: Plan, model: Path
) -> None:
    (model / "config.json").write_text(json.dumps({"architectures": ["Step5ForCausalLM"]}))
    told = "vLLM 0.25.1 does not know Step5ForCausalLM, which came with 0.33.0"
    assert told in plan("").stdout


@pytest.mark.parametrize(
    ("architecture", "engine", "came"),
    [
        ("DFlash2DraftModel", "cuda-0.25", "0.28.0"),
        ("DFlash2DraftModel", "cuda-0.33", None),
        ("DFlashDraftModel", "cuda-0.25", None),
    ],
)
def test_a_drafter_that_an_older_release_does_not_know_is_said_by_its_config(
    plan: Plan, draft: Path, architecture: str, engine: str, came: str | None
) -> None:
    (draft / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    said = plan(DRAFTING, engine=engine).stdout
    told = f"vLLM 0.25.1 does not know {architecture} of {draft}, which came with"
    assert (f"{told} {came}" in said) is (came is not None)


def test_a_drafters_folder_is_mounted_and_named(plan: Plan, draft: Path) -> None:
    (draft / "model.safetensors").unlink()
    spec, mounts = spec_of(plan(DRAFTING, "--json", engine="cuda-0.33"))
    assert option(spec, "--speculative-config")["model"] == mounts[str(draft)]
