"""A recipe of others, loaded as one of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy.recipe.load import Resolved, load_recipe
from tests.unit.recipe.foreign.samples import ALLOWED, SHELF

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def theirs(tmp_path: Path) -> Callable[..., Resolved]:
    def load(text: str, *settings: str) -> Resolved:
        path = tmp_path / "theirs.yaml"
        path.write_text(text)
        return load_recipe(SHELF, str(path), [*settings, ALLOWED])

    return load
