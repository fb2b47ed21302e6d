"""The twin: real names and kinds, the same bytes everywhere, quickly."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.checkpoint.safetensors import TensorInfo, read_header
from sparkdeploy.checkpoint.tiny_model.build import build_tiny_model, config_files
from sparkdeploy.checkpoint.tiny_model.grammar import Grammar
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.checkpoint.tiny_model.tensors import language_tensors, mtp_tensors, vision_tensors
from sparkdeploy.checkpoint.tiny_model.tokenizer import TinyTokenizer
from tests.unit.checkpoint.conftest import SMALL, tree

_LAYER = "model.language_model.layers"


def _tensors(folder: Path) -> dict[str, TensorInfo]:
    found: dict[str, TensorInfo] = {}
    for path in folder.glob("*.safetensors"):
        found.update(read_header(path).tensors)
    return found


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _described(shape: TinyShape) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of every tensor, without making any."""
    tokenizer = TinyTokenizer(shape.vocab)
    text = Grammar(shape, 1, tokenizer.printed_ids)
    tensors = {**language_tensors(text), **vision_tensors(shape, 1), **mtp_tensors(shape, 1)}
    return {name: (dtype, size) for name, (dtype, size, _) in tensors.items()}


def test_two_builds_are_byte_identical(twin: Path, tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "again", TinyShape(), seed=1)
    again = {name: (entry[0], entry[2]) for name, entry in tree(tmp_path / "again").items()}
    assert again == {name: (entry[0], entry[2]) for name, entry in tree(twin).items()}


def test_another_seed_gives_other_weights_of_the_same_shapes(
    small_twin: Path, tmp_path: Path
) -> None:
    build_tiny_model(tmp_path / "other", SMALL, seed=2)
    assert _tensors(tmp_path / "other") == _tensors(small_twin)
    shard = "model-00001-of-00002.safetensors"
    assert (tmp_path / "other" / shard).read_bytes() != (small_twin / shard).read_bytes()


def test_a_different_twin_is_replaced(tmp_path: Path) -> None:
    other = replace(SMALL, vocab=384)
    build_tiny_model(tmp_path / "twin", SMALL, seed=1)
    build_tiny_model(tmp_path / "twin", other, seed=1)
    text = _json(tmp_path / "twin" / "config.json")["text_config"]
    assert text["vocab_size"] == 384
    assert [path.name for path in tmp_path.iterdir()] == ["twin"]


def test_the_index_lists_every_tensor_in_its_file(twin: Path) -> None:
    index = _json(twin / "model.safetensors.index.json")
    truth = {
        name: path.name for path in twin.glob("*.safetensors") for name in read_header(path).tensors
    }
    assert index["weight_map"] == truth
    sizes = [tensor.size_bytes for tensor in _tensors(twin).values()]
    assert index["metadata"]["total_size"] == sum(sizes)


@pytest.mark.parametrize("experts", [2, 256])
def test_the_draft_layer_has_three_tensors_an_expert_and_seventeen_more(experts: int) -> None:
    tensors = mtp_tensors(TinyShape(experts=experts), 1)
    assert len(tensors) == 3 * experts + 17
    assert all(name.startswith("mtp.") for name in tensors)
    assert {dtype for dtype, _, _ in tensors.values()} == {"BF16"}


@pytest.mark.parametrize(
    "shape",
    [TinyShape(), TinyShape(expert_format="int4"), TinyShape(linear_value_heads=32)],
)
def test_the_16_bit_linears_are_exactly_those_that_the_configuration_keeps(
    shape: TinyShape,
) -> None:
    kept = config_files(shape)["quantization_config.json"]["extra_config"]
    assert isinstance(kept, dict)
    in_blocks = {name for name in kept if name.startswith(f"{_LAYER}.")}
    plain = {
        name.removesuffix(".weight").split(".experts.")[0] + ".experts" * (".experts." in name)
        for name, (_, size) in _described(shape).items()
        if name.startswith(f"{_LAYER}.") and name.endswith(".weight") and len(size) == 2
    }
    assert in_blocks == plain


@pytest.mark.parametrize(
    "shape",
    [
        TinyShape(layers=8, hidden=256, vocab=2048),
        TinyShape(linear_value_heads=32, vocab=320, expert_format="int4"),
        TinyShape(attention_heads=4, linear_key_heads=4, linear_value_heads=8, vision_depth=1),
    ],
)
def test_a_wider_twin_states_its_own_sizes(tmp_path: Path, shape: TinyShape) -> None:
    build_tiny_model(tmp_path / "twin", shape, seed=1)
    tensors = _tensors(tmp_path / "twin")
    text = _json(tmp_path / "twin" / "config.json")["text_config"]
    assert tensors["lm_head.weight"].shape == (text["vocab_size"], text["hidden_size"])
    assert len(text["layer_types"]) == text["num_hidden_layers"] == shape.layers
    shared = [name for name in tensors if ".shared_expert." in name and "mtp." not in name]
    assert len(shared) == 3 * shape.layers


@pytest.mark.parametrize("vocab", [320, 512, 5_000])
def test_every_token_id_has_one_token(vocab: int) -> None:
    described = json.loads(json.dumps(config_files(TinyShape(vocab=vocab))["tokenizer.json"]))
    ids = [*described["model"]["vocab"].values(), *(t["id"] for t in described["added_tokens"])]
    assert sorted(ids) == list(range(vocab))
