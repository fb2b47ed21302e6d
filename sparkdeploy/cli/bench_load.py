"""`bench load`, which is also `bench --suite load`: requests at their own moments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkdeploy.bench.load.arrivals import Law
from sparkdeploy.bench.suites import Route
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
PromptsOption = Annotated[
    Path | None,
    typer.Option(help="JSON a line: messages or prompt, and max_tokens; asked in turn."),
]
TurnsOption = Annotated[
    int | None,
    typer.Option(
        min=2, max=64, help="An agent's conversations, so many turns each; --rate is theirs."
    ),
]
RouteOption = Annotated[Route, typer.Option(help="/v1/chat/completions or /v1/completions.")]
TemperatureOption = Annotated[float | None, typer.Option(min=0, help="0 when left out.")]
TopPOption = Annotated[float | None, typer.Option(min=0, max=1)]
TopKOption = Annotated[int | None, typer.Option(min=-1)]
ExtraBodyOption = Annotated[
    str | None, typer.Option(help="JSON whose fields each request gets; it is recorded.")
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(help="'Name: value' for each request; its name is recorded. No keys: --key-file."),
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
    prompts: PromptsOption = None,
    turns: TurnsOption = None,
    route: RouteOption = Route.CHAT,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    extra_body: ExtraBodyOption = None,
    header: HeaderOption = None,
    save: SaveOption = None,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Ask as users do: whoever comes does not wait for the others. Also `bench --suite load`."""
    from sparkdeploy.bench import endpoint as there
    from sparkdeploy.bench.load.run import TypedComing, TypedLimits, TypedRequests, load_plan
    from sparkdeploy.bench.run import WantedRun, measure_endpoint
    from sparkdeploy.bench.suites import SuiteName

    plan = load_plan(
        TypedComing(rate, arrivals, duration, requests, ramp, seed),
        TypedLimits(slo, share),
        TypedRequests(
            route,
            prompts,
            turns,
            {"temperature": temperature, "top_p": top_p, "top_k": top_k},
            extra_body,
            header or (),
        ),
    )
    settings = current_settings()
    endpoint = there.reach(
        one_side(name, url, "bench load"), settings, there.Access(key_file, model, ca_file)
    )
    wanted = WantedRun((SuiteName.LOAD,), 1, (), (), save, load=plan)
    print_finished(measure_endpoint(endpoint, wanted, settings), as_json=as_json)


def without_suite(arguments: list[str]) -> list[str] | None:
    """Return what stands beside `--suite load`; None where another suite is asked, or none."""
    for index, word in enumerate(arguments):
        if word == f"--suite={LOAD}":
            return arguments[:index] + arguments[index + 1 :]
        if word == "--suite" and arguments[index + 1 : index + 2] == [LOAD]:
            return arguments[:index] + arguments[index + 2 :]
    return None
