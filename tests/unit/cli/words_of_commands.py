"""The words of the program, read from its commands: what words.json has to hold."""

from __future__ import annotations

import json
import types
import typing
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import typer.main
from pydantic import BaseModel

from sparkdeploy import yaml_text
from sparkdeploy.cli.completion.words import Command, Option, Value, Words
from sparkdeploy.cli.main import COMMANDS, program
from sparkdeploy.recipe.document import FIXED_KEYS
from sparkdeploy.recipe.schema import Recipe
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MACHINES = tuple(
    yaml_text.load_file(REPOSITORY / "recipes" / "facts" / "hardware.yaml")["hardware"]
)
SUITES = ("five", "decode", "sweep", "standard", "load")
SHELLS = ("bash", "zsh", "fish")
RECIPE_KEYS_OF_A_FILE = FIXED_KEYS | {"title", "source", "preview"}

# What a value is, by the option or the argument; the command's words before it where it differs.
VALUES: dict[str, Value] = {
    "--ca-file": Value(("file",)),
    "--fits": Value((), (*MACHINES, "here"), may_be_missing=True),
    "--from": Value(("recipe",)),
    "--hardware": Value((), (*MACHINES, "here")),
    "--key-file": Value(("file",)),
    "--node": Value(("node",)),
    "--on": Value(("node",)),
    "--output": Value(("file",)),
    "--prompts": Value(("file",)),
    "--save": Value(("file",)),
    "--set": Value(("setting",)),
    "--standalone": Value(("folder",)),
    "--suite": Value((), SUITES),
    "new --model": Value(("folder",)),
    "rehearse --name": Value(()),
    "export systemd --name": Value(()),
    "export compose --name": Value(()),
    "--name": Value(("deployment",)),
    "bench campaign recipes": Value(("recipe", "file")),
    "bench compare sides": Value(("run", "file")),
    "bench load name": Value(("deployment",)),
    "bench needle name": Value(("deployment",)),
    "bench pair sides": Value(("deployment", "recipe")),
    "bench quality sides": Value(("deployment", "file")),
    "bench report runs": Value(("run", "file")),
    "bench run name": Value(("deployment",)),
    "bench show run": Value(("run", "file")),
    "bench tools name": Value(("deployment",)),
    "checkpoint draft-vocab texts": Value(("file",)),
    "checkpoint pull name": Value(("recipe", "checkpoint")),
    "checkpoint rm name": Value(("checkpoint",)),
    "checkpoint verify name": Value(("checkpoint", "folder")),
    "connect name": Value(("deployment",)),
    "export grafana --output": Value(("folder",)),
    "export litellm --output": Value(("folder",)),
    "export litellm names": Value(("deployment",)),
    "export open-webui --output": Value(("folder",)),
    "export open-webui names": Value(("deployment",)),
    "export prometheus --output": Value(("folder",)),
    "export prometheus names": Value(("deployment",)),
    "diagnose subject": Value(("deployment", "folder")),
    "down name": Value(("deployment",)),
    "logs name": Value(("deployment",)),
    "restart name": Value(("deployment",)),
    "rollback name": Value(("deployment",)),
    "start name": Value(("deployment",)),
    "stop name": Value(("deployment",)),
    "fits recipes": Value(("recipe", "file")),
    "image build name": Value(("recipe", "engine", "file")),
    "recipe import source": Value(("recipe", "file")),
    "recipe import --output": Value(("folder",)),
    "status names": Value(("deployment",)),
    "ask words": Value(("deployment",)),
    "chat name": Value(("deployment",)),
    "--image": Value(("file",)),
    "recipe source update names": Value(("source",)),
    "recipe source rm name": Value(("source",)),
    "engine": Value(("engine",)),
    "folder": Value(("folder",)),
    "image": Value(("image",)),
    "images": Value(("image",)),
    "recipe": Value(("recipe", "file")),
}
# What nobody can list: numbers, days, digests, addresses, names that are to be made.
NOBODY_LISTS = """
--at --concurrency --context --date --digest --duration --extra-body --floor --header
--hidden --host --hosts --keep --layers --lengths --max-kl --max-len --max-perplexity-rise
--max-tokens --model --name --nodes --port --ramp --rate --requests --rounds --seed --share --slo
--subnet --system --tail --temperature --texts --tokens --top-k --top-p --turns --url --user --vocab
"""
FREE = frozenset(NOBODY_LISTS.split())


