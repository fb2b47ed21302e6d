"""Words for a name that nobody knows."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def closest(wanted: str, known: Iterable[str]) -> str:
    """Return a hint: the name that was meant, or all that there are."""
    names = sorted(known)
    near = difflib.get_close_matches(wanted, names, n=1)
    return f"did you mean {near[0]}?" if near else "known: " + ", ".join(names)
