"""A smoke test of tool calls: does what the model writes come out of the parser as a call?

A wrong `--tool-call-parser` leaves the model's own markup in the text, or loses it; both look like
a model that cannot call tools.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.endpoint import reach
from sparkdeploy.bench.files import shipped
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sparkdeploy.bench.endpoint import Access
    from sparkdeploy.server.client import ServedModel
    from sparkdeploy.settings import Settings

MAX_TOKENS = 1024
MARKUP = ("<tool_call", "<function=", "</function>", "<|tool", "[TOOL_CALLS]", "<invoke")
"""What models write around a call; none of it may be left in the text."""


@dataclass(frozen=True, slots=True)
class Case:
    """A request and the call it must lead to; None means that no tool is needed."""

    name: str
    request: str
    function: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


def cases() -> tuple[Case, ...]:
    return tuple(Case(**entry) for entry in shipped("quality/tool_calls.yaml")["cases"])


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of one case; `problem` is empty when all was right."""

    name: str
    problem: str
    said: str


def run_cases(
    model: ServedModel, *, on_progress: Callable[[str], None] = lambda _text: None
) -> Iterator[CaseResult]:
    """Ask every case; UnhealthyError when the server refuses tools or does not answer."""
    asked = cases()
    for number, case in enumerate(asked, 1):
        on_progress(f"case {number} of {len(asked)}: {case.name}")
        answer = model.ask(
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": case.request}],
                "tools": shipped("quality/tool_calls.yaml")["tools"],
                "tool_choice": "auto",
                "max_tokens": MAX_TOKENS,
                "temperature": 0.0,
                "chat_template_kwargs": {"enable_thinking": False},
            },
        )
        message = answer["choices"][0].get("message") or {}
        yield judge(case, message)


def try_tools(side: str, settings: Settings, access: Access) -> tuple[CaseResult, ...]:
    found = reach(side, settings, access)
    with found.opened() as model, console.step(f"tool calls of {found.label}") as step:
        return tuple(run_cases(model, on_progress=step.say))


def judge(case: Case, message: Mapping[str, Any]) -> CaseResult:
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
    if isinstance(want, str):
        return isinstance(got, str) and want in got.lower()
    if isinstance(want, float):
        return isinstance(got, int | float) and not isinstance(got, bool) and got == want
    return isinstance(got, list) and len(got) == want
