"""Two probes of a model: a sentence hidden in long texts, and calls of tools.

Long contexts are where a quantised KV cache or a wrong position encoding shows first, while short
prompts go on as if nothing were. The haystack is a ledger of our own whose lines are all different,
so that the one line that matters does not stand out by its form. A wrong `--tool-call-parser`
leaves the model's own markup in the text, or loses it; both look like a model that cannot call
tools.
"""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparkdeploy.bench.endpoint import Access, reach
from sparkdeploy.bench.files import shipped
from sparkdeploy.bench.suites import TokenEstimator
from sparkdeploy.recipe.answers import CHAT
from sparkdeploy.server.client import Completion, ServedModel
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console

DEPTHS = (0.1, 0.5, 0.9)
MAX_TOKENS = 64
MAX_CALL_TOKENS = 1024
TEXTS = "quality/needle.yaml"
CASES = "quality/tool_calls.yaml"
MOST_TOKENS_A_LINE = 64
_SHOWN_CHARACTERS = 120
SILENT = {"chat_template_kwargs": {"enable_thinking": False}}
"""What matters is what it answers, not how long it thinks about that."""
MARKUP = ("<tool_call", "<function=", "</function>", "<|tool", "[TOOL_CALLS]", "<invoke")
"""What models write around a call; none of it may be left in the text."""


@dataclass(frozen=True, slots=True)
class NeedleResult:
    length: int
    """The prompt length that was aimed at, in tokens."""
    depth: float
    """Where the needle was: 0 is the beginning, 1 the end."""
    prompt_tokens: int
    is_found: bool
    answer: str


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of one case; `problem` is empty when all was right."""

    name: str
    problem: str
    said: str


def search_needles(
    side: str, lengths: Sequence[int], settings: Settings, access: Access
) -> tuple[NeedleResult, ...]:
    """Ask at every length and depth; the model's own limit stands for all lengths beyond it."""
    found = reach(side, settings, access)
    fitting = sorted({min(length, found.max_model_len or length) for length in lengths})
    cases = [(length, depth) for length in fitting for depth in DEPTHS]
    results = []
    with found.server.again() as model, console.step(f"needles in {found.label}") as step:
        estimator = TokenEstimator(partial(_tokens_of, model), MOST_TOKENS_A_LINE)
        for index, (length, depth) in enumerate(cases):
            step.say(f"{length} tokens, needle at {depth:.0%} ({index + 1} of {len(cases)})")
            line_count = estimator.pieces_for(length - MAX_TOKENS)
            code = 10_000 + (index * 7919 + length) % 90_000
            done = _ask(model, haystack(line_count, depth, code, seed=index), MAX_TOKENS)
            is_found, said = is_answer(done.text, code), done.text[:_SHOWN_CHARACTERS]
            results.append(NeedleResult(length, depth, done.prompt_tokens, is_found, said))
    return tuple(results)


def haystack(line_count: int, depth: float, code: int, *, seed: int) -> str:
    """Return `line_count` lines of ledger with the needle at `depth` (0 to 1) of them."""
    source = random.Random(seed)  # noqa: S311 - not for secrets
    lines = [_ledger_line(number, source) for number in range(1, line_count + 1)]
    lines.insert(round(depth * line_count), shipped(TEXTS)["needle"].format(code=code))
    return "\n".join(lines)


def _ledger_line(number: int, source: random.Random) -> str:
    count = source.randint(2, 900)
    goods, town = (source.choice(shipped(TEXTS)[kind]) for kind in ("goods", "towns"))
    day, shelf = source.randint(1, 365), f"{source.choice('ABCDEFGH')}{source.randint(1, 99)}"
    return f"{number:05}. Day {day}: {count} crates of {goods} from {town}, put on shelf {shelf}."


def is_answer(text: str, code: int) -> bool:
    return re.search(rf"(?<!\d){code}(?!\d)", text.replace(",", "")) is not None


def _question(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{text}\n\n{shipped(TEXTS)['question']}"}]


def _ask(model: ServedModel, text: str, max_tokens: int) -> Completion:
    body = {"messages": _question(text), "max_tokens": max_tokens}
    return model.generate(CHAT, {**body, **SILENT})


def _tokens_of(model: ServedModel, line_count: int) -> int:
    text = haystack(line_count, 0.5, 0, seed=0)
    return model.prompt_tokens(_question(text)) or _ask(model, text, 1).prompt_tokens


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


def try_tools(side: str, settings: Settings, access: Access) -> tuple[CaseResult, ...]:
    """Ask every case; UnhealthyError when the server refuses tools or does not answer."""
    found, asked, results = reach(side, settings, access), shipped(CASES), []
    with found.server.again() as model, console.step(f"tool calls of {found.label}") as step:
        for number, case in enumerate(asked["cases"], 1):
            step.say(f"case {number} of {len(asked['cases'])}: {case['name']}")
            body = {
                "messages": [{"role": "user", "content": case["request"]}],
                "tools": asked["tools"],
                "tool_choice": "auto",
                "max_tokens": MAX_CALL_TOKENS,
                "temperature": 0.0,
            }
            answer = model.ask(CHAT, body | SILENT)
            results.append(judge(case, answer["choices"][0].get("message") or {}))
    return tuple(results)


def judge(case: Mapping[str, Any], message: Mapping[str, Any]) -> CaseResult:
    """Judge an answer; a case without `function` needs no tool."""
    calls = message.get("tool_calls") or []
    text = str(message.get("content") or "")
    said = json.dumps([call.get("function") for call in calls]) if calls else text[:200]
    left = next((mark for mark in MARKUP if mark in text), None)
    wanted = case.get("function")
    if left is not None:
        problem = f"the parser left {left!r} in the text: is it the right one for this model?"
    elif wanted is None:
        problem = "a tool was called that nobody needs" if calls else ""
    elif len(calls) != 1:
        problem = f"expected one call of {wanted}, got {len(calls) or 'none'}"
    else:
        problem = _call_problem(case, calls[0].get("function") or {})
    return CaseResult(case["name"], problem, said)


def _call_problem(case: Mapping[str, Any], function: Mapping[str, Any]) -> str:
    wanted = case["arguments"]
    if function.get("name") != case["function"]:
        return f"expected {case['function']}, got {function.get('name')!r}"
    try:
        arguments = json.loads(function.get("arguments") or "")
    except ValueError:
        return "the arguments are not JSON"
    if not isinstance(arguments, dict) or set(arguments) != set(wanted):
        return f"expected the arguments {', '.join(sorted(wanted))}"
    wrong = [name for name, want in wanted.items() if not _fits(want, arguments[name])]
    return f"wrong value or type: {', '.join(wrong)}" if wrong else ""


def _fits(want: object, got: object) -> bool:
    if isinstance(want, str):
        return isinstance(got, str) and want in got.lower()
    if isinstance(want, float):
        return isinstance(got, int | float) and not isinstance(got, bool) and got == want
    return isinstance(got, list) and len(got) == want


def tool_lines(results: Sequence[CaseResult]) -> Iterator[str]:
    for result in results:
        yield f"  {result.name:8} {result.problem or 'ok'}"
        if result.problem:
            yield f"           said: {result.said}"
    right = sum(not result.problem for result in results)
    yield f"right {right} of {len(results)}"
