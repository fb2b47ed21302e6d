"""A load that is short, and the suite that it leaves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

QUICK = ("--rate", "50", "--requests", "20", "--ramp", "0")


def suite_of(tmp_path: Path) -> dict[str, Any]:
    (path,) = (tmp_path / "state" / "bench").glob("*.json")
    suites: list[dict[str, Any]] = json.loads(path.read_text())["suites"]
    assert len(suites) == 1
    return suites[0]
