"""One request at longer contexts: its speed, and from where on a narrower cache makes it faster."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.estimate.attention import PLAIN
from sparkdeploy.estimate.decode import decode_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sparkdeploy.estimate.acceptance import Acceptance
    from sparkdeploy.estimate.decode import DecodeStep
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.estimate.speed import Speed
    from sparkdeploy.recipe.load import Resolved

CONTEXTS = (1024, 4096, 16384, 32768, 65536, 131_072, 262_144)


@dataclass(frozen=True, slots=True)
class ContextSpeed:
    """One request's step at a context, and with the same model's 16-bit cache where it differs."""

    context_tokens: int
    step: DecodeStep
    plain: DecodeStep | None


@dataclass(frozen=True, slots=True)
class ContextOutlook:
    """What a recipe's speed does as a request grows, up to its longest context."""

    speed: Speed
    kv_cache_dtype: str
    rows: tuple[ContextSpeed, ...]
    wins_from: int | None
    """Tokens of the first context at which it beats the 16-bit cache; None where none does."""

    @property
    def is_narrower(self) -> bool:
        return any(row.plain is not None for row in self.rows)


def context_outlook(
    resolved: Resolved,
    facts: ModelFacts,
    acceptance: Mapping[str, Acceptance],
    speed: Speed,
    longest_tokens: int,
) -> ContextOutlook | None:
    """Return the outlook up to `longest_tokens` (0: all contexts).

    None for a model without a growing cache, and where a step cannot be estimated.
    """
    if facts.architecture is None or not facts.architecture.attention_layers:
        return None
    kv_dtype = resolved.recipe.serve.kv_cache_dtype

    def step_of(context_tokens: int, form: str) -> DecodeStep | None:
        return decode_step(
            resolved, facts, acceptance, context_tokens=context_tokens, kv_cache_dtype=form
        )

    def is_faster(context_tokens: int) -> bool:
        steps = (step_of(context_tokens, form) for form in (kv_dtype, PLAIN))
        own, plain = (speed.duration_s(step) if step is not None else 0.0 for step in steps)
        return own < plain

    rows = tuple(
        ContextSpeed(context, step, step_of(context, PLAIN) if kv_dtype != PLAIN else None)
        for context in _contexts(longest_tokens)
        if (step := step_of(context, kv_dtype)) is not None
    )
    if not rows:
        return None
    return ContextOutlook(speed, kv_dtype, rows, _first(is_faster, rows[-1].context_tokens))


def _contexts(longest_tokens: int) -> list[int]:
    longest = longest_tokens or CONTEXTS[-1]
    return sorted({*(context for context in CONTEXTS if context < longest), longest})


def _first(is_faster: Callable[[int], bool], longest_tokens: int) -> int | None:
    """Return the first context that is faster; a cache that wins goes on winning.

    Bytes grow with the context on both sides, and all else stays as it is.
    """
    contexts = range(1, longest_tokens + 1)
    slower = bisect.bisect_left(contexts, True, key=is_faster)
    return slower + 1 if slower < longest_tokens else None


def rounded(tokens: int) -> int:
    """Return a number of tokens with two digits that count, not below it."""
    unit: int = 10 ** max(0, len(str(tokens)) - 2)
    return -(-tokens // unit) * unit


def context_lines(outlook: ContextOutlook) -> Iterator[str]:
    """Yield a table of one request's speed by context, and where a narrower cache pays."""
    beside = f"{PLAIN + ' tok/s':>12}" if outlook.is_narrower else ""
    yield f"one request by context, KV cache {outlook.kv_cache_dtype}"
    yield f"  {'context':>10}{'KV cache GB':>13}{'ms':>8}{'tok/s':>9}{beside}"
    for row in outlook.rows:
        yield _row(outlook.speed, row)
    if outlook.is_narrower:
        yield f"  {wins_words(outlook)}"
    yield from _pace_lines(outlook)


def _row(speed: Speed, row: ContextSpeed) -> str:
    plain = f"{speed.tokens_per_second(row.plain):>12.1f}" if row.plain is not None else ""
    return (
        f"  {row.context_tokens:>10,}{row.step.cache_bytes / 1e9:>13.2f}"
        f"{1000 * speed.duration_s(row.step):>8.1f}{speed.tokens_per_second(row.step):>9.1f}{plain}"
    )


def wins_words(outlook: ContextOutlook) -> str:
    """Return from where on the format is faster than 16 bits, or that it is nowhere."""
    name, first = outlook.kv_cache_dtype, outlook.wins_from
    if first is None:
        longest = outlook.rows[-1].context_tokens
        return (
            f"{name} is not faster than {PLAIN} at any context up to {longest:,} tokens: use it "
            "for the room, not for the speed"
        )
    if first == 1:
        return f"{name} is faster than {PLAIN} at every context"
    return f"{name} is faster than {PLAIN} from about {rounded(first):,} tokens on"


def _pace_lines(outlook: ContextOutlook) -> Iterator[str]:
    """Yield what share of the bandwidth attention is taken to reach, and how anybody knows."""
    speed, name = outlook.speed, outlook.kv_cache_dtype
    table, hardware = speed.attention, speed.hardware
    rows = outlook.rows[0].step.query_rows
    pace = table.pace(name, hardware, rows)
    measured = table.pace(name, table.measured_on, rows)
    there = table.measured_on
    if hardware.name == there.name:
        yield f"  attention reads it at {pace.share:.0%} of the bandwidth: {table.source}"
        return
    how = f"derived from {measured.share:.0%} on {there.title}, not measured on this machine"
    yield f"  attention reads it at {pace.share:.0%} of the bandwidth: {how} ({table.source})"
    if pace.share != measured.share and hardware.bytes_a_clock and there.bytes_a_clock:
        yield (
            f"  ({hardware.bytes_a_clock:.1f} bytes a clock come to each multiprocessor here, "
            f"{there.bytes_a_clock:.1f} there, and a byte takes as many instructions)"
        )


def contexts_as_dict(outlook: ContextOutlook | None) -> dict[str, Any] | None:
    """Return the outlook as plain values for `--json`."""
    if outlook is None:
        return None
    speed = outlook.speed
    return {
        "kv_cache_dtype": outlook.kv_cache_dtype,
        "faster_than_auto_from_tokens": outlook.wins_from if outlook.is_narrower else None,
        "rows": [
            {
                "context_tokens": row.context_tokens,
                "cache_bytes": row.step.cache_bytes,
                "tok_s": speed.tokens_per_second(row.step),
                "auto_tok_s": speed.tokens_per_second(row.plain) if row.plain else None,
            }
            for row in outlook.rows
        ],
    }
