"""Golden files: what was reviewed once and must not change unseen."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"


def assert_golden(request: pytest.FixtureRequest, name: str, text: str) -> None:
    """Compare text with tests/golden/NAME; `--update-golden` writes it instead."""
    path = GOLDEN / name
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    assert path.is_file(), f"{path} is missing: run pytest with --update-golden and review it"
    assert text == path.read_text(encoding="utf-8")


def difference(known: str, other: str) -> str:
    """Return the lines in which a text differs from one that stands whole in a golden file."""
    lines = difflib.unified_diff(known.splitlines(), other.splitlines(), n=0, lineterm="")
    return "".join(f"{line}\n" for line in lines if line[:2] not in {"@@", "--", "++"})
