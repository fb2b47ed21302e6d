"""A LoRA adapter, served by the real vLLM under a name of its own beside its model.

The model is a dense Qwen3 of random weights: the CPU build has no kernels for experts with LoRA.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.engine.conftest import free_port
from tests.engine.program import Program
from tests.engine.vllm.twin_user import unique_name
from tests.families.checkpoints import Tensors, plain, random_checkpoint, write_random

pytestmark = [
    # What the plugin makes of an adapter is held on real layers in tests/engine/inside.
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(1200),
    pytest.mark.runs("down", "up"),
]

NAME, PORT = unique_name("adapted"), free_port()
FAMILY, RANK = "qwen3-dense", 8
ADAPTER = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "lab/dense",
    "r": RANK,
    "lora_alpha": 64 * RANK,
    "target_modules": ["o_proj"],
    "bias": "none",
}


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    random_checkpoint(tmp_path / "dense", FAMILY)
    write_adapter(tmp_path / "adapter")
    recipe = {
        "schema": 1,
        "name": "dense",
        "title": "A dense model with an adapter",
        "engine": "cpu-0.32",
        "model": {"path": str(tmp_path / "dense"), "served_name": "dense"},
        "serve": {
            "port": PORT,
            "max_model_len": 512,
            "enforce_eager": True,
            "lora": [{"name": "adapted", "path": str(tmp_path / "adapter")}],
        },
        "limits": {"memory_floor_gib": 1, "startup_timeout_s": 600},
    }
    (tmp_path / "dense.yaml").write_text(json.dumps(recipe))
    yield made
    made.run("down", "--yes", NAME)


def write_adapter(folder: Path) -> None:
    tensors: Tensors = {}
    for name, (dtype, shape) in plain(FAMILY).items():
        if name.endswith("self_attn.o_proj.weight"):
            outputs, inputs = shape
            module = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{module}.lora_A.weight"] = (dtype, (RANK, inputs))
            tensors[f"{module}.lora_B.weight"] = (dtype, (outputs, RANK))
    write_random(folder, "adapter_model.safetensors", tensors, seed="adapter")
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER))


def test_clients_ask_for_the_adapter_by_its_name(program: Program) -> None:
    recipe = str(program.root / "dense.yaml")
    program.answer("up", recipe, "--allow-unsafe", "--name", NAME, "--yes")
    texts = {name: completion(name) for name in ("dense", "adapted")}
    assert len(set(texts.values())) == len(texts)


def completion(model: str) -> str:
    """Return the likeliest continuation that a served name gives."""
    asked = {"model": model, "prompt": "Hello there", "max_tokens": 16, "temperature": 0}
    address = f"http://127.0.0.1:{PORT}/v1/completions"
    return str(requests.post(address, json=asked, timeout=60).json()["choices"][0]["text"])
