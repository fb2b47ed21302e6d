"""Every client that the code makes looks who listens, or is one that has nothing to lose."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import sparkdeploy
from tests import syntax

CLIENTS = frozenset({"ServedModel", "Streams"})
WITHOUT = {
    "answers": "asks /health alone, without a key",
    "_is_healthy": "asks /health alone, without a key",
    "server_at": "an address that somebody typed, which may be of another machine",
}


def makers(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Yield each call that makes a client, with the function that it stands in."""
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef) else function
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in CLIENTS:
            yield inside, node
        yield from makers(node, inside)


def test_each_client_looks_who_listens() -> None:
    root = Path(sparkdeploy.__file__).parent
    found = [
        (f"{path.relative_to(root)}:{call.lineno}", function, call)
        for path in sorted(root.rglob("*.py"))
        for function, call in makers(syntax.tree(path.read_text(encoding="utf-8")))
    ]
    looking = {
        place: any(word.arg == "require_listener" for word in call.keywords)
        for place, _, call in found
    }
    without = [(place, function) for place, function, _ in found if not looking[place]]
    assert [it for it in without if it[1] not in WITHOUT] == []
    assert {function for _, function in without} == WITHOUT.keys()
    assert sum(looking.values()) >= 5
