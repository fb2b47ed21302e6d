"""Other processes that take the lock."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.server.neighbours import Neighbours, neighbours

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def others() -> Iterator[Neighbours]:
    """Processes beside this one."""
    with neighbours() as made:
        yield made


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder such as /run/lock, on a path that every user may walk."""
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        base = Path(scratch)
        base.chmod(0o755)
        (base / "lock").mkdir()
        (base / "lock").chmod(0o1777)
        yield base / "lock"
