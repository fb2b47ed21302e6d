"""The twin: real names and kinds, the same bytes everywhere, quickly."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.checkpoint.tiny_model.build import build_tiny_model, config_files
from sparkdeploy.checkpoint.tiny_model.grammar import Grammar
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.checkpoint.tiny_model.tensors import language_tensors, mtp_tensors, vision_tensors
from sparkdeploy.checkpoint.tiny_model.tokenizer import TinyTokenizer
from tests.unit.checkpoint.conftest import SMALL, tree

_LAYER = "model.language_model.layers"


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


def test_a_different_twin_is_replaced(tmp_path: Path) -> None:
    other = replace(SMALL, vocab=384)
    build_tiny_model(tmp_path / "twin", SMALL, seed=1)
    build_tiny_model(tmp_path / "twin", other, seed=1)
    text = _json(tmp_path / "twin" / "config.json")["text_config"]
    assert text["vocab_size"] == 384
    assert [path.name for path in tmp_path.iterdir()] == ["twin"]


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


@pytest.mark.parametrize("vocab", [320, 512, 5_000])
def test_every_token_id_has_one_token(vocab: int) -> None:
    described = json.loads(json.dumps(config_files(TinyShape(vocab=vocab))["tokenizer.json"]))
    ids = [*described["model"]["vocab"].values(), *(t["id"] for t in described["added_tokens"])]
    assert sorted(ids) == list(range(vocab))
