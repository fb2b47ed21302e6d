"""`bench load`, which is also `bench --suite load`: requests at their own moments."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkdeploy.bench.load.arrivals import Law
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
from sparkdeploy.cli.options import JsonOption, OnOption, current_settings

LOAD = "load"

RateOption = Annotated[
    str,
    typer.Option(
        help="Requests a second: 2; or 0.5,1,2 and, with --slo, between those; or auto with --slo."
    ),
]
ArrivalsOption = Annotated[Law, typer.Option(help="By Poisson's law, or evenly.")]
DurationOption = Annotated[str, typer.Option(help="How long requests come after the ramp.")]
RequestsOption = Annotated[
    int | None, typer.Option(min=1, help="After the ramp, in place of --duration.")
]
RampOption = Annotated[
    str, typer.Option(help="How long the rate rises first; its requests count nowhere. 0: none.")
]
SeedOption = Annotated[int, typer.Option(help="Of the arrivals, as vllm bench serve's --seed.")]
SloOption = Annotated[
    str | None,
    typer.Option(help="Limits of a good request: ttft, gap (its longest), tpot, e2e."),
]
ShareOption = Annotated[
    float, typer.Option(min=0.01, max=1, help="Of requests within --slo, for a rate to hold.")
]


def load(
    name: NameArgument = None,
    url: UrlOption = None,
    model: ModelOption = None,
    key_file: KeyFileOption = None,
    ca_file: CaFileOption = None,
    rate: RateOption = "1",
    arrivals: ArrivalsOption = Law.POISSON,
    duration: DurationOption = "60s",
    requests: RequestsOption = None,
    ramp: RampOption = "10s",
    seed: SeedOption = 0,
    slo: SloOption = None,
    share: ShareOption = 0.95,
    save: SaveOption = None,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Ask as users do: whoever comes does not wait for the others. Also `bench --suite load`."""
    from sparkdeploy.bench.suites import SuiteName
    from sparkdeploy.commands.bench import endpoint as there
    from sparkdeploy.commands.bench.load import TypedComing, TypedLimits, load_plan
    from sparkdeploy.commands.bench.run import WantedRun, measure_endpoint

    coming = TypedComing(rate, arrivals, duration, requests, ramp, seed)
    plan = load_plan(coming, TypedLimits(slo, share))
    settings = current_settings()
    endpoint = there.reach(one_side(name, url), settings, there.Access(key_file, model, ca_file))
    wanted = WantedRun((SuiteName.LOAD,), 1, (), (), save, plan)
    print_finished(measure_endpoint(endpoint, wanted, settings), as_json=as_json)


def without_suite(arguments: list[str]) -> list[str] | None:
    """Return what stands beside `--suite load`; None where another suite is asked, or none."""
    for index, word in enumerate(arguments):
        if word == f"--suite={LOAD}":
            return arguments[:index] + arguments[index + 1 :]
        if word == "--suite" and arguments[index + 1 : index + 2] == [LOAD]:
            return arguments[:index] + arguments[index + 2 :]
    return None
