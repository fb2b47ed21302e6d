"""`chat`: a conversation at a terminal."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

from sparkdeploy.chat.answer import AnswerPrinter, AnswerRefusedError, Partner, follow, remark, took
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.server.streaming import AnswerSoFar
from sparkdeploy.terminal.console import console

MARK = "/"
HELP = """\
/clear           forget what was said
/system [TEXT]   what the model is told first; without TEXT nothing
/help            these lines
/quit            leave; Ctrl-D does, too
Ctrl-C ends an answer. A line that ends with \\ goes on; // begins a line with a slash."""
PROMPT = "> "
GOING_ON = "\\"
QUIT = frozenset({"/quit", "/exit", "/bye"})
STOPPED_EXIT_CODE = 130
OVERFLOW_HINT = "/clear forgets what was said"


@dataclass(slots=True)
class Conversation:
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)
    """By the person and the model in turns, without the system's words."""

    def messages(self) -> list[dict[str, str]]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]


def chat(partner: Partner, system: str | None) -> None:
    with partner.model, _stop_signals_end():
        conversation = Conversation(system)
        context_tokens = partner.model.max_model_len()
        console.info(f"{partner.model.name} ({partner.deployment}); /help says what there is")
        for line in _lines():
            if line.startswith(MARK) and not line.startswith(MARK * 2):
                _run_command(line, conversation)
            elif line.strip():
                question = line.removeprefix(MARK) if line.startswith(MARK) else line
                conversation.turns.append({"role": "user", "content": question})
                _answer(partner, conversation, context_tokens)


def _lines() -> Iterator[str]:
    """Yield what the person types until they leave; with line editing on a terminal."""
    is_typed = sys.stdin.isatty() and sys.stdout.isatty()
    if is_typed:
        # input() edits lines, and knows the earlier ones, once this has been imported.
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, PLC0415 - takes the terminal's settings when imported
    prompt = PROMPT if is_typed else ""
    unfinished = ""
    while True:
        try:
            line = unfinished + input(prompt)
        except EOFError:
            if is_typed:
                console.info("")
            return
        except KeyboardInterrupt:
            # As in a shell: the line is forgotten, and who types goes on.
            console.info("\n(Ctrl-D leaves)")
            unfinished = ""
            continue
        unfinished = line.removesuffix(GOING_ON) + "\n" if line.endswith(GOING_ON) else ""
        if unfinished:
            continue
        if line.strip() in QUIT:
            return
        yield line


def _run_command(line: str, conversation: Conversation) -> None:
    word, _, rest = line.partition(" ")
    if word == "/help":
        console.info(HELP)
    elif word == "/clear":
        conversation.turns.clear()
        console.info("forgotten")
    elif word == "/system":
        conversation.system = rest.strip() or None
        console.info("noted" if conversation.system else "the model is told nothing first")
    else:
        console.error(f"unknown command {word}", hint="/help lists the commands")


def _answer(partner: Partner, conversation: Conversation, context_tokens: int | None) -> None:
    """Print an answer and remember it; after a failure the conversation goes on."""
    printer = AnswerPrinter()
    so_far = printer.so_far
    try:
        follow(partner, conversation.messages(), printer)
    except KeyboardInterrupt:
        console.info("(ended)")
    except (AnswerRefusedError, UnhealthyError) as error:
        is_overflow = isinstance(error, AnswerRefusedError) and error.is_overflow
        console.error(error.message, hint=OVERFLOW_HINT if is_overflow else error.hint)
    else:
        console.info(f"({took(so_far)}{_used(so_far, context_tokens)})")
        if amiss := remark(so_far, partner.max_tokens):
            console.warn(amiss)
    if answer := so_far.text.strip():
        conversation.turns.append({"role": "assistant", "content": answer})
    else:
        # A template that wants its roles in turns would refuse what follows.
        conversation.turns.pop()


def _used(so_far: AnswerSoFar, context_tokens: int | None) -> str:
    if so_far.prompt_tokens is None or so_far.completion_tokens is None:
        return ""
    used = so_far.prompt_tokens + so_far.completion_tokens
    of = "" if context_tokens is None else f" of {context_tokens:,}"
    return f"; {used:,}{of} tokens of context"


@contextlib.contextmanager
def _stop_signals_end() -> Iterator[None]:
    """Let Ctrl-C end an answer, and `kill` or a terminal that goes away the conversation."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(STOPPED_EXIT_CODE)

    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
