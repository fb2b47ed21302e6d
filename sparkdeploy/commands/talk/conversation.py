"""What was said in a conversation, and the words by which a person steers it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy.commands.talk.pictures import picture_url, user_message
from sparkdeploy.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MARK = "/"
HELP = """\
/clear           forget what was said
/drop            forget the oldest question and its answer
/system [TEXT]   what the model is told first; without TEXT nothing
/image FILE      a picture that goes with the next question
/save FILE       write the conversation, as JSON that /v1/chat/completions takes
/help            these lines
/quit            leave; Ctrl-D does, too
Ctrl-C ends an answer. A line that ends with \\ goes on; // begins a line with a slash."""


@dataclass(slots=True)
class Conversation:
    model: str
    system: str | None = None
    said: list[dict[str, Any]] = field(default_factory=list)
    """By the person and the model in turns, without the system's words."""
    pictures: list[str] = field(default_factory=list)
    """As data: URLs, for the next question."""

    def messages(self) -> list[dict[str, Any]]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.said]

    def begin(self, text: str) -> None:
        """Take down a question with its pictures."""
        self.said.append(user_message(text, self.pictures))
        self.pictures = []

    def end(self, answer: str) -> None:
        """Take down the answer, or as much of it as there is; a question without one is forgotten.

        A template that wants its roles in turns would refuse what follows.
        """
        if answer:
            self.said.append({"role": "assistant", "content": answer})
        else:
            self.said.pop()

    def drop_oldest(self) -> bool:
        """Forget the oldest question and its answer; False when there is none."""
        had_any = bool(self.said)
        del self.said[:2]
        return had_any


def steer(line: str, conversation: Conversation) -> str:
    """Do what a line that begins with a slash says and return what to tell; UsageError if not."""
    word, _, rest = line.partition(" ")
    steps: Mapping[str, Callable[[Conversation, str], str]] = {
        "/clear": _clear,
        "/drop": _drop,
        "/system": _system,
        "/image": _image,
        "/save": _save,
        "/help": lambda _conversation, _rest: HELP,
    }
    step = steps.get(word)
    if step is None:
        raise UsageError(f"there is no {word}", hint="/help shows what there is")
    return step(conversation, rest.strip())


def _clear(conversation: Conversation, _rest: str) -> str:
    conversation.said.clear()
    conversation.pictures.clear()
    return "forgotten"


def _drop(conversation: Conversation, _rest: str) -> str:
    return "dropped the oldest" if conversation.drop_oldest() else "there is nothing to drop"


def _system(conversation: Conversation, rest: str) -> str:
    conversation.system = rest or None
    return "noted" if rest else "the model is told nothing first"


def _image(conversation: Conversation, rest: str) -> str:
    if not rest:
        raise UsageError("which picture?", hint="/image FILE")
    conversation.pictures.append(picture_url(Path(rest)))
    return "it goes with the next question"


def _save(conversation: Conversation, rest: str) -> str:
    if not rest:
        raise UsageError("into which file?", hint="/save FILE")
    content = {"model": conversation.model, "messages": conversation.messages()}
    text = json.dumps(content, indent=2, ensure_ascii=False)
    path = Path(rest).expanduser()
    try:
        # Nothing is written over.
        with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return f"written to {path}"
