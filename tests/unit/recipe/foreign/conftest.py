"""A recipe of others, loaded as one of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparkdeploy.recipe.load import Resolved, load_recipe
from tests.unit.recipe.foreign.samples import ALLOWED, SHELF


@pytest.fixture
def theirs(tmp_path: Path) -> Callable[..., Resolved]:
    def load(text: str, *settings: str) -> Resolved:
        path = tmp_path / "theirs.yaml"
        path.write_text(text)
        return load_recipe(SHELF, str(path), [*settings, ALLOWED])

    return load
