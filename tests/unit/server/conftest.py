"""Other processes that take the lock."""

from __future__ import annotations

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
