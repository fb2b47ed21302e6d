"""One sentence hidden in a long text, at several depths: does the model still find it?

Long contexts are where a quantised KV cache or a wrong position encoding shows first, while short
prompts go on as if nothing were. The haystack is a ledger of our own whose lines are all different,
so that the one line that matters does not stand out by its form.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.bench.endpoint import reach
from sparkdeploy.bench.files import shipped
from sparkdeploy.recipe.answers import CHAT
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.bench.endpoint import Access
    from sparkdeploy.server.client import Completion, ServedModel
    from sparkdeploy.settings import Settings

DEPTHS = (0.1, 0.5, 0.9)
MAX_TOKENS = 64
TEXTS = "quality/needle.yaml"
SAFETY = 0.95
"""Lines differ in length; a haystack a little too short is better than one that is refused."""
SAMPLE_LINES = (2, 8)
"""Of the prompts that measure how many tokens a line takes; every answer measures it again."""
_SHOWN_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class NeedleResult:
    length: int
    """The prompt length that was aimed at, in tokens."""
    depth: float
    """Where the needle was: 0 is the beginning, 1 the end."""
    prompt_tokens: int
    is_found: bool
    answer: str


def haystack(line_count: int, depth: float, code: int, *, seed: int) -> str:
    """Return `line_count` lines of ledger with the needle at `depth` (0 to 1) of them."""
    source = random.Random(seed)  # noqa: S311 - not for secrets
    lines = [_ledger_line(number, source) for number in range(1, line_count + 1)]
    lines.insert(round(depth * line_count), shipped(TEXTS)["needle"].format(code=code))
    return "\n".join(lines)


def is_answer(text: str, code: int) -> bool:
    return re.search(rf"(?<!\d){code}(?!\d)", text.replace(",", "")) is not None


def search(
    model: ServedModel,
    lengths: Sequence[int],
    *,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> Iterator[NeedleResult]:
    """Ask at every length and depth; UnhealthyError when the server does not answer."""
    fixed_tokens, tokens_a_line = _measure_prompts(model)
    cases = [(length, depth) for length in lengths for depth in DEPTHS]
    for index, (length, depth) in enumerate(cases):
        on_progress(f"{length} tokens, needle at {depth:.0%} ({index + 1} of {len(cases)})")
        room_tokens = SAFETY * (length - MAX_TOKENS) - fixed_tokens
        line_count = max(int(room_tokens / tokens_a_line), 1)
        code = 10_000 + (index * 7919 + length) % 90_000
        text = haystack(line_count, depth, code, seed=index)
        done = _ask(model, text, MAX_TOKENS)
        tokens_a_line = max((done.prompt_tokens - fixed_tokens) / line_count, 1.0)
        yield NeedleResult(
            length=length,
            depth=depth,
            prompt_tokens=done.prompt_tokens,
            is_found=is_answer(done.text, code),
            answer=done.text[:_SHOWN_CHARACTERS],
        )


def fitting(lengths: Sequence[int], max_model_len: int | None) -> tuple[int, ...]:
    """Return the lengths a model takes; of those beyond it, its own limit stands for all."""
    return tuple(sorted({min(length, max_model_len or length) for length in lengths}))


def search_needles(
    side: str, lengths: Sequence[int], settings: Settings, access: Access
) -> tuple[NeedleResult, ...]:
    found = reach(side, settings, access)
    with found.opened() as model, console.step(f"needles in {found.label}") as step:
        fits = fitting(lengths, found.max_model_len)
        return tuple(search(model, fits, on_progress=step.say))


def needle_lines(found: Sequence[NeedleResult]) -> Iterator[str]:
    depths = sorted({item.depth for item in found})
    yield "  tokens  " + "".join(f"{depth:>7.0%}" for depth in depths)
    for length in sorted({item.length for item in found}):
        row = {item.depth: item for item in found if item.length == length}
        marks = ("+" if row[depth].is_found else "-" for depth in depths)
        yield f"{length:>8}  " + "".join(f"{mark:>7}" for mark in marks)
    yield "  + the model named the number, - it did not"
    missed = [item for item in found if not item.is_found]
    yield f"found {len(found) - len(missed)} of {len(found)}"
    for item in missed[:3]:
        yield f"  at {item.length} tokens, {item.depth:.0%}, the model said: {item.answer!r}"


def _ledger_line(number: int, source: random.Random) -> str:
    count = source.randint(2, 900)
    goods, town = (source.choice(shipped(TEXTS)[kind]) for kind in ("goods", "towns"))
    day, shelf = source.randint(1, 365), f"{source.choice('ABCDEFGH')}{source.randint(1, 99)}"
    return f"{number:05}. Day {day}: {count} crates of {goods} from {town}, put on shelf {shelf}."


def _measure_prompts(model: ServedModel) -> tuple[float, float]:
    """Return the tokens of the question with all around it, and those of one line."""
    few, many = SAMPLE_LINES
    short, long = (
        _ask(model, haystack(line_count, 0.5, 0, seed=0), 1).prompt_tokens
        for line_count in SAMPLE_LINES
    )
    tokens_a_line = max((long - short) / (many - few), 1.0)
    return max(short - few * tokens_a_line, 0.0), tokens_a_line


def _ask(model: ServedModel, text: str, max_tokens: int) -> Completion:
    question = {"role": "user", "content": f"{text}\n\n{shipped(TEXTS)['question']}"}
    # What matters is whether it finds the number, not how long it thinks about that.
    silent = {"chat_template_kwargs": {"enable_thinking": False}}
    return model.generate(CHAT, {"messages": [question], "max_tokens": max_tokens, **silent})
