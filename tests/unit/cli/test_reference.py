"""docs/commands.md is made from the commands themselves; this fails when it is stale.

Write it anew: python -m pytest tests/unit/cli/test_reference.py --update-golden
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sparkdeploy.cli.command_table import COMMANDS
from sparkdeploy.cli.main import program
from tests.unit.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "commands.md"
HEAD = """\
# Commands

Made from the program itself (tests/unit/cli/test_reference.py writes it); `--help` says the same.
All take `--quiet` or `--verbose` before the command's name. stdout is the answer, stderr the rest.
"""


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that does something, with its words, in alphabetical order."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name in sorted(below):
        yield from commands(below[name], (*path, name))


def section(path: tuple[str, ...], command: Any) -> str:
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    options = [item for item in command.params if item.param_type_name == "option"]
    words = [*path, *(usage(item) for item in arguments)]
    lines = [f"## `{' '.join(words)}`", "", command.help.strip(), ""]
    rows = [(usage(item), getattr(item, "help", "") or "") for item in arguments]
    rows += [(spelling(item), item.help or "") for item in options if item.name != "help"]
    if rows:
        lines += ["| | |", "|---|---|"]
        lines += [f"| `{escaped(name)}` | {escaped(text)} |" for name, text in rows]
        lines.append("")
    return "\n".join(lines)


def usage(argument: Any) -> str:
    name = (argument.metavar or argument.name).upper()
    if "[" in name and " " in name:
        return str(name)
    name = name.strip("[]")
    name = f"{name}..." if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def spelling(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names
    return f"{names} {option.metavar or option.opts[0].lstrip('-').upper()}"


def escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


@functools.cache
def whole_program() -> Any:
    return typer.main.get_command(program(COMMANDS))


def reference() -> str:
    found = commands(whole_program(), ("sparkdeploy",))
    return "\n".join([HEAD, *(section(path, command) for path, command in found)])


def test_the_reference_is_what_the_program_says(request: pytest.FixtureRequest) -> None:
    text = reference()
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text, (
        "docs/commands.md is stale: "
        "python -m pytest tests/unit/cli/test_reference.py --update-golden"
    )


def test_every_command_says_what_it_does() -> None:
    for path, command in commands(typer.main.get_command(program(COMMANDS)), ()):
        assert command.help, path


TYPED = re.compile(r"`sparkdeploy ([^`\n]+)`|^(?:\$ )?sparkdeploy (.+)$", re.MULTILINE)
MISTYPED = frozenset({"statsu", "up v2 --prot 8001"})
"""Mistakes that the pages show an answer to."""


def unknown_in(typed: str, root: Any) -> str | None:
    """Return the word of a line in the pages that the program does not know; None for a right one.

    What follows `&&`, `|` or `#` is another program's; capitals stand for a name of one's own.
    """
    words = re.split(r" (?:&&|\||#|>|;) ?", typed)[0].split()
    command, rest = root, words
    while rest and (below := getattr(command, "commands", None)) and rest[0] in below:
        command, rest = below[rest[0]], rest[1:]
    if command is root:
        is_word = bool(rest) and rest[0][0].isalpha() and not rest[0].isupper()
        return rest[0] if is_word else None
    commands_below = [command, *getattr(command, "commands", {}).values()]
    known = {name for item in commands_below for option in item.params for name in option.opts}
    known |= {name for option in root.params for name in option.opts} | {"--help"}
    options = (word.partition("=")[0] for word in rest if re.match(r"--[a-z]", word))
    return next((word for word in options if word not in known), None)


@pytest.mark.parametrize(
    "page",
    [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))],
    ids=lambda page: page.stem,
)
def test_what_a_page_tells_to_type_exists(page: Path) -> None:
    root = whole_program()
    lines = ("".join(found).strip() for found in TYPED.findall(page.read_text()))
    wrong = {line: unknown_in(line, root) for line in lines if line not in MISTYPED}
    assert {line: word for line, word in wrong.items() if word is not None} == {}


def test_a_command_that_went_is_found_in_a_page() -> None:
    root = whole_program()
    assert unknown_in("update", root) == "update"
    assert unknown_in("plan v2 --html", root) == "--html"
    assert unknown_in("bench main --gate && sparkdeploy down", root) is None
