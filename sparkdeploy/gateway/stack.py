"""The stack file: several models behind one address, in YAML."""

import ipaddress
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

from sparkdeploy.about import about
from sparkdeploy.errors import RecipeError, UsageError
from sparkdeploy.node.container import refuse_no_name
from sparkdeploy.recipe.consent import CONSENT_OPTIONS
from sparkdeploy.recipe.document import (
    Document,
    KeyPath,
    ValueOrigin,
    is_set,
    is_stack,
    read_document,
)
from sparkdeploy.recipe.fields import (
    NAME_PATTERN,
    FormatVersion,
    HostPath,
    Port,
    PositiveInt,
    Printable,
    ServedName,
    Strict,
)
from sparkdeploy.recipe.library import is_path, library, of_source
from sparkdeploy.recipe.load import error_of
from sparkdeploy.recipe.paths import with_whole_path
from sparkdeploy.recipe.rules import Mistake
from sparkdeploy.recipe.validate import validated
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.safe_text import visible_line

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8800
"""Beside those of deployments, which begin at 8000, and of what `export` writes."""
MAX_MODELS = 32
NOT_A_DEFAULT = frozenset(
    (
        *("model", "messages", "prompt", "input", "stream", "stream_options"),
        *("key", "keys", "api_key", "authorization"),
    )
)
"""What a request itself has to say: its content, how it is answered, and who asks."""

Keep = Literal["always", "idle", "request"]
ModelName = Annotated[ServedName, Field(max_length=256)]
Defaults = dict[Printable, JsonValue]


def _is_address(text: str) -> str:
    if text != "localhost":
        ipaddress.ip_address(text)
    return text


def _are_defaults(defaults: Defaults) -> Defaults:
    json.dumps(defaults, allow_nan=False)
    if refused := [name for name in defaults if name.lower() in NOT_A_DEFAULT]:
        raise ValueError(f"{refused[0]} is what each request says itself")
    return defaults


RequestDefaults = Annotated[Defaults, AfterValidator(_are_defaults)]
Address = Annotated[str, AfterValidator(_is_address)]


