"""Words for a name that nobody knows, and for text of a stranger."""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

SHOWN_LENGTH = 160
"""An image with its digest is shown whole."""


def shown(text: object) -> str:
    """Return text of a stranger as it may be printed: on one line, short, without control signs."""
    words = str(text)
    if len(words) > SHOWN_LENGTH:
        words = words[:SHOWN_LENGTH] + "..."
    return words if words.isprintable() else ascii(words)


def shortest_ends(paths: Sequence[str]) -> Iterator[str]:
    """Yield for each path the shortest end that no other one has, of whole parts."""
    by_path = [
        ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        for parts in (path.split("/") for path in paths)
    ]
    counts = Counter(end for ends in by_path for end in ends)
    for ends in by_path:
        yield next((end for end in ends if counts[end] == 1), ends[-1])


def nearest(wanted: str, known: Iterable[str]) -> str:
    """Return a hint: the name that was meant; empty where none is near."""
    near = difflib.get_close_matches(wanted, list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def closest(wanted: str, known: Iterable[str]) -> str:
    """Return a hint: the name that was meant, or all that there are."""
    names = sorted(known)
    return nearest(wanted, names) or "known: " + ", ".join(names)
