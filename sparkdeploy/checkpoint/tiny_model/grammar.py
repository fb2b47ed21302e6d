"""What a twin says: a next token that two tokens decide, by a margin no rounding can close.

Random weights alone give near ties, and those fall differently whenever a kernel adds up in another
order; then greedy text with and without speculation differ although both are right. So a few
weights are set. Tokens that are continued alike share a code of random signs in their embeddings,
beside a bit of their own (`BIT`) and two constants. One head of the first DeltaNet layer looks back
one token, through its convolution, and writes that token's bit into `MEMORY`. The head's rows hold
the code of the tokens they follow, and a side: the memory decides between two followers. The draft
layer takes the embedding but not the memory and always guesses the same side, so it is right about
as often as a bit is set: drafts are accepted and rejected. All other weights are random, and too
weak to matter unless they become nonsense.
"""

import math
import random
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sparkdeploy.checkpoint.tiny_model import values
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape

BIT, CONSTANT, MEMORY = 0, 1, 2
"""Dimensions of the residual stream with a meaning; all others hold signs."""

_FIRST_SIGN = 3
_SET_BITS = 0.7
_BIT_SIZE, _CONSTANT_SIZE, _MEMORY_BIAS = 6.0, 4.0, 2.0
_HEAD_SIZE, _UNPRINTED_SIZE, _SIDE_SIZE = 0.25, 0.005, 1.25
_WORD_ZERO = 0x88888888.to_bytes(4, "little")
_WORD_FIRST = 0x8888888F.to_bytes(4, "little")
_WORD_FIRST_NEGATIVE = 0x88888881.to_bytes(4, "little")
_WORD_SECOND = 0x888888F8.to_bytes(4, "little")
_WORD_ALTERNATING = 0x1F1F1F1F.to_bytes(4, "little")


_DEALT_TOKENS = 50_000
"""How many tokens may be dealt out in all attempts at a grammar; some tens of milliseconds."""


class _Rule(NamedTuple):
    """Two tokens that are continued alike, and what follows a set and an unset bit."""

    members: tuple[int, int]
    followers: tuple[int, int]


