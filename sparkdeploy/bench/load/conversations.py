"""An agent's conversations: a context that grows turn by turn, with tool calls in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.files import shipped
from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.suites import Ask, Prompt, filler

if TYPE_CHECKING:
    from collections.abc import Iterator

    Message = dict[str, Any]

FILE = "conversation.yaml"


@dataclass(frozen=True, slots=True)
class Conversations:
    """Conversations of `turns` requests each, all alike but for how their task begins.

    What is fed back as the model's own words is ours, whatever it answered: so every server gets
    the same prompts. Conversations share instructions and tools; of a conversation each turn
    holds the one before whole.
    """

    turns: int
    asking = Asking.CONVERSATIONS

    @property
    def name(self) -> str:
        return f"agent-{self.turns}-turns"

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        return tuple(ask.prompt for ask in self.chain(0, ""))

    def chain(self, index: int, salt: str) -> tuple[Ask, ...]:  # noqa: ARG002 - all are alike
        content = shipped(FILE)
        tools = tuple({"type": "function", "function": tool} for tool in content["tools"])
        messages = list(_opening(content, salt))
        asks = []
        for turn in range(1, self.turns + 1):
            prompt = Prompt(f"turn {turn}", tuple(messages), content["max_tokens"], tools)
            asks.append(Ask(prompt))
            messages += _step(content["steps"], turn)
        return tuple(asks)


def _opening(content: dict[str, Any], salt: str) -> Iterator[Message]:
    yield {"role": "system", "content": content["system"]}
    yield {"role": "user", "content": f"Ticket {salt}. {content['task']}"}


def _step(steps: list[dict[str, Any]], turn: int) -> Iterator[Message]:
    """Yield what the model is taken to have said and called in a turn, and what the call gave."""
    step = steps[(turn - 1) % len(steps)]
    call = {
        "id": f"call-{turn}",
        "type": "function",
        "function": {"name": step["tool"], "arguments": json.dumps(step["arguments"])},
    }
    result = f"{step['result']}\n{filler(step['result_words'], seed=turn)}"
    yield {"role": "assistant", "content": step["says"], "tool_calls": [call]}
    yield {"role": "tool", "tool_call_id": call["id"], "content": result}
