"""JSON in which something else stands than anybody expects."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

from tests.fakes.hostile_text import HOSTILE

Changes = list[tuple[tuple[Any, ...], Any]]
"""Places in JSON, and what is put there."""
# What a parser of JSON takes and nobody expects.
NUMBERS: list[Any] = [
    *(0, -1, 2**62, 2**63, 10**400, -(10**400), 9e18, 1e308, -1e308, 5e-324, -0.0),
    *(float("nan"), float("inf"), float("-inf"), "nan", "-inf", "1", True),
]
TEXTS: list[Any] = [
    *("", HOSTILE, "\ud800", "\0", "../../x", "/etc/passwd", "a\nerror: b", "x" * 5000, "<b>&")
]
OTHERS: list[Any] = [None, [], [1], {}, {"a": None}, {"\ud800": 1}, {HOSTILE: "\ud800"}, [[[[]]]]]


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in JSON where something else may stand."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, item in items:
        found.append((*place, key))
        if isinstance(item, dict | list):
            found += places(item, (*place, key))
    return found


def oddities(content: dict[str, Any]) -> st.SearchStrategy[Changes]:
    """Things to put in places; most are of the kind that stands there, or all would be refused."""
    by_kind: dict[str, list[tuple[Any, ...]]] = {}
    for place in places(content):
        found = content
        for key in place:
            found = found[key]
        kind = {str: "text", int: "number", float: "number"}.get(type(found), "other")
        by_kind.setdefault(kind, []).append(place)
    fitting = {"number": NUMBERS, "text": TEXTS, "other": OTHERS}
    chosen = [
        st.tuples(st.sampled_from(found), st.sampled_from(fitting[kind]))
        for kind, found in by_kind.items()
    ]
    anything = st.sampled_from([*NUMBERS, *TEXTS, *OTHERS])
    misfits = st.tuples(st.sampled_from(places(content)), anything)
    return st.lists(st.one_of(*chosen, misfits), min_size=1, max_size=2)


def changed(content: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """Another one with those things in those places; a place that has gone is passed over."""
    made: dict[str, Any] = json.loads(json.dumps(content))
    for place, value in changes:
        around: Any = made
        try:
            for key in place[:-1]:
                around = around[key]
            # A copy: the next change may lie in it, or even put it into itself.
            around[place[-1]] = copy.deepcopy(value)
        except (KeyError, IndexError, TypeError):
            continue
    return made