@dataclass(frozen=True)
class Grammar:
    """The weights that decide the text. `printed` are the tokens greedy text consists of."""

    shape: TinyShape
    seed: int
    printed: frozenset[int]

    def embeddings(self) -> bytes:
        """BF16, vocab x hidden."""
        signs = self._signs(1.0)
        rows = bytearray(signs)
        for token, bit in enumerate(self._bits):
            size = _BIT_SIZE if bit else -_BIT_SIZE
            meaning = b"".join(map(values.bf16, (size, _CONSTANT_SIZE, _MEMORY_BIAS)))
            rows[self._row(token)] = meaning + self._code(signs, token)
        return bytes(rows)

    def head(self) -> bytes:
        """BF16, vocab x hidden: a follower has its rule's code and the side it is on."""
        signs = self._signs(_HEAD_SIZE)
        rows = bytearray(self._signs(_UNPRINTED_SIZE))
        for rule in self._rules:
            code = self._code(signs, rule.members[0])
            for follower, side in zip(rule.followers, (_SIDE_SIZE, -_SIDE_SIZE), strict=True):
                meaning = b"".join(map(values.bf16, (0.0, 0.0, side)))
                rows[self._row(follower)] = meaning + code
        return bytes(rows)

    def next_token(self, previous: int, token: int) -> int:
        """What follows `token` after `previous`, as any engine must find by greedy sampling."""
        rule = self._rule_of[self._stand_in(token)]
        return rule.followers[0 if self._bits[previous] else 1]

    def _row(self, token: int) -> slice:
        return slice(2 * self.shape.hidden * token, 2 * self.shape.hidden * (token + 1))

    def _code(self, signs: bytes, token: int) -> bytes:
        """The signs that all tokens of one rule share: those of its first member."""
        first = self._rule_of[self._stand_in(token)].members[0]
        return signs[self._row(first)][2 * _FIRST_SIGN :]

    def _stand_in(self, token: int) -> int:
        """The emitted token that `token` is continued like: itself, if it is emitted."""
        if token in self._rule_of:
            return token
        return self._emitted[token % len(self._emitted)]

    @cached_property
    def _bits(self) -> list[bool]:
        bits = self._random("bits")
        return [bits.random() < _SET_BITS for _ in range(self.shape.vocab)]

    @cached_property
    def _emitted(self) -> list[int]:
        """The tokens that follow others; an even number, because rules have two of them."""
        tokens = sorted(self.printed)
        return tokens[: len(tokens) // 2 * 2]

    @cached_property
    def _rules(self) -> list[_Rule]:
        """Of several ways to deal the tokens out, the one whose text repeats itself last."""
        attempts = max(1, _DEALT_TOKENS // len(self._emitted))
        return max((self._deal(attempt) for attempt in range(attempts)), key=self._length)

    @cached_property
    def _rule_of(self) -> dict[int, _Rule]:
        return _by_member(self._rules)

    def _deal(self, attempt: int) -> list[_Rule]:
        order = self._random(f"order {attempt}")
        members, followers = list(self._emitted), list(self._emitted)
        order.shuffle(members)
        order.shuffle(followers)
        return [
            _Rule((members[at], members[at + 1]), (followers[at], followers[at + 1]))
            for at in range(0, len(members), 2)
        ]

    def _length(self, rules: list[_Rule]) -> int:
        rule_of = _by_member(rules)
        bit, token = True, self._emitted[0]
        seen: set[tuple[bool, int]] = set()
        while (bit, token) not in seen:
            seen.add((bit, token))
            bit, token = self._bits[token], rule_of[token].followers[0 if bit else 1]
        return len(seen)

    def _signs(self, size: float) -> bytes:
        count = self.shape.vocab * self.shape.hidden
        return values.signs_bf16(self.seed, "signs", count=count, size=size)

    def _random(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed}:{purpose}")  # noqa: S311 (a twin holds no secret)


def _by_member(rules: list[_Rule]) -> dict[int, _Rule]:
    return {member: rule for rule in rules for member in rule.members}


def remembering(shape: TinyShape) -> Mapping[str, Callable[[bytes], bytes]]:
    """How parts of the first DeltaNet layer are changed, so that its first head is the memory."""
    width, size = shape.linear_value_width, shape.linear_head_dim
    keys = shape.linear_key_width
    zeros = _WORD_ZERO * size
    signs = (_WORD_FIRST + _WORD_FIRST_NEGATIVE) * (size // 2)

    def qkv(content: bytes, first: bytes, others: bytes) -> bytes:
        # Keys equal queries, and values of the head are plus or minus the bit.
        element = len(first) // size
        row_bytes, key_bytes = element * (2 * keys + width), element * keys
        return _in_each_row(
            content,
            row_bytes,
            key_bytes,
            lambda at: content[at : at + key_bytes] + (others if at else first),
        )

    def gate(content: bytes, first: bytes, others: bytes) -> bytes:
        # Opened by the constant.
        row_bytes = len(first) // size * width
        return _in_each_row(content, row_bytes, 0, lambda at: others if at else first)

    qkv_scales, gate_scales = struct.pack("<e", 0.086) * size, struct.pack("<e", 0.126) * size
    return {
        "in_proj_qkv.qweight": lambda words: qkv(words, signs, zeros),
        "in_proj_qkv.scales": lambda scales: qkv(scales, qkv_scales, qkv_scales),
        "in_proj_z.qweight": lambda words: gate(words, _WORD_SECOND * size, zeros),
        "in_proj_z.scales": lambda scales: gate(scales, gate_scales, gate_scales),
        "out_proj.qweight": lambda words: _remember_in_output(words, shape),
        "out_proj.scales": lambda scales: _with(scales, 2 * MEMORY, struct.pack("<e", 0.0042)),
        "conv1d.weight": lambda weight: _remember_in_convolution(weight, shape),
        # The head keeps nothing but what its convolution holds.
        "A_log": lambda decays: _with(decays, 0, struct.pack("<f", math.log(12.0))),
        "dt_bias": lambda biases: _with(biases, 0, values.bf16(5.0)),
    }


def _with(content: bytes, at: int, part: bytes) -> bytes:
    return content[:at] + part + content[at + len(part) :]


def _in_each_row(content: bytes, row_bytes: int, begin: int, part: Callable[[int], bytes]) -> bytes:
    """Set bytes from `begin` on in each row; `part` gets where its row begins."""
    changed = bytearray(content)
    for at in range(0, len(content), row_bytes):
        new = part(at)
        changed[at + begin : at + begin + len(new)] = new
    return bytes(changed)


def _remember_in_output(words: bytes, shape: TinyShape) -> bytes:
    """Sum the first head into the memory and nowhere else."""
    row = _with(_WORD_ZERO * shape.hidden, 4 * MEMORY, _WORD_ALTERNATING)
    return _with(words, 0, row * (shape.linear_head_dim // 8))


def _remember_in_convolution(weight: bytes, shape: TinyShape) -> bytes:
    """Treat keys as queries, and let values of the first head come from one token before."""
    keys = shape.linear_key_width * 2 * shape.conv_kernel
    taps = [0.0] * (shape.conv_kernel - 2) + [1.0, 0.0]
    head = b"".join(map(values.bf16, taps)) * shape.linear_head_dim
    return _with(weight, keys, weight[:keys] + head)


def draft_projection(weight: bytes, hidden: int) -> bytes:
    """Pass the embedding half through, except for the memory, which is made the same for all."""
    rows = bytearray(weight)
    for row in range(hidden):
        at = 2 * (row * 2 * hidden + row)
        rows[at : at + 2] = values.bf16(1.0)
    memory = _with(values.bf16(0.0) * (2 * hidden), 2 * CONSTANT, values.bf16(2.0))
    return _with(bytes(rows), 4 * hidden * MEMORY, memory)
