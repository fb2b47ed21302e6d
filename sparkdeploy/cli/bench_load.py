"""`bench load`: requests on schedule, whether or not earlier ones are answered."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkdeploy.bench.load.plan import Law
from sparkdeploy.cli.bench_options import (
    CaFileOption,
    KeyFileOption,
    ModelOption,
    NameArgument,
    SaveOption,
    UrlOption,
    one_side,
)
from sparkdeploy.cli.bench_printing import print_finished
from sparkdeploy.cli.options import JsonOption, current_settings


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
