"""What several tests of this room start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.commands.lab import build
from tests.unit.commands.two_nodes import Pair

if TYPE_CHECKING:
    from sparkdeploy.recipe.load import Library


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Pair:
    """Two nodes that every command reaches, and a head that does not answer."""
    return Pair(build(monkeypatch, shipped, 2))
