"""What was said in a conversation, and the words by which a person steers it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkdeploy.errors import UsageError

MARK = "/"
HELP = """\
/clear           forget what was said
/system [TEXT]   what the model is told first; without TEXT nothing
/help            these lines
/quit            leave; Ctrl-D does, too
Ctrl-C ends an answer. A line that ends with \\ goes on; // begins a line with a slash."""


@dataclass(slots=True)
class Conversation:
    system: str | None = None
    said: list[dict[str, str]] = field(default_factory=list)
    """By the person and the model in turns, without the system's words."""

    def messages(self) -> list[dict[str, str]]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.said]

    def begin(self, text: str) -> None:
        """Take down a question."""
        self.said.append({"role": "user", "content": text})

    def end(self, answer: str) -> None:
        """Take down the answer, or as much of it as there is; a question without one is forgotten.

        A template that wants its roles in turns would refuse what follows.
        """
        if answer:
            self.said.append({"role": "assistant", "content": answer})
        else:
            self.said.pop()


def steer(line: str, conversation: Conversation) -> str:
    """Do what a line that begins with a slash says and return what to tell; UsageError if not."""
    word, _, rest = line.partition(" ")
    if word == "/help":
        return HELP
    if word == "/clear":
        conversation.said.clear()
        return "forgotten"
    if word == "/system":
        conversation.system = rest.strip() or None
        return "noted" if conversation.system else "the model is told nothing first"
    raise UsageError(f"there is no {word}", hint="/help shows what there is")
