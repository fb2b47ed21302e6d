"""Every regular expression of the tool: found in its source, with how it is used."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import syntax
from tests.unit.conftest import REPOSITORY

PACKAGE = REPOSITORY / "sparkdeploy"
SCANNING = frozenset({"search", "sub", "subn", "split", "findall", "finditer"})
CALLS = SCANNING | {"match", "fullmatch", "compile"}
ANYTHING = frozenset({"search", "match", "fullmatch"})
BUILTIN = frozenset({"os", "sys", "re"})


@dataclass(frozen=True)
class Pattern:
    where: str
    compiled: re.Pattern[Any]
    uses: frozenset[str]


@dataclass(frozen=True)
class Module:
    path: Path
    text: str
    tree: ast.Module
    names: dict[str, Any]
    """What its names stand for: imported, or, inside containers, its constants alone."""

    @property
    def name(self) -> str:
        return str(self.path.relative_to(REPOSITORY))


@functools.cache
def modules() -> tuple[Module, ...]:
    return tuple(_module(path) for path in sorted(PACKAGE.rglob("*.py")))


def _module(path: Path) -> Module:
    text = path.read_text()
    tree = syntax.tree(text)
    if "re." not in text:
        return Module(path, text, tree, {})
    inside = {"vllm_plugin", "inside", "__main__.py"} & set(path.relative_to(PACKAGE).parts)
    if not inside:
        dotted = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        return Module(
            path, text, tree, vars(importlib.import_module(dotted.removesuffix(".__init__")))
        )
    names: dict[str, Any] = {"re": re}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            try:
                names[target.id] = _value(node.value, names)
            except (NameError, TypeError, AttributeError):
                continue
    return Module(path, text, tree, names)


@functools.cache
def patterns() -> tuple[tuple[Pattern, ...], tuple[str, ...]]:
    """Return all patterns, and the calls whose pattern cannot be read from the source."""
    found: list[Pattern] = []
    unread: list[str] = []
    for module in modules():
        found += _of_names(module)
        for function, call in _calls(module.tree) if module.names else ():
            pattern = _pattern_of(call, module)
            if pattern is not None:
                kind = call.func.attr  # type: ignore[attr-defined]
                if kind != "compile" or function:
                    uses = _local_uses(call, module) if kind == "compile" else frozenset({kind})
                    found.append(Pattern(f"{module.name}:{call.lineno}", pattern, uses))
            elif function:
                unread.append(f"{module.name}:{function}")
            else:
                assert any(_compiled_in(value) for value in module.names.values()), module.name
    return tuple(found), tuple(sorted(set(unread)))


def _local_uses(call: ast.Call, module: Module) -> frozenset[str]:
    """Return the methods of a name in a function that a compiled pattern is bound to."""
    names = {
        target.id
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign) and node.value is call
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return _known(_uses_in(module.path).get(names.pop(), set())) if names else ANYTHING


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call of `re`, with the name of the function around it."""

    def below(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Call]]:
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, ast.FunctionDef) else function
            if isinstance(child, ast.Call) and _is_of_re(child.func):
                yield inner, child
            yield from below(child, inner)

    yield from below(tree, "")


def _is_of_re(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
        and function.attr in CALLS
    )


def _pattern_of(call: ast.Call, module: Module) -> re.Pattern[Any] | None:
    flags = [word.value for word in call.keywords if word.arg == "flags"]
    after = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(call.func.attr, 2)  # type: ignore[attr-defined]
    flags += call.args[after : after + 1]
    try:
        pattern = _value(call.args[0], module.names)
        flag = _value(flags[0], module.names) if flags else 0
    except (NameError, AttributeError):
        return None
    return re.compile(pattern, flag) if isinstance(pattern, str | bytes) else None


class _LocalText(ast.NodeTransformer):
    """What a pattern takes from re.escape of a local name is some text."""

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        is_plain = isinstance(node.value, ast.Name) and node.value.id.isupper()
        return node if is_plain or _is_global(node.value) else ast.Constant("x")

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_escape = isinstance(node.func, ast.Attribute) and node.func.attr == "escape"
        return ast.Constant("x") if is_escape else self.generic_visit(node)


def _is_global(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.startswith("_")


def _value(expression: ast.expr, names: dict[str, Any]) -> Any:
    plain = _LocalText().visit(ast.fix_missing_locations(ast.parse(ast.unparse(expression)))).body
    whole = ast.fix_missing_locations(ast.Expression(plain[0].value))
    return eval(compile(whole, "<pattern>", "eval"), dict(names))


def _of_names(module: Module) -> Iterator[Pattern]:
    for name, value in module.names.items():
        compiled = tuple(_compiled_in(value))
        if compiled and _is_made_in(module, name):
            uses = _uses(module, name) if isinstance(value, re.Pattern) else ANYTHING
            for each in compiled:
                yield Pattern(f"{module.name}:{name}", each, uses)


def _is_made_in(module: Module, name: str) -> bool:
    return any(
        isinstance(target, ast.Name) and target.id == name
        for node in module.tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )


def _compiled_in(value: Any, depth: int = 3) -> Iterator[re.Pattern[Any]]:
    """Yield patterns of a value: itself, in containers, in fields of dataclasses."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, dict):
        for item in [*value.keys(), *value.values()]:
            yield from _compiled_in(item, depth - 1)
    elif depth and isinstance(value, tuple | list | frozenset | set):
        for item in value:
            yield from _compiled_in(item, depth - 1)
    elif depth and hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        for field in value.__dataclass_fields__:
            yield from _compiled_in(getattr(value, field, None), depth - 1)


def _uses(module: Module, name: str) -> frozenset[str]:
    """Return the methods that are called of a module's pattern; all where it is handed on."""
    places = [module] if name.startswith("_") else [it for it in modules() if name in it.text]
    methods = set().union(*(_uses_in(place.path).get(name, set()) for place in places))
    return _known(methods)


def _known(methods: set[str]) -> frozenset[str]:
    methods = methods - {"pattern"}
    return frozenset(methods) if methods and methods <= CALLS else ANYTHING | (methods & CALLS)


@functools.cache
def _uses_in(path: Path) -> dict[str, set[str]]:
    """Return what is called of each name in a file."""
    tree = syntax.tree(path.read_text())
    nodes = list(ast.walk(tree))
    called = {id(node.value): node.attr for node in nodes if isinstance(node, ast.Attribute)}
    found: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr
            found.setdefault(name, set()).add(called.get(id(node), "handed on"))
    return found