class ModelEntry(Strict):
    """One model: a recipe, the names that clients call it by, and how long it runs."""

    name: Annotated[
        str,
        Field(pattern=NAME_PATTERN),
        about("What requests call it; the deployment has the same name.", "coder"),
    ]
    recipe: Annotated[
        HostPath,
        Field(min_length=1),
        about(
            "Its name, SOURCE/RECIPE or a file; a path begins at the stack's folder.",
            "qwen3-coder-next",
        ),
    ]
    assignments: Annotated[
        list[Annotated[Printable, Field(pattern="^[^=]*[^=\\s][^=]*=")]],
        Field(alias="set"),
        about(
            "Values of the recipe that are others here, each as `--set` takes it.",
            ["serve.max_model_len=64K"],
            unset="the recipe as it is",
        ),
    ] = Field(default_factory=list)
    aliases: Annotated[
        list[ModelName] | dict[ModelName, RequestDefaults | None],
        about(
            "Other names, each with what a request gets that does not say it itself; a list of "
            "names does too.",
            {"coder-fast": {"temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}},
            unset="its name alone",
        ),
    ] = Field(default_factory=dict)
    keep: Annotated[
        Keep,
        about(
            "`always` is never stopped; `idle` starts when asked for and stops after `idle_stop_s` "
            "or for another; `request` runs only while asked for.",
            "idle",
        ),
    ] = "idle"
    idle_stop_s: Annotated[
        Annotated[int, Field(ge=10, le=10**9)] | None,
        about(
            "Of `keep: idle`: so long without a request stops it.",
            1800,
            unit="seconds",
            unset="it stops only for another model",
        ),
    ] = None
    port: Annotated[
        Port | None,
        about("Of its deployment.", 8001, unit="port", unset="the recipe's, or the next free one"),
    ] = None

    @property
    def other_names(self) -> dict[str, Mapping[str, object]]:
        """Return its aliases, each with values for what a request leaves out."""
        named = self.aliases if isinstance(self.aliases, dict) else dict.fromkeys(self.aliases)
        return {name: defaults or {} for name, defaults in named.items()}


class StackFile(Strict):
    """Models behind one address."""

    schema_version: FormatVersion
    name: Annotated[
        Annotated[str, Field(pattern=NAME_PATTERN)] | None,
        about("Small letters, digits, `.`, `_` and `-`.", "home", unset="the file's name"),
    ] = None
    host: Annotated[
        Address,
        about(
            "The address that clients use; one that others reach needs `keys_file`.", DEFAULT_HOST
        ),
    ] = DEFAULT_HOST
    port: Annotated[Port, about("The port that clients use.", DEFAULT_PORT, unit="port")] = (
        DEFAULT_PORT
    )
    allowed_hosts: Annotated[
        list[Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=253)]],
        about(
            "Names that clients may call this machine by, beside its own.",
            ["spark.lan"],
            unset="its own names",
        ),
    ] = Field(default_factory=list)
    allowed_origins: Annotated[
        list[Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+$", max_length=512)]],
        about("Web pages that may use it.", ["https://chat.lan"], unset="its own page alone"),
    ] = Field(default_factory=list)
    keys_file: Annotated[
        Annotated[HostPath, Field(min_length=1)] | None,
        about(
            "The keys of clients; the path begins at the stack's folder.",
            "keys.txt",
            unset="no key is asked for",
        ),
    ] = None
    smallest_stay_s: Annotated[
        Annotated[int, Field(ge=0, le=10**9)],
        about(
            "So long a started model stays before it is stopped for another.", 120, unit="seconds"
        ),
    ] = 120
    longest_wait_s: Annotated[
        Annotated[PositiveInt, Field(le=10**9)],
        about(
            "Without a stream, a request that would wait longer gets a 503 with `Retry-After`.",
            600,
            unit="seconds",
        ),
    ] = 600
    models: Annotated[
        list[ModelEntry],
        Field(min_length=1, max_length=MAX_MODELS),
    ]


@dataclass(frozen=True, slots=True)
class Stack:
    """What a stack file says, with its paths made absolute."""

    name: str
    path: Path
    origin: ValueOrigin
    """The file as it was read."""
    host: str
    port: int
    allowed_hosts: Sequence[str]
    allowed_origins: Sequence[str]
    keys_file: Path | None
    smallest_stay_s: int
    longest_wait_s: int
    models: Sequence[ModelEntry]


def stack_path(wanted: str | None, settings: Settings) -> Path | None:
    if wanted is None or not is_path(wanted):
        return None
    path = Path(os.path.expanduser(wanted))  # noqa: PTH111 - never raises
    if not os.path.isfile(path) or of_source(library(settings), wanted) is not None:  # noqa: PTH113
        return None
    return path if is_stack(read_document(path)) else None


def load_stack(path: Path, settings: Settings) -> Stack:
    """Return a file's stack, its recipes unread; RecipeError has every mistake, line and fix."""
    if not os.path.exists(path):  # noqa: PTH110 - never raises
        raise UsageError(
            f"there is no stack file {visible_line(str(path))}",
            hint="one holds `models:`, such as `- {name: a, recipe: v2}`, and is named by its path",
        )
    document = read_document(path)
    if not is_stack(document):
        raise RecipeError(
            f"{path} is no stack: it has no `models:`",
            hint="docs/using.md shows one; a recipe is for `sparkdeploy up`",
        )
    file, mistakes = validated(document, StackFile)
    wrong = {mistake.path for mistake in mistakes}
    if file is not None:
        mistakes += [it for it in _contradictions(file) if it.path not in wrong]
    if file is None or mistakes:
        raise error_of(f"stack {path}", document, mistakes)
    return _stack_of(file, document, Path(os.path.abspath(path)), settings)  # noqa: PTH100 - as typed


def _contradictions(file: StackFile) -> Iterator[Mistake]:
    yield from _names(file)
    yield from _ports(file)
    is_open = file.host != "localhost" and not ipaddress.ip_address(file.host).is_loopback
    if is_open and file.keys_file is None:
        seen = f"{file.host} can be reached by others, and no key would be asked for"
        yield Mistake(("host",), seen, "add keys_file, or use 127.0.0.1")
    for at, model in enumerate(file.models):
        if model.idle_stop_s is not None and model.keep != "idle":
            path: KeyPath = ("models", at, "idle_stop_s")
            yield Mistake(path, f"it means nothing with keep: {model.keep}", "remove one of them")
        for number, assignment in enumerate(model.assignments):
            yield from _unsettable(assignment, ("models", at, "set", number))


def _unsettable(assignment: str, path: KeyPath) -> Iterator[Mistake]:
    try:
        for field, option in CONSENT_OPTIONS.items():
            if is_set(field, assignment):
                yield Mistake(path, f"no file consents for you to {field}", f"pass {option}")
        for field, key in (("serve.port", "port"), ("model.served_name", "aliases")):
            if is_set(field, assignment):
                yield Mistake(path, f"{field} is the gateway's own", f"use the model's `{key}`")
    except RecipeError as error:
        yield Mistake(path, error.message, error.hint or "")


def _names(file: StackFile) -> Iterator[Mistake]:
    """Yield names that mean two models, and those that no deployment can have."""
    taken: set[str] = set()
    for at, model in enumerate(file.models):
        try:
            refuse_no_name(model.name)
        except UsageError as error:
            yield Mistake(("models", at, "name"), error.message, error.hint or "")
        places: list[tuple[str, KeyPath]] = [(model.name, ("models", at, "name"))]
        for number, alias in enumerate(model.aliases):
            key = number if isinstance(model.aliases, list) else alias
            places.append((alias, ("models", at, "aliases", key)))
        for name, path in places:
            if name in taken:
                yield Mistake(path, f"{name} is a name twice", "give each model names of its own")
            taken.add(name)


def _ports(file: StackFile) -> Iterator[Mistake]:
    counts = Counter([file.port, *(it.port for it in file.models if it.port is not None)])
    for at, model in enumerate(file.models):
        if model.port is not None and counts[model.port] > 1:
            yield Mistake(("models", at, "port"), f"port {model.port} is given twice", "change one")


def _stack_of(file: StackFile, document: Document, path: Path, settings: Settings) -> Stack:
    return Stack(
        name=file.name or path.stem,
        path=path,
        origin=replace(document.origins[("models",)], file=str(path)),
        host=file.host,
        port=file.port,
        allowed_hosts=file.allowed_hosts,
        allowed_origins=file.allowed_origins,
        keys_file=Path(_absolute(file.keys_file, path.parent)) if file.keys_file else None,
        smallest_stay_s=file.smallest_stay_s,
        longest_wait_s=file.longest_wait_s,
        models=[_anchored(it, path.parent, settings) for it in file.models],
    )


def _anchored(entry: ModelEntry, folder: Path, settings: Settings) -> ModelEntry:
    recipe = entry.recipe
    if is_path(recipe) and of_source(library(settings), recipe) is None:
        recipe = _absolute(recipe, folder)
    assignments = [with_whole_path(it, folder) for it in entry.assignments]
    return entry.model_copy(update={"recipe": recipe, "assignments": assignments})


def _absolute(text: str, folder: Path) -> str:
    return os.path.normpath(folder / os.path.expanduser(text))  # noqa: PTH111 - never raises
