"""YAML, read within limits and written plainly: the only module that speaks to the library.

A few hundred bytes of YAML can stand for gigabytes (an alias of aliases), and deep nesting ends the
process in the library's own C code. So the events of a text are counted first, which takes no
memory, and only what stays within the limits is composed.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sparkdeploy import stored_json
from sparkdeploy.errors import RecipeError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_NODES = 5_000
"""With every alias counted as all that it stands for."""
MAX_ALIASES = 64
MAX_NUMBER_LENGTH = 40
"""Python takes minutes to write a number of a million digits down."""
TEXT_TAG = "tag:yaml.org,2002:str"

_LIKE_NO_TEXT = re.compile(
    r"[-+]?\.?(?:[0-9]|inf|nan)|(?:null|true|false|yes|no|on|off|y|n)\Z", re.IGNORECASE
)
"""Readers of YAML 1.1 and 1.2 disagree on which of these are texts: `1e3`, `0o17`, `y`."""

KeyPath = tuple[str | int, ...]

# The C parser is ten times as fast; it is missing only where PyYAML was built without it.
_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# A date such as 2020-13-45 is a ValueError, one of the year 10000 an OverflowError.
_NO_YAML = (yaml.YAMLError, ValueError, OverflowError, RecursionError)


class _Loader(_BaseLoader):  # type: ignore[misc]
    """The safe loader, with numbers of bounded length."""


def _bounded_number(loader: Any, node: yaml.ScalarNode) -> int | float:  # noqa: ANN401 - untyped
    if len(node.value) > MAX_NUMBER_LENGTH:
        problem = f"a number of {len(node.value)} characters, and {MAX_NUMBER_LENGTH} are the most"
        raise yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)
    kind = node.tag.rpartition(":")[2]
    number: int | float = getattr(loader, f"construct_yaml_{kind}")(node)
    return number


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _bounded_number)


@dataclass(frozen=True, slots=True)
class Marked:
    content: dict[str, Any]
    lines: dict[KeyPath, int]
    duplicates: tuple[tuple[KeyPath, int], ...] = ()
    """The keys that stand twice, with their second line."""


def read_text(path: Path) -> str:
    """Return a regular file's UTF-8 text; RecipeError for a pipe, a device or a large file."""
    return read_in_place(path)[0]


def read_in_place(path: Path) -> tuple[str, Path]:
    """Return what `read_text` does, and where that very file lies, links followed."""
    try:
        content, place = stored_json.read_in_place(path, MAX_BYTES)
        return content.decode(), place
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not valid YAML", detail=f"not UTF-8: {error}") from error


def load(text: str, where: str) -> Any:  # noqa: ANN401 - YAML content
    """Return what a YAML text stands for; RecipeError names `where` when it is none or too much."""
    try:
        _refuse_too_much(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    except _NO_YAML as error:
        raise RecipeError(f"{where} is not valid YAML", detail=str(error)) from error


def load_file(path: Path) -> Any:  # noqa: ANN401 - YAML content
    """As `load`, of a file that comes with the program: nobody counts what stands in it."""
    try:
        return yaml.load(read_text(path), Loader=_Loader)  # noqa: S506 - a safe loader
    except _NO_YAML as error:
        raise RecipeError(f"{path} is not valid YAML", detail=str(error)) from error


def load_mapping(text: str, where: str) -> Marked:
    """Return a YAML mapping with the line of each value; RecipeError as for `load`."""
    try:
        _refuse_too_much(text)
        loader = _Loader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise RecipeError(f"{where} is not a mapping of keys to values")
        # Before construction, which writes what `<<` brings in among the mapping's own keys.
        duplicates = tuple(_duplicates(node, ()))
        content = loader.construct_document(node)
    except _NO_YAML as error:
        raise RecipeError(f"{where} is not valid YAML", detail=str(error)) from error
    lines: dict[KeyPath, int] = {}
    _mark(node, (), lines)
    return Marked(content, lines, duplicates)


def dump(content: Any) -> str:  # noqa: ANN401 - YAML content
    """Return content as YAML in ASCII, with its keys in their order."""
    # With its own unicode PyYAML writes U+0085 in a way that it reads back as a space.
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=100))


