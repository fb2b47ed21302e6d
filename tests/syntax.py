"""Syntax trees of sources: laws about the whole tree read each file, a worker parses it once."""

from __future__ import annotations

import ast
import functools


@functools.cache
def tree(source: str) -> ast.Module:
    """Return the tree of a module's text; nobody changes it."""
    return ast.parse(source)
