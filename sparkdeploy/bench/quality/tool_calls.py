"""A smoke test of tool calls: does what the model writes come out of the parser as a call?

A wrong `--tool-call-parser` leaves the model's own markup in the text, or loses it; both look like
a model that cannot call tools. Each case has one answer that any model of this size finds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sparkdeploy.server.client import ServedModel

MAX_TOKENS = 1024
MARKUP = ("<tool_call", "<function=", "</function>", "<|tool", "[TOOL_CALLS]", "<invoke")
"""What models write around a call; none of it may be left in the text."""


def _tool(name: str, description: str, **parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": parameters,
                "required": sorted(parameters),
            },
        },
    }


TOOLS = (
    _tool(
        "get_tide",
        "Tells when high water is at a harbour on a day.",
        harbour={"type": "string", "description": "The harbour's name"},
        date={"type": "string", "description": "The day as YYYY-MM-DD"},
    ),
    _tool(
        "set_heating",
        "Sets the temperature of a room.",
        room={"type": "string", "enum": ["kitchen", "bedroom", "workshop"]},
        celsius={"type": "number"},
    ),
    _tool(
        "add_to_list",
        "Puts things on the shopping list.",
        items={"type": "array", "items": {"type": "string"}},
    ),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A request and the call it must lead to; None means that no tool is needed."""

    name: str
    request: str
    function: str | None
    arguments: Mapping[str, Any] = field(default_factory=dict)


CASES = (
    Case(
        "strings",
        "When is high water at Bergen on 4 May 2026?",
        "get_tide",
        {"harbour": "bergen", "date": "2026-05-04"},
    ),
    Case(
        "number",
        "Make the workshop 17.5 degrees warm, please.",
        "set_heating",
        {"room": "workshop", "celsius": 17.5},
    ),
    Case("array", "Put flour, lemons and salt on my shopping list.", "add_to_list", {"items": 3}),
    Case("none", "Say good morning in Norwegian.", None),
)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of one case; `problem` is empty when all was right."""

    name: str
    problem: str
    said: str
    """The call as it came, or the beginning of the text."""


def run_cases(
    model: ServedModel, *, on_progress: Callable[[str], None] = lambda _text: None
) -> Iterator[CaseResult]:
    """Ask every case; UnhealthyError when the server refuses tools or does not answer."""
    for index, case in enumerate(CASES):
        on_progress(f"case {index + 1} of {len(CASES)}: {case.name}")
        answer = model.ask(
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": case.request}],
                "tools": list(TOOLS),
                "tool_choice": "auto",
                "max_tokens": MAX_TOKENS,
                "temperature": 0.0,
                "chat_template_kwargs": {"enable_thinking": False},
            },
        )
        message = answer["choices"][0].get("message") or {}
        yield judge(case, message)


def judge(case: Case, message: Mapping[str, Any]) -> CaseResult:
    """Hold a chat message against its case."""
    calls = message.get("tool_calls") or []
    text = str(message.get("content") or "")
    said = json.dumps([call.get("function") for call in calls]) if calls else text[:200]
    left = next((mark for mark in MARKUP if mark in text), None)
    if left is not None:
        problem = f"the parser left {left!r} in the text: is it the right one for this model?"
    elif case.function is None:
        problem = "a tool was called that nobody needs" if calls else ""
    elif len(calls) != 1:
        problem = f"expected one call of {case.function}, got {len(calls) or 'none'}"
    else:
        problem = _call_problem(case, calls[0].get("function") or {})
    return CaseResult(case.name, problem, said)


def tool_lines(results: Sequence[CaseResult]) -> Iterator[str]:
    """Yield one line a case, and what was said where it went wrong."""
    for result in results:
        yield f"  {result.name:8} {result.problem or 'ok'}"
        if result.problem:
            yield f"           said: {result.said}"
    right = sum(not result.problem for result in results)
    yield f"right {right} of {len(results)}"


def _call_problem(case: Case, function: Mapping[str, Any]) -> str:
    if function.get("name") != case.function:
        return f"expected {case.function}, got {function.get('name')!r}"
    try:
        arguments = json.loads(function.get("arguments") or "")
    except ValueError:
        return "the arguments are no JSON"
    if not isinstance(arguments, dict) or set(arguments) != set(case.arguments):
        return f"expected the arguments {', '.join(sorted(case.arguments))}"
    wrong = [name for name, want in case.arguments.items() if not _fits(want, arguments[name])]
    return f"wrong value or type: {', '.join(wrong)}" if wrong else ""


def _fits(want: object, got: object) -> bool:
    """Strings are found within, numbers are equal, and of an array an int gives the length."""
    if isinstance(want, str):
        return isinstance(got, str) and want in got.lower()
    if isinstance(want, float):
        return isinstance(got, int | float) and not isinstance(got, bool) and got == want
    return isinstance(got, list) and len(got) == want
