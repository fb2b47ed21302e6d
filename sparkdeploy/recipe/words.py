"""Words for a name that nobody knows."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(wanted: str, known: Iterable[str]) -> str:
    """Return a hint: the name that was meant; empty where none is near."""
    near = difflib.get_close_matches(wanted, list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def closest(wanted: str, known: Iterable[str]) -> str:
    """Return a hint: the name that was meant, or all that there are."""
    names = sorted(known)
    return nearest(wanted, names) or "known: " + ", ".join(names)
