"""Texts without a drafter that one rehearsal has recorded, for those of other workers.

The product names each by images, checkpoint and settings; a start of the real vLLM is saved.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def recorded_texts(factory: pytest.TempPathFactory, state: Path) -> Iterator[set[str]]:
    """Lend a user's state folder the texts of this run; afterwards the set has those it made."""
    base = factory.getbasetemp()
    kept = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "texts"
    kept.mkdir(exist_ok=True)
    own = state / "rehearsals"
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in kept.iterdir():
        shutil.copy(file, own)
    made: set[str] = set()
    before = {file.name for file in own.iterdir()}
    yield made
    made |= {file.name for file in own.iterdir()} - before
    for name in made:
        shutil.copy(own / name, kept)
