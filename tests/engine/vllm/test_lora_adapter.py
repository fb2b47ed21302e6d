"""A LoRA adapter, served by the real vLLM under a name of its own beside its model.

The model is a dense Qwen3 of random weights: the CPU build has no kernels for experts with LoRA.
"""

from __future__ import annotations

import json
import random
import struct
import urllib.request
from array import array
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.engine.conftest import free_port
from tests.engine.vllm.twin_user import twin_user, unique_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.engine.program import Program

pytestmark = [
    # What the plugin makes of an adapter is held on real layers in tests/engine/inside.
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.in_order,
    pytest.mark.timeout(1200),
    pytest.mark.runs("down", "plan", "up"),
]

NAME, PORT = unique_name("adapted"), free_port()
LAYERS, HIDDEN, HEADS, HEAD_SIZE, MLP, VOCABULARY, RANK = 2, 64, 2, 32, 128, 512, 8
ATTENTION = HEADS * HEAD_SIZE
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "float32",
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD_SIZE,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
ADAPTER_CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "lab/dense",
    "r": RANK,
    "lora_alpha": 4 * RANK,
    "target_modules": ["o_proj"],
    "bias": "none",
}
Shape: TypeAlias = "tuple[int, ...]"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    root = tmp_path_factory.mktemp("lora")
    made = twin_user(root, port=PORT)
    write_model(root / "dense", root / "twin")
    write_adapter(root / "adapter")
    (root / "config" / "recipes" / "dense.yaml").write_text(json.dumps(recipe(root)))
    yield made
    made.run("down", "--yes", NAME)


def recipe(root: Path) -> dict[str, object]:
    return {
        "schema": 1,
        "name": "dense",
        "title": "A dense model with an adapter",
        "engine": "cpu-0.32",
        "model": {"path": str(root / "dense"), "served_name": "dense"},
        "serve": {
            "port": PORT,
            "max_model_len": 512,
            "enforce_eager": True,
            "lora": [{"name": "adapted", "path": str(root / "adapter")}],
        },
        "limits": {"memory_floor_gib": 1, "startup_timeout_s": 600},
    }


def write_model(folder: Path, twin: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name in TOKENIZER_FILES:
        (folder / name).write_bytes((twin / name).read_bytes())
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "lm_head.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes().items()}
    write_weights(folder / "model.safetensors", shapes)


def layer_shapes() -> dict[str, Shape]:
    into, out = (ATTENTION, HIDDEN), (HIDDEN, ATTENTION)
    return {
        **{f"self_attn.{name}_proj.weight": into for name in "qkv"},
        "self_attn.o_proj.weight": out,
        **{f"self_attn.{name}_norm.weight": (HEAD_SIZE,) for name in "qk"},
        "mlp.gate_proj.weight": (MLP, HIDDEN),
        "mlp.up_proj.weight": (MLP, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, MLP),
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
    }


def write_adapter(folder: Path) -> None:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER_CONFIG))
    shapes: dict[str, Shape] = {}
    for layer in range(LAYERS):
        module = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        shapes[f"{module}.lora_A.weight"] = (RANK, ATTENTION)
        shapes[f"{module}.lora_B.weight"] = (HIDDEN, RANK)
    write_weights(folder / "adapter_model.safetensors", shapes)


def write_weights(file: Path, shapes: Mapping[str, Shape]) -> None:
    """Write tensors of random float32 values, the same ones each time."""
    values, header, data = random.Random(0), {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensor = array("f", (values.gauss(0, 0.3) for _ in range(count))).tobytes()
        ends = [len(data), len(data) + len(tensor)]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": ends}
        data += tensor
    head = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(head)) + head + data)


def test_clients_ask_for_the_adapter_by_its_name(program: Program) -> None:
    program.answer("up", "dense", "--name", NAME, "--yes")
    texts = {name: completion(name) for name in ("dense", "adapted")}
    assert len(set(texts.values())) == len(texts)


def completion(model: str) -> str:
    """Return the likeliest continuation that a served name gives."""
    asked = {"model": model, "prompt": "Hello there", "max_tokens": 16, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/completions",
        data=json.dumps(asked).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])
