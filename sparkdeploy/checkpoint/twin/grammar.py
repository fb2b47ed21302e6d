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
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sparkdeploy.checkpoint.twin import values
from sparkdeploy.checkpoint.twin.shape import GROUP_SIZE, TwinShape

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

    shape: TwinShape
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


def remember_in_qkv(words: bytes, shape: TwinShape) -> bytes:
    """Make keys equal queries, and values of the first head equal to plus or minus the bit."""
    changed = bytearray(words)
    columns, keys = 2 * shape.linear_key_width + shape.linear_value_width, shape.linear_key_width
    head = range(2 * keys, 2 * keys + shape.linear_head_dim)
    for row in range(shape.hidden // 8):
        at = 4 * row * columns
        changed[at + 4 * keys : at + 8 * keys] = changed[at : at + 4 * keys]
        for column in head:
            sign = _WORD_FIRST if column % 2 == 0 else _WORD_FIRST_NEGATIVE
            word = sign if row == 0 else _WORD_ZERO
            changed[at + 4 * column : at + 4 * column + 4] = word
    return bytes(changed)


def remember_in_qkv_scales(scales: bytes, shape: TwinShape) -> bytes:
    """The scales that belong to `remember_in_qkv`."""
    changed = bytearray(scales)
    columns, keys = 2 * shape.linear_key_width + shape.linear_value_width, shape.linear_key_width
    for group in range(shape.hidden // GROUP_SIZE):
        at = 2 * group * columns
        changed[at + 2 * keys : at + 4 * keys] = changed[at : at + 2 * keys]
        head = at + 4 * keys
        changed[head : head + 2 * shape.linear_head_dim] = values.f16(0.086) * shape.linear_head_dim
    return bytes(changed)


def remember_in_gate(words: bytes, shape: TwinShape) -> bytes:
    """Open the first head's output gate, by the constant."""
    changed = bytearray(words)
    for row in range(shape.hidden // 8):
        at = 4 * row * shape.linear_value_width
        word = _WORD_SECOND if row == 0 else _WORD_ZERO
        changed[at : at + 4 * shape.linear_head_dim] = word * shape.linear_head_dim
    return bytes(changed)


def remember_in_gate_scales(scales: bytes, shape: TwinShape) -> bytes:
    """The scales that belong to `remember_in_gate`."""
    changed = bytearray(scales)
    for group in range(shape.hidden // GROUP_SIZE):
        at = 2 * group * shape.linear_value_width
        changed[at : at + 2 * shape.linear_head_dim] = values.f16(0.126) * shape.linear_head_dim
    return bytes(changed)


def remember_in_output(words: bytes, shape: TwinShape) -> bytes:
    """Sum the first head into the memory and nowhere else."""
    row = bytearray(_WORD_ZERO * shape.hidden)
    row[4 * MEMORY : 4 * MEMORY + 4] = _WORD_ALTERNATING
    rows = shape.linear_head_dim // 8
    return bytes(row) * rows + words[4 * rows * shape.hidden :]


def remember_in_output_scales(scales: bytes) -> bytes:
    """The scales that belong to `remember_in_output`."""
    return scales[: 2 * MEMORY] + values.f16(0.0042) + scales[2 * MEMORY + 2 :]


def remember_in_convolution(weight: bytes, shape: TwinShape) -> bytes:
    """Treat keys as queries, and let values of the first head come from one token before."""
    changed = bytearray(weight)
    row_bytes = 2 * shape.conv_kernel
    keys = shape.linear_key_width * row_bytes
    changed[keys : 2 * keys] = changed[:keys]
    taps = [0.0] * (shape.conv_kernel - 2) + [1.0, 0.0]
    head = b"".join(map(values.bf16, taps)) * shape.linear_head_dim
    changed[2 * keys : 2 * keys + len(head)] = head
    return bytes(changed)


def draft_projection(weight: bytes, hidden: int) -> bytes:
    """Pass the embedding half through, except for the memory, which is made the same for all."""
    rows = bytearray(weight)
    for row in range(hidden):
        at = 2 * (row * 2 * hidden + row)
        rows[at : at + 2] = values.bf16(1.0)
    memory = 2 * MEMORY * 2 * hidden
    row_of_memory = bytearray(values.bf16(0.0) * (2 * hidden))
    row_of_memory[2 * CONSTANT : 2 * CONSTANT + 2] = values.bf16(2.0)
    rows[memory : memory + 4 * hidden] = row_of_memory
    return bytes(rows)


FORGETTING_DECAY = math.log(12.0)
FORGETTING_BIAS = 5.0
"""A_log and dt_bias of the head that shall keep nothing but what its convolution holds."""
