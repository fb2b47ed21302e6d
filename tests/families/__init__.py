"""Small configurations of many families: published keys and head widths, few and narrow layers.

Widths of heads, windows, kernels and states are those of the published models, for they decide
the pages of a cache; counts of layers, experts and tokens are small.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def config(name: str) -> dict[str, Any]:
    """Return a family's small config.json."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found
