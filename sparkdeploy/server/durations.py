"""How long the phases of a start took the last time with the same image and model."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING

from sparkdeploy.node.private_folder import make_private
from sparkdeploy.server.phases import SPARK_COLD_START_S
from sparkdeploy.stored_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def recall(
    state_dir: Path, key: str, *, otherwise: Mapping[str, float] = SPARK_COLD_START_S
) -> Mapping[str, float]:
    """Return seconds a phase from the last start of this key, or else the table given."""
    try:
        known = read_json(_path(state_dir, key))
        return {str(name): float(duration_s) for name, duration_s in known.items()}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError):
        return otherwise


def remember(state_dir: Path, key: str, phases_s: Mapping[str, float]) -> None:
    """Keep what a successful start took; `key` names image, recipe and hardware."""
    path = _path(state_dir, key)
    staged = path.with_suffix(".new")
    # A full disk costs the next start its estimate, and this one nothing.
    with contextlib.suppress(OSError):
        make_private(path.parent)
        staged.write_text(json.dumps({name: round(value, 2) for name, value in phases_s.items()}))
        staged.replace(path)


def _path(state_dir: Path, key: str) -> Path:
    return state_dir / "starts" / (re.sub(r"[^\w.-]", "_", key)[:200] + ".json")
