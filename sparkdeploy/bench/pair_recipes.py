"""`bench pair` of two recipes: served one after the other, for machines that hold one at a time."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.bench.before import FILE, note_before, put_back, restored
from sparkdeploy.bench.campaign.run import alone
from sparkdeploy.bench.endpoint import reach_deployment
from sparkdeploy.bench.pair import Contender, refuse_same, take_turns
from sparkdeploy.deploy.deployments import list_deployments
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.deploy.up import up
from sparkdeploy.errors import BenchError, SparkdeployError, UsageError
from sparkdeploy.plan.container import Deployment
from sparkdeploy.server.pooling import MEASURE_HINT
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sparkdeploy.bench.campaign.state import Before
    from sparkdeploy.bench.compare import RunComparison
    from sparkdeploy.bench.endpoint import Endpoint
    from sparkdeploy.bench.run import WantedRun
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class RecipePair:
    recipes: tuple[str, str]
    """Names or files."""
    assignments: tuple[str, ...]
    deployment: str
    """The one name under which both are served."""
    runs: int
    """Of each side; each has a start of its own."""


def are_recipes(names: tuple[str, str], settings: Settings) -> bool:
    """Return whether neither side serves yet; UsageError where one does and one does not.

    What is no address and no deployment is taken for a recipe.
    """
    if any("://" in name for name in names):
        return False
    with connect(settings) as host:
        there = {found.name for found in list_deployments(host)}
    known = [name for name in names if name in there]
    if len(known) == 1:
        (missing,) = set(names) - set(known)
        raise UsageError(
            f"{known[0]} is a deployment, and {missing} is none",
            hint="name two that serve, by deployment or address; or two recipes, which are served "
            "one after the other",
        )
    return not known


@contextlib.contextmanager
def one_after_the_other(
    asked: RecipePair, wanted: WantedRun, settings: Settings, consent: Callable[[str], bool]
) -> Iterator[RunComparison]:
    """Serve and measure A B A B and so on; what served before is put back when the block ends.

    A run has a start of its own, so that what a start decides is in the variation between runs.
    Every run is kept under its recipe's name. Raises before anything is begun for recipes that
    cannot be read and for what could not be put back; what ends one run ends the pair, the runs
    before it stay, and what served before is put back all the same.
    """
    refuse_same(asked.recipes)
    requests = [
        Request(name, asked.assignments, Deployment(asked.deployment)) for name in asked.recipes
    ]
    resolved = [resolve(request, settings) for request in requests]
    _refuse_no_text(resolved)
    with alone(settings):
        before = note_before(asked.deployment, settings)
        folder = settings.state_dir / "bench" / "pair"
        _ask(asked, before, consent)
        if before is not None:
            # What cannot be put back is told while somebody is there.
            restored(before, asked.deployment, folder, settings)
        with _put_back_after(before, asked.deployment, folder, settings):
            labels = _labels(asked.recipes, resolved)
            pair = [
                Contender(label, partial(_serve, item, request, settings))
                for label, item, request in zip(labels, resolved, requests, strict=True)
            ]
            yield take_turns(pair, pair * asked.runs, asked.runs, wanted, settings)


def _refuse_no_text(resolved: list[Resolved]) -> None:
    for item in resolved:
        if item.recipe.serve.runner == "pooling":
            raise UsageError(
                f"{item.recipe.name} writes no text, and a pair measures how it is written",
                hint=MEASURE_HINT,
            )


def _ask(asked: RecipePair, before: Before | None, consent: Callable[[str], bool]) -> None:
    first, second = asked.recipes
    name = asked.deployment
    then = f"{name} runs {before.wanted}, which is" if before else f"Nothing serves as {name}, as"
    end = "put back at the end" if before else "it will be at the end"
    question = (
        f"{first} and {second} will be served as {name} one after the other, {asked.runs} starts "
        f"of each, and models that are not here downloaded. {then} {end}. Go on?"
    )
    if not consent(question):
        raise SparkdeployError("nothing was measured", hint="say yes, or pass --yes")


def _serve(resolved: Resolved, request: Request, settings: Settings) -> Endpoint:
    up(resolved, request, settings, confirm=lambda _question: True)
    return reach_deployment(request.deployment.name, settings)


def _labels(names: tuple[str, str], resolved: list[Resolved]) -> tuple[str, ...]:
    told = tuple(item.recipe.name for item in resolved)
    return told if len(set(told)) == len(names) else names


@contextlib.contextmanager
def _put_back_after(
    before: Before | None, deployment: str, folder: Path, settings: Settings
) -> Iterator[None]:
    """Put back whatever happens; BenchError when that fails and nothing else has."""
    try:
        yield
    except BaseException as reason:
        if isinstance(reason, KeyboardInterrupt):
            console.warn("interrupted; the runs that ended are kept. Another Ctrl-C leaves it so")
        try:
            _put_back(before, deployment, folder, settings)
        except BenchError as error:
            console.error(error.message, hint=error.hint)
        raise
    _put_back(before, deployment, folder, settings)


def _put_back(before: Before | None, deployment: str, folder: Path, settings: Settings) -> None:
    hint = f"`sparkdeploy down {deployment}`"
    if before is not None:
        hint = f"`sparkdeploy up {shlex.quote(before.wanted)} --name {deployment}`"
    console.info("putting back what served before")
    try:
        console.info(put_back(before, deployment, folder, settings))
    except KeyboardInterrupt:
        console.warn(f"what served before is not put back; {hint} does it")
        raise
    except SparkdeployError as error:
        raise BenchError(
            f"what served before was not put back: {error.message}", hint=f"{hint} tries again"
        ) from error
    (folder / FILE).unlink(missing_ok=True)
