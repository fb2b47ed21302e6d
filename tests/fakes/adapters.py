"""What a container tells of a Spark's adapters, as image/inside/rdma.py prints it."""

from __future__ import annotations

import json
from pathlib import Path

from sparkdeploy.image.inside.rdma import MARK
from tests.fakes.fabric import adapters_of

DEVINFO = (Path(__file__).parents[1] / "unit" / "checks" / "recordings" / "devinfo.txt").read_text(
    encoding="utf-8"
)
"""Of two adapters, with the first node's addresses."""
SOUND = {
    "user": "1000:1000",
    "missing": {},
    "memlock_bytes": None,
    "nodes": {"/dev/infiniband/uverbs0": "", "/dev/infiniband/uverbs1": ""},
}


def told_inside(number: int = 1, **changes: object) -> str:
    """What is printed on the node whose addresses end with 1 and this number."""
    told = {**SOUND, "devinfo": devinfo(number), **changes}
    return f"a warning of Python's\n{MARK}{json.dumps(told)}\n"


def devinfo(number: int = 1) -> str:
    """Return what that node's adapters print: its own names and addresses."""
    return of_node(number, DEVINFO.replace(".11,", f".1{number},"))


def of_node(number: int, recorded: str) -> str:
    """Return what the first node printed with the names of another one's adapters."""
    for first, name in zip(adapters_of(1), adapters_of(number), strict=True):
        recorded = recorded.replace(first, name)
    return recorded
