"""Syntax trees of sources: laws about the whole tree read each file, a worker parses it once."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator


@functools.cache
def tree(source: str) -> ast.Module:
    """Return the tree of a module's text; nobody changes it."""
    return ast.parse(source)


def calls(node: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Yield each call below a node, with the name of the function that it stands in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield inside, child
        name = child.name if isinstance(child, ast.FunctionDef) else inside
        yield from calls(child, name)


def mode_of(node: ast.Call, *, is_method: bool, unknown: str) -> str:
    """Return the mode of a call that opens a file; `unknown` for one that is not a constant."""
    given = [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
    given += node.args[0 if is_method else 1 :][:1]
    if not given:
        return "r"
    value = given[0]
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, str) else "r"
    return unknown
