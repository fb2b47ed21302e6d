"""`bench pair`: two servers in turns."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sparkdeploy.cli.bench_options import (
    SWEPT_CONCURRENCY,
    SWEPT_CONTEXT,
    CaFileOption,
    ConcurrencyOption,
    ContextOption,
    KeyFileOption,
    ModelOption,
    RoundsOption,
    SuiteOption,
)
from sparkdeploy.cli.options import JsonOption, current_settings
from sparkdeploy.cli.printing import answer
from sparkdeploy.terminal.console import console


def pair(
    sides: Annotated[
        tuple[str, str], typer.Argument(metavar="A B", help="Deployments or addresses.")
    ],
    runs: Annotated[int, typer.Option(min=2, help="Of each side, in turns.")] = 3,
    model: ModelOption = None,
    key_file: KeyFileOption = None,
    ca_file: CaFileOption = None,
    suite: SuiteOption = None,
    rounds: RoundsOption = 3,
    concurrency: ConcurrencyOption = SWEPT_CONCURRENCY,
    context: ContextOption = SWEPT_CONTEXT,
    as_json: JsonOption = False,
) -> None:
    """Measure two servers in turns and compare them. A B B A and so on; every run is kept."""
    from sparkdeploy.bench.endpoint import Access
    from sparkdeploy.bench.pair import ONE_START, measure_in_turns
    from sparkdeploy.bench.run import WantedRun
    from sparkdeploy.bench.suites import parse_counts, parse_suites
    from sparkdeploy.bench.tables import comparison_lines

    wanted = WantedRun(
        suites=parse_suites(suite or ["five"]),
        rounds=rounds,
        concurrency=parse_counts(concurrency, "--concurrency"),
        context=parse_counts(context, "--context"),
    )
    access = Access(key_file, model, ca_file)
    found = measure_in_turns(sides, wanted, runs, current_settings(), access)
    answer(comparison_lines(found), asdict(found), as_json=as_json)
    console.info(ONE_START)
