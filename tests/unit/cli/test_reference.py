"""docs/commands.md is made from the commands themselves; this fails when it is stale.

Write it anew: python -m pytest tests/unit/cli/test_reference.py --update-golden
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer.main

from sparkdeploy.cli.command_table import COMMANDS
from sparkdeploy.cli.main import program
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

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


def reference() -> str:
    root = typer.main.get_command(program(COMMANDS))
    found = commands(root, ("sparkdeploy",))
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
