"""A run of `bench` as it is printed: as a page of text, or as its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from sparkdeploy.bench.record import Run
    from sparkdeploy.bench.run import Finished


def print_run(run: Run, *, as_json: bool) -> None:
    from sparkdeploy.bench.files import record_text
    from sparkdeploy.bench.tables import run_lines
    from sparkdeploy.bench.watch import drafted_in
    from sparkdeploy.server.metrics import low_acceptance_warning

    if remark := low_acceptance_warning(drafted_in(run)):
        console.warn(remark)
    if as_json:
        console.answer_text(record_text(run))
        return
    console.answer_blocks(run_lines(run))


def print_finished(finished: Finished, *, as_json: bool) -> None:
    """Print what was measured and where it is kept, then raise what ended it."""
    from sparkdeploy.bench.run import require_figures

    print_run(finished.run, as_json=as_json)
    if finished.lost is None:
        console.info(f"kept in {finished.path}")
    require_figures(finished)
