"""`bench pair`: two servers, or two recipes one after the other, measured in turns."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

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
from sparkdeploy.cli.options import (
    JsonOption,
    KnownBadOption,
    NameOption,
    OnOption,
    SetOption,
    UnsafeOption,
    YesOption,
    current_settings,
    with_consent,
)
from sparkdeploy.cli.printing import answer
from sparkdeploy.errors import UsageError
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from sparkdeploy.bench.compare import RunComparison
    from sparkdeploy.bench.run import WantedRun

OF_RECIPES = ("assignments", "name", "known_bad", "unsafe")
OF_SERVERS = ("model", "key_file", "ca_file")


def pair(
    words: typer.Context,
    sides: Annotated[
        tuple[str, str],
        typer.Argument(metavar="A B", help="Deployments or addresses; or two recipes."),
    ],
    runs: Annotated[int, typer.Option(min=2, help="Of each side, in turns.")] = 3,
    model: ModelOption = None,
    key_file: KeyFileOption = None,
    ca_file: CaFileOption = None,
    suite: SuiteOption = None,
    rounds: RoundsOption = 3,
    concurrency: ConcurrencyOption = SWEPT_CONCURRENCY,
    context: ContextOption = SWEPT_CONTEXT,
    assignments: SetOption = None,
    name: NameOption = "main",
    known_bad: KnownBadOption = False,
    unsafe: UnsafeOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Measure two servers in turns and compare them; every run is kept.

    What serves is asked A B B A and so on. Two recipes are served as --name one after the other,
    each run by a start of its own; what served before is put back.
    """
    wanted = _wanted(suite, rounds, concurrency, context)
    if _are_recipes(sides, words):
        consents = with_consent(assignments, known_bad=known_bad, unsafe=unsafe)
        consent = (lambda _question: True) if yes else console.confirm
        taken = _of_recipes(sides, consents, name, runs, wanted, consent)
    else:
        taken = _of_servers(sides, key_file, model, ca_file, runs, wanted)
    _print(taken, as_json=as_json)


def _wanted(suite: list[str] | None, rounds: int, streams: str, lengths: str) -> WantedRun:
    from sparkdeploy.bench.run import WantedRun
    from sparkdeploy.bench.suites import parse_counts, parse_suites

    return WantedRun(
        suites=parse_suites(suite or ["five"]),
        rounds=rounds,
        concurrency=parse_counts(streams, "--concurrency"),
        context=parse_counts(lengths, "--context"),
    )


def _of_recipes(
    sides: tuple[str, str],
    assignments: list[str],
    deployment: str,
    runs: int,
    wanted: WantedRun,
    consent: Callable[[str], bool],
) -> AbstractContextManager[RunComparison]:
    from sparkdeploy.bench.pair_recipes import RecipePair, one_after_the_other
    from sparkdeploy.deploy.request import from_anywhere

    settings = current_settings()
    recipes = (from_anywhere(sides[0], settings), from_anywhere(sides[1], settings))
    asked = RecipePair(recipes, tuple(assignments), deployment, runs)
    return one_after_the_other(asked, wanted, settings, consent)


def _of_servers(
    sides: tuple[str, str],
    key_file: Path | None,
    model: str | None,
    ca_file: Path | None,
    runs: int,
    wanted: WantedRun,
) -> AbstractContextManager[RunComparison]:
    from sparkdeploy.bench.endpoint import Access
    from sparkdeploy.bench.pair import both_at_once

    access = Access(key_file, model, ca_file)
    return both_at_once(sides, wanted, runs, current_settings(), access)


def _print(taken: AbstractContextManager[RunComparison], *, as_json: bool) -> None:
    """Print the figures first: what served before is put back when the block ends."""
    from sparkdeploy.bench.tables import comparison_lines

    with taken as comparison:
        answer(comparison_lines(comparison), asdict(comparison), as_json=as_json)


def _are_recipes(sides: tuple[str, str], words: typer.Context) -> bool:
    from sparkdeploy.bench.pair_recipes import are_recipes

    found = are_recipes(sides, current_settings())
    if found:
        _refuse_given(words, OF_SERVERS, "goes with an address, and these are recipes")
    else:
        _refuse_given(words, OF_RECIPES, "goes with two recipes, and these serve")
    return found


def _refuse_given(words: typer.Context, names: tuple[str, ...], why: str) -> None:
    for parameter in words.command.params:
        source = words.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{parameter.opts[0]} {why}")
