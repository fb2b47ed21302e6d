"""The page itself: HTML with its styles and pictures inside. It loads nothing and runs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.report.loads import load_section
from sparkdeploy.bench.report.published import published_section
from sparkdeploy.bench.report.sections import (
    acceptance_section,
    concurrency_section,
    context_section,
    speed_section,
)
from sparkdeploy.bench.report.table import LOAD, ShownRun, with_names
from sparkdeploy.bench.report.verdicts import first_screen
from sparkdeploy.bench.tables import machine_facts, origin_facts
from sparkdeploy.image.templates import render_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.bench.compare import Side
    from sparkdeploy.bench.quality.kept import QualityResult
    from sparkdeploy.bench.record import Run, SuiteResult
    from sparkdeploy.bench.report.published import Field
    from sparkdeploy.bench.report.table import Section

TEMPLATE = "report.html.j2"
SERIES: tuple[tuple[str, str], ...] = (
    ("#0072b2", "#4aa3df"),
    ("#d55e00", "#f08a3c"),
    ("#009e73", "#22c197"),
    ("#b8609a", "#dd94c0"),
    ("#3a3a3a", "#e4e4e4"),
    ("#a07000", "#e6b020"),
    ("#4d8fbb", "#8fd0f5"),
    ("#7d6b00", "#f0e442"),
)
"""Of each run on light and on dark ground, apart for every kind of colour vision (Okabe and Ito,
"Color Universal Design", 2008), each with 3:1 against its ground (WCAG 2.1, 1.4.11). A ninth run
begins again."""


def report_page(
    runs: Sequence[Run],
    field: Field,
    *,
    made_at: str,
    version: str,
    known: Sequence[Side] = (),
    quality: Sequence[QualityResult | None] = (),
) -> str:
    """Return the page.

    `known` has further runs, by which differences are judged; `quality` what is known of each run.
    """
    shown = tuple(_named(runs, known, quality or [None] * len(runs)))
    facts = [dict(_facts(run)) for run in runs]
    # What several runs have in common is shown once.
    shared = {
        name: value
        for name, value in facts[0].items()
        if len(facts) > 1 and all(own.get(name) == value for own in facts)
    }
    own_facts = [{name: own[name] for name in own if name not in shared} for own in facts]
    return render_page(
        Path(__file__).parent,
        TEMPLATE,
        title=" and ".join(item.name for item in shown) if len(shown) < 3 else f"{len(shown)} runs",
        shared=shared,
        runs=list(zip(shown, own_facts, strict=True)),
        summary=first_screen(shown, known),
        sections=list(_sections(shown, field)),
        warnings=tuple(_warnings(shown)),
        made_at=made_at,
        version=version,
        series=SERIES,
    )


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    yield from origin_facts(run.origin)
    yield from (("started", run.started_at), ("record", run.run_id))
    suites = (f"{suite.name} ({_rounds(suite)})" for suite in run.suites)
    yield "measured", ", ".join(suites)
    yield from machine_facts(cell for suite in run.suites for cell in suite.cells)


def _rounds(suite: SuiteResult) -> str:
    return f"{suite.rounds} round{'' if suite.rounds == 1 else 's'}"


def _named(
    runs: Sequence[Run], known: Sequence[Side], quality: Sequence[QualityResult | None]
) -> Iterator[ShownRun]:
    labels = [run.label for run in runs]
    for index, (run, result) in enumerate(zip(runs, quality, strict=True)):
        label = labels[index]
        number = f" ({labels[: index + 1].count(label)})" if labels.count(label) > 1 else ""
        yield ShownRun(run, label + number, index % len(SERIES), _others(run, runs, known), result)


def _others(run: Run, shown: Sequence[Run], known: Sequence[Side]) -> tuple[Run, ...]:
    """Return the further runs of the same label, unless two of them are shown apart."""
    side = next((item for item in known if run in item.runs), None)
    if side is None or sum(other in side.runs for other in shown) > 1:
        return ()
    return tuple(other for other in side.runs if other != run)


def _sections(shown: Sequence[ShownRun], field: Field) -> Iterator[Section]:
    drawn = (
        speed_section(shown, field, "five"),
        speed_section(shown, field, "decode"),
        load_section(shown, Asking.OPEN_LOOP),
        load_section(shown, Asking.CONVERSATIONS),
        concurrency_section(shown),
        context_section(shown),
        acceptance_section(shown),
    )
    yield from (section for section in drawn if section is not None)
    yield published_section(shown, field)


def _warnings(shown: Sequence[ShownRun]) -> Iterator[str]:
    yield from with_names(
        (item.name, remark) for item in shown for suite in item.run.suites for remark in _ill(suite)
    )
    yield from (
        f"{item.name}: the suite {suite.name} ({suite.asking}) is not on this page: "
        f"`sparkdeploy bench show {item.run.run_id}`."
        for item in shown
        for suite in item.run.suites
        if suite.asking is not Asking.CLOSED_LOOP and suite.name != LOAD
    )
    closed = (it for item in shown for it in item.run.suites if it.asking is Asking.CLOSED_LOOP)
    for name in sorted({suite.name for suite in closed}):
        found = {
            suite.prompts
            for item in shown
            if (suite := item.run.suite(name, Asking.CLOSED_LOOP)) is not None
        }
        if len(found) > 1:
            yield f"The prompts of {name} are not the same in all runs: do not compare them."


def _ill(suite: SuiteResult) -> Iterator[str]:
    if not suite.is_complete:
        yield f"the suite {suite.name} was interrupted; what it had is shown."
    failures = sum(cell.failures for cell in suite.cells)
    if failures:
        asked = sum(r.requests for cell in suite.cells for r in cell.rounds)
        yield f"{failures} of {asked} requests of {suite.name} failed; they are in no figure."
