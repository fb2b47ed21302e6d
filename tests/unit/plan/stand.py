"""The scripts of tests/gpu/stand, loaded as modules."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from types import ModuleType

    import pytest

STAND = REPOSITORY / "tests" / "gpu" / "stand"


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STAND))
    spec = importlib.util.spec_from_file_location(f"stand_{name}", STAND / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up there.
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module
