"""`bench load` and `pair`, and how a run is printed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sparkdeploy.bench.load.plan import Law
from sparkdeploy.cli.bench_options import (
    SWEPT_CONCURRENCY,
    SWEPT_CONTEXT,
    CaFileOption,
    ConcurrencyOption,
    ContextOption,
    KeyFileOption,
    ModelOption,
    NameArgument,
    RoundsOption,
    SaveOption,
    SuiteOption,
    UrlOption,
    one_side,
)
from sparkdeploy.cli.options import JsonOption, current_settings
from sparkdeploy.cli.printing import answer
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from sparkdeploy.bench.record import Run
    from sparkdeploy.bench.run import Finished


def load(
    name: NameArgument = None,
    url: UrlOption = None,
    model: ModelOption = None,
    key_file: KeyFileOption = None,
    ca_file: CaFileOption = None,
    rate: Annotated[
        str,
        typer.Option(
            help="Requests a second: 2; 0.5,1,2 (with --slo also between); or auto with --slo."
        ),
    ] = "1",
    arrivals: Annotated[Law, typer.Option(help="By Poisson's law, or evenly.")] = Law.POISSON,
    duration: Annotated[
        str, typer.Option(help="How long requests are sent after the ramp.")
    ] = "60s",
    requests: Annotated[
        int | None, typer.Option(min=1, help="After the ramp, in place of --duration.")
    ] = None,
    ramp: Annotated[
        str,
        typer.Option(help="How long the rate rises first; its requests count nowhere. 0: none."),
    ] = "10s",
    seed: Annotated[int, typer.Option(min=0, help="Of the arrivals.")] = 0,
    slo: Annotated[
        str | None,
        typer.Option(help="Limits of a good request: ttft, tpot, e2e, such as ttft=2s,tpot=100ms."),
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.01, max=1, help="Of requests within --slo, for a rate to hold.")
    ] = 0.95,
    turns: Annotated[
        int | None,
        typer.Option(
            min=2, max=64, help="An agent's conversations, so many turns each; --rate is theirs."
        ),
    ] = None,
    save: SaveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send requests as users do: nobody waits for the others."""
    from sparkdeploy.bench import endpoint as there
    from sparkdeploy.bench.load.plan import Arrivals, load_plan, parse_span
    from sparkdeploy.bench.run import WantedRun, measure_endpoint
    from sparkdeploy.bench.suites import SuiteName

    duration_s = parse_span(duration, "--duration")
    ramp_s = 0.0 if ramp == "0" else parse_span(ramp, "--ramp")
    when = Arrivals(arrivals, duration_s, requests, ramp_s, seed)
    plan = load_plan(when, rate, slo=slo, share=share, turns=turns)
    settings = current_settings()
    access = there.Access(key_file, model, ca_file)
    endpoint = there.reach(one_side(name, url, "bench load"), settings, access)
    wanted = WantedRun((SuiteName.LOAD,), 1, (), (), save, load=plan)
    print_finished(measure_endpoint(endpoint, wanted, settings), as_json=as_json)


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