def in_line(content: Any) -> str:  # noqa: ANN401 - YAML content
    """Return content as it may stand behind a key or in a list, on one line and in ASCII."""
    # In a list of one: what stands alone would be followed by a line that ends the document.
    written = yaml.dump(
        [content],
        Dumper=_Dumper,
        default_flow_style=True,
        sort_keys=False,
        allow_unicode=False,
        width=math.inf,
    )
    return str(written).rstrip("\n")[1:-1]


class _Dumper(yaml.SafeDumper):
    """PyYAML writes YAML 1.1 and Compose reads 1.2: a text that may be a number gets quotes."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Write a text of several lines with escapes: no line breaks within it."""
    style = '"' if _LIKE_NO_TEXT.match(text) or not text.isprintable() else None
    return dumper.represent_scalar(TEXT_TAG, text, style=style)


_Dumper.add_representer(str, _quoted)


def _duplicates(node: yaml.Node, prefix: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    """Yield each key that stands twice in one mapping, with its second line."""
    seen: set[str] = set()
    for key, marked, inner in _below(node):
        if isinstance(node, yaml.MappingNode):
            if str(key) in seen:
                yield (*prefix, key), marked.start_mark.line + 1
            seen.add(str(key))
        yield from _duplicates(inner, (*prefix, key))


def _mark(node: yaml.Node, prefix: KeyPath, lines: dict[KeyPath, int]) -> None:
    for key, marked, inner in _below(node):
        lines[(*prefix, key)] = marked.start_mark.line + 1
        _mark(inner, (*prefix, key), lines)


def _below(node: yaml.Node) -> Iterator[tuple[str | int, yaml.Node, yaml.Node]]:
    """Yield what a node holds: its key or place, the node that has the line, and the value."""
    if isinstance(node, yaml.MappingNode):
        yield from ((str(key.value), key, value) for key, value in node.value)
    elif isinstance(node, yaml.SequenceNode):
        yield from ((index, item, item) for index, item in enumerate(node.value))


class _TooMuchError(yaml.YAMLError):
    """Valid YAML that is refused for its size or for what it asks of the reader."""

    def __init__(self, what: str, event: yaml.Event | None = None) -> None:
        mark = event.start_mark if event is not None else None
        super().__init__(what if mark is None else f"line {mark.line + 1}: {what}")


def _refuse_too_much(text: str) -> None:
    if len(text) > MAX_BYTES:
        raise _TooMuchError(f"larger than {MAX_BYTES // 1024} KiB")
    count = _Count()
    for event in yaml.parse(text, Loader=_Loader):
        count.add(event)


class _Count:
    """Depth and size of a document as its events go by; each alias counts as what it repeats."""

    def __init__(self) -> None:
        self._open: list[tuple[str | None, int]] = []
        self._sizes: dict[str, int] = {}
        self._nodes = 0
        self._aliases = 0

    def add(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._repeat(event)
        elif isinstance(event, yaml.NodeEvent):
            self._begin(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close(*self._open.pop())

    def _repeat(self, event: yaml.AliasEvent) -> None:
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            raise _TooMuchError(f"more than {MAX_ALIASES} aliases", event)
        if event.anchor not in self._sizes:
            raise _TooMuchError(f"no value before it is called &{event.anchor}", event)
        self._grow(event, self._sizes[event.anchor])

    def _begin(self, event: yaml.NodeEvent) -> None:
        tag = getattr(event, "tag", None)
        # The reader makes a text of a mapping that is called one, and nobody finds its key again.
        is_text = tag == TEXT_TAG and isinstance(event, yaml.ScalarEvent)
        if tag is not None and not is_text:
            raise _TooMuchError(f"the tag {tag[:40]!r}, and values are written without tags", event)
        before = self._nodes
        self._grow(event, 1)
        # The composer knows a collection by its new name from its first event on: a name given
        # twice would let `&a [*a]` stand for itself.
        self._sizes.pop(event.anchor or "", None)
        if isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, before))
            if len(self._open) > MAX_DEPTH:
                raise _TooMuchError(f"nested deeper than {MAX_DEPTH} levels", event)
        else:
            self._close(event.anchor, before)

    def _close(self, anchor: str | None, before: int) -> None:
        if anchor is not None:
            self._sizes[anchor] = self._nodes - before

    def _grow(self, event: yaml.Event, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _TooMuchError(f"more than {MAX_NODES} values", event)
