"""What a shell sees of each kind of end."""

from __future__ import annotations

import errno
from typing import NoReturn

import pytest

from sparkdeploy import errors
from sparkdeploy.cli import main as program
from tests.unit.program import Run

CODES = {
    errors.SparkdeployError("x"): 1,
    errors.UsageError("x"): 2,
    errors.RecipeError("x"): 3,
    errors.NodeError("x"): 4,
    errors.BuildError("x"): 5,
    errors.CheckpointError("x"): 6,
    errors.UnhealthyError("x"): 7,
    errors.BenchError("x"): 8,
    errors.ChangesPendingError("x"): 9,
    ZeroDivisionError("x"): 70,
    OSError(errno.ENOSPC, "full"): 4,
    OSError(errno.EDQUOT, "full"): 4,
    OSError(errno.EROFS, "read-only"): 4,
    OSError(errno.EACCES, "denied"): 70,
    KeyboardInterrupt(): 130,
}


@pytest.mark.parametrize("error", CODES, ids=lambda error: type(error).__name__)
def test_each_kind_of_failure_has_a_code_of_its_own(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail() -> NoReturn:
        raise error

    monkeypatch.setattr(program, "_run", fail)
    assert run("list").returncode == CODES[error]
