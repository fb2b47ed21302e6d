"""What was meant by words that are no command or option: ours are near, or others call it so.

Nothing is looked up and nothing is run: the words on the command line against words.json.
"""

from __future__ import annotations

import difflib
import shlex
from typing import TYPE_CHECKING, NamedTuple

from sparkdeploy.errors import UsageError
from sparkdeploy.terminal import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sparkdeploy.cli.completion.words import Command, Option, Words

ELSEWHERE = {
    "build": "image build",
    "check": "doctor",
    "create": "new",
    "delete": "down",
    "deploy": "up",
    "destroy": "down",
    "download": "checkpoint pull",
    "dry-run": "plan",
    "estimate": "plan",
    "export-systemd": "export systemd",
    "images": "image ls",
    "import": "recipe import",
    "info": "show",
    "init": "new",
    "inspect": "show",
    "journal": "logs",
    "generate": "ask",
    "kill": "down",
    "launch": "up",
    "log": "logs",
    "ls": "list",
    "models": "list",
    "nodes": "cluster show",
    "prompt": "ask",
    "prune": "clean",
    "query": "ask",
    "pull": "checkpoint pull",
    "recipes": "list",
    "remove": "down",
    "revert": "rollback",
    "rm": "down",
    "rmi": "image rm",
    "run": "up",
    "search": "recipe search",
    "serve": "up",
    "settings": "config",
    "simulate": "rehearse",
    "stat": "status",
    "swap": "switch",
    "tail": "logs",
    "talk": "chat",
    "teardown": "down",
    "test": "rehearse",
    "undeploy": "down",
    "undo": "rollback",
    "validate": "plan",
    "verify": "checkpoint verify",
    "ps": "status",
}
"""What other tools call our commands."""
IN_GROUPS = {"list": "ls", "remove": "rm", "delete": "rm", "download": "pull", "fetch": "pull"}
IN_WORDS = {
    "exec": "docker exec -it sparkdeploy-NAME bash; `sparkdeploy logs` shows what it says",
    "attach": "`sparkdeploy logs --follow`",
    **dict.fromkeys(("monitor", "stats", "top", "watch"), "`sparkdeploy status --watch`"),
    "version": "`sparkdeploy --version`",
    "help": "`sparkdeploy --help`, or `--help` behind any command",
}
"""What is no single command of ours."""
SETTINGS = {
    "--tp": "cluster.tensor_parallel",
    "--tensor-parallel-size": "cluster.tensor_parallel",
    "--pp": "cluster.pipeline_parallel",
    "--pipeline-parallel-size": "cluster.pipeline_parallel",
    "--dp": "cluster.data_parallel",
    "--data-parallel-size": "cluster.data_parallel",
    "--ctx": "serve.max_model_len",
    "--context-length": "serve.max_model_len",
}
"""What vLLM and others call a recipe's values, beside the names that are alike."""
OPTIONS = {
    "--ctx": "--max-len",
    "--context-length": "--max-len",
    "--max-model-len": "--max-len",
    "--force": "--yes",
    "--assume-yes": "--yes",
    "-d": "--detach",
    "--background": "--detach",
    "--check-only": "--dry-run",
    "--lines": "--tail",
    "-n": "--tail",
    "--host": "--on",
    "--format": "--json",
    "--image-update": "--update-image",
}
MOST_NAMED = 3
"""Commands that are named as those that have an option; one that more have is no help."""


class _Misfit(NamedTuple):
    """The first word that the program does not know."""

    path: str
    """The command or group that it stands behind."""
    at: int
    word: str


def corrected(typed: Sequence[str], words: Words) -> UsageError | None:
    """Return the error that names what was meant; None where each word is one of the program's."""
    misfit = _first_misfit(typed, words)
    if misfit is None:
        return None
    if misfit.word.startswith("-"):
        return _no_option(typed, misfit, words)
    return _no_command(typed, misfit, words)


def near(wanted: str, known: Iterable[str]) -> str:
    """Return the name that was meant: one that begins so, or is like it; empty for none."""
    names = list(known)
    begun = [name for name in names if name.startswith(wanted)]
    close = difflib.get_close_matches(wanted, names, n=1)
    return begun[0] if len(begun) == 1 else close[0] if close else ""


def _first_misfit(typed: Sequence[str], words: Words) -> _Misfit | None:
    path, at = "", 0
    while at < len(typed):
        word = typed[at]
        command = words.commands[path]
        below = f"{path} {word}".strip()
        if word == "--":
            return None
        if below in words.commands:
            path = below
        elif command.default and near(word, dict(words.below(path))):
            # A deployment that is called almost like one of the group's commands is unlikely.
            return _Misfit(path, at, word)
        elif command.default:
            path = f"{path} {command.default}"
            continue
        elif word.startswith("-") and word != "-":
            option = command.option(word.partition("=")[0])
            if option is None and not _is_cluster(word, command):
                return _Misfit(path, at, word)
            at += option is not None and "=" not in word and _takes_next(option)
        elif any(words.below(path)):
            return _Misfit(path, at, word)
        at += 1
    return None


