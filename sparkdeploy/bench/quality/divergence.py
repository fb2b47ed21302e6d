"""How far two models are apart at one position, and where their greedy texts part. Pure maths."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEAST_REST = 1e-9
"""A remainder below this is rounding: told log-probabilities add up to 1 only roughly."""


class Divergence(NamedTuple):
    """The Kullback-Leibler divergence of two distributions of which only the top is known."""

    nats: float
    """A lower bound of the whole divergence; it is exact when `unseen` is 0."""
    unseen: float
    """The first model's probability of all tokens that not both models told."""


def divergence(first: Mapping[int, float], second: Mapping[int, float]) -> Divergence:
    """Return KL(first || second) over the tokens that both tell, and one bucket for all others.

    `KL = sum_x p(x) ln(p(x) / q(x))` (Kullback and Leibler 1951). Tokens that only one model tells
    are put into one bucket with the rest of the vocabulary. Merging outcomes never raises a
    divergence (the log-sum inequality; Cover and Thomas, Elements of Information Theory, 2.7), so
    the result is a lower bound. What it misses is `unseen` times the divergence within the bucket.
    Both arguments hold natural log-probabilities by token.
    """
    shared = first.keys() & second.keys()
    seen_p = math.fsum(math.exp(first[token]) for token in shared)
    seen_q = math.fsum(math.exp(second[token]) for token in shared)
    rest_p, rest_q = (max(1.0 - seen, LEAST_REST) for seen in (seen_p, seen_q))
    terms = [math.exp(first[token]) * (first[token] - second[token]) for token in shared]
    terms.append(rest_p * math.log(rest_p / rest_q))
    # A sum of rounded terms may fall a hair under the zero that the true one never crosses.
    return Divergence(max(math.fsum(terms), 0.0), 0.0 if rest_p == LEAST_REST else rest_p)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the index of the first token that differs; None when the shorter one holds out."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