def words_of_commands() -> Words:
    root = typer.main.get_command(program(COMMANDS))
    commands = {" ".join(path): _command(path, it) for path, it in _everything(root, ())}
    settings = {
        path: choices
        for path, choices in _settings(Recipe, "")
        if path.partition(".")[0] not in RECIPE_KEYS_OF_A_FILE
    }
    return Words(commands, settings)


def as_text(words: Words) -> str:
    """Return words.json: a line an option, so that a change of one shows as one."""
    commands = ",\n".join(
        f'  {_json(path)}: {{"help": {_json(it.help)}, "default": {_json(it.default)}, '
        f'"arguments": {_json(it.arguments)}, "options": [{_lines(it.options)}]}}'
        for path, it in words.commands.items()
    )
    settings = ",\n".join(f"  {_json(path)}: {_json(it)}" for path, it in words.settings.items())
    return f'{{"commands": {{\n{commands}\n }},\n "settings": {{\n{settings}\n }}}}\n'


def _lines(options: Sequence[Option]) -> str:
    return ",".join(f"\n    {_json(option)}" for option in options)


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False)


def _everything(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if command.hidden:
        return
    yield path, command
    for name, below in (getattr(command, "commands", None) or {}).items():
        yield from _everything(below, (*path, name))


def _command(path: tuple[str, ...], command: Any) -> Command:
    options = [item for item in command.params if item.param_type_name == "option"]
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    helped = Option(("-h", "--help"), "Show this text.", None)
    return Command(
        _first_sentence(command.help),
        [_value(path, item, item.name) for item in arguments],
        [*(_option(path, item) for item in options if not item.hidden), helped],
        getattr(type(command), "default", ""),
    )


def _option(path: tuple[str, ...], option: Any) -> Option:
    names = (*option.opts, *option.secondary_opts)
    value = None if option.is_flag else _value(path, option, max(option.opts, key=len))
    return Option(names, _first_sentence(option.help or ""), value)


def _value(path: tuple[str, ...], item: Any, name: str) -> Value:
    annotation = item.type_descriptor.annotation
    if choices := tuple(_choices(annotation)):
        return Value((), choices)
    told = VALUES.get(" ".join((*path, name)), VALUES.get(name))
    if told is None:
        assert name in FREE or annotation in {int, float} or _is_new(path, name), (
            f"{' '.join((*path, name))}: say in VALUES of {__name__} what it takes, or in FREE "
            "that nobody can list it"
        )
        told = Value(())
    return told._replace(is_repeated=item.nargs == -1)


def _is_new(path: tuple[str, ...], name: str) -> bool:
    """A name that the command makes, or words that are looked for."""
    return (*path, name) in {
        ("new", "name"),
        ("recipe", "search", "words"),
        ("recipe", "source", "add", "name"),
        ("recipe", "source", "add", "origin"),
    }


def _settings(model: type[BaseModel], above: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, field in model.model_fields.items():
        path = f"{above}{field.alias or name}"
        below = [item for item in _parts(field.annotation) if _is_model(item)]
        if below:
            yield from (pair for item in below for pair in _settings(item, f"{path}."))
        # Such as `off` in place of all that is below.
        choices = tuple(_choices(field.annotation))
        if choices or not below:
            yield path, choices


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield what an annotation may be, without what lists and mappings hold."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _parts(typing.get_args(annotation)[0])
    elif origin in {typing.Union, types.UnionType}:
        for part in typing.get_args(annotation):
            yield from _parts(part)
    else:
        yield annotation


def _choices(annotation: Any) -> Iterator[str]:
    for part in _parts(annotation):
        if typing.get_origin(part) is Literal:
            yield from (str(choice) for choice in typing.get_args(part))
        elif part is bool:
            yield from ("true", "false")
        elif isinstance(part, type) and issubclass(part, Enum):
            yield from (str(choice.value) for choice in part)


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())