def _takes_next(option: Option) -> bool:
    return option.value is not None and not option.value.may_be_missing


def _is_cluster(word: str, command: Command) -> bool:
    """Say whether a word is several short options, or one with its value: -qv, -oFILE."""
    return not word.startswith("--") and command.option(word[:2]) is not None


def _no_command(typed: Sequence[str], misfit: _Misfit, words: Words) -> UsageError:
    word = misfit.word
    called = visible_line(f"{misfit.path} {word}".strip())
    message = f"there is no command {called}"
    if not misfit.path and word in IN_WORDS:
        return UsageError(message, hint=IN_WORDS[word])
    meant = _command_meant(misfit, words)
    if not meant:
        group = shlex.join(["sparkdeploy", *misfit.path.split(), "--help"])
        return UsageError(message, hint=f"`{group}` lists the commands")
    start = [it for it in typed[: misfit.at] if it.startswith("-")]
    rest = _fitting(typed[misfit.at + 1 :], words.commands[meant], words, meant)
    return UsageError(message, hint=_did_you_mean([*start, *meant.split(), *rest]))


def _command_meant(misfit: _Misfit, words: Words) -> str:
    """Return the words of the command that was meant; empty where nobody can say."""
    word, below = misfit.word, dict(words.below(misfit.path))
    if not misfit.path:
        name = near(word, (*below, *ELSEWHERE)) if word not in ELSEWHERE else word
        return ELSEWHERE.get(name, name)
    within = IN_GROUPS.get(word, "")
    name = within if within in below else near(word, below)
    if name:
        return f"{misfit.path} {name}"
    return word if word in words.commands else ""


def _fitting(rest: Sequence[str], command: Command, words: Words, path: str) -> list[str]:
    """Return the further words up to the first that the command would not take."""
    misfit = _first_misfit([*path.split(), *rest], words)
    known = rest if misfit is None else rest[: misfit.at - len(path.split())]
    most = len(command.arguments)
    is_endless = any(argument.is_repeated for argument in command.arguments)
    kept: list[str] = []
    arguments = 0
    takes_next = False
    for word in known:
        is_argument = not word.startswith("-") and not takes_next
        arguments += is_argument
        if arguments > most and not is_endless:
            break
        option = None if is_argument else command.option(word)
        takes_next = option is not None and option.value is not None and not takes_next
        kept.append(word)
    return kept


def _no_option(typed: Sequence[str], misfit: _Misfit, words: Words) -> UsageError:
    command = words.commands[misfit.path]
    called = shlex.join(["sparkdeploy", *misfit.path.split()])
    name, equals, value = misfit.word.partition("=")
    message = f"`{called}` has no option {visible_line(name)}"
    before, behind = list(typed[: misfit.at]), list(typed[misfit.at + 1 :])
    if words.commands[""].option(name) is not None:
        # Such as --verbose, which goes before the command.
        return UsageError(message, hint=_did_you_mean([misfit.word, *before, *behind]))
    settings = words.settings if command.option("--set") is not None else ()
    meant = _option_meant(name, command, [path for path in settings if _is_set_by_hand(path)])
    if not meant:
        return UsageError(message, hint=_who_has_it(name, words) or f"`{called} --help` lists them")
    if meant.startswith("-"):
        return UsageError(
            message, hint=_did_you_mean([*before, f"{meant}{equals}{value}", *behind])
        )
    if not equals and behind and not behind[0].startswith("-"):
        value = behind.pop(0)
    return UsageError(
        message, hint=_did_you_mean([*before, "--set", f"{meant}={value or 'VALUE'}", *behind])
    )


def _is_set_by_hand(path: str) -> bool:
    """Figures that others reported are part of a recipe, and nothing to try out."""
    return not path.startswith("expect.")


def _who_has_it(name: str, words: Words) -> str:
    """Return which commands have an option of this name; empty for none, and for many."""
    having = [path for path, it in words.commands.items() if name in it.option_names()]
    if not 0 < len(having) <= MOST_NAMED:
        return ""
    commands = " and ".join(f"`sparkdeploy {path}`" for path in sorted(having))
    return f"{commands} {'has' if len(having) == 1 else 'have'} it"


def _option_meant(name: str, command: Command, settings: Iterable[str]) -> str:
    """Return an option, or the path of a recipe's value that is called so, as vLLM's flags are."""
    known = {it.lstrip("-"): it for it in command.option_names() if it.startswith("--")}
    if OPTIONS.get(name) in command.option_names():
        return OPTIONS[name]
    paths = {path.rpartition(".")[2].replace("_", "-"): path for path in reversed([*settings])}
    if paths and name in SETTINGS:
        return SETTINGS[name]
    both = {**paths, **known}
    return both.get(near(name.lstrip("-"), both), "")


def _did_you_mean(words: Sequence[str]) -> str:
    return f"did you mean `{visible_line(shlex.join(['sparkdeploy', *words]))}`?"
