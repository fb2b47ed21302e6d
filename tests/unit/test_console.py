"""What is said when a step has ended."""

from __future__ import annotations

import contextlib

import pytest

from sparkdeploy.errors import UnhealthyError
from sparkdeploy.terminal.console import Console


@pytest.mark.parametrize(
    ("end", "outcome"),
    [(None, "done"), (UnhealthyError("x"), "failed"), (KeyboardInterrupt(), "interrupted")],
)
def test_a_step_says_how_it_ended(
    capsys: pytest.CaptureFixture[str], end: BaseException | None, outcome: str
) -> None:
    passes = pytest.raises(type(end)) if end is not None else contextlib.nullcontext()
    with passes, Console(clock=lambda: 0.0).step("start of main"):
        if end is not None:
            raise end
    assert capsys.readouterr().err == f"start of main: {outcome} (0.0s)\n"
