"""Two nodes, for several tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.machines import build
from tests.fakes.two_nodes import Pair

if TYPE_CHECKING:
    from sparkdeploy.recipe.load import Library


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Pair:
    """Two nodes that every command reaches, and a head that does not answer."""
    return Pair(build(monkeypatch, shipped, 2))
