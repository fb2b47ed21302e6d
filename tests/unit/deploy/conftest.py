"""Two nodes, for several tests."""

from __future__ import annotations

import pytest

from sparkdeploy.recipe.load import Library
from tests.fakes.machines import build
from tests.fakes.two_nodes import Pair


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Pair:
    """Two nodes that every command reaches, and a head that does not answer."""
    return Pair(build(monkeypatch, shipped, 2))
