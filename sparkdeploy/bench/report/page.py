"""The page itself: HTML with its styles and pictures inside. It loads nothing and runs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.figures import value_of
from sparkdeploy.bench.files import shipped
from sparkdeploy.bench.report.sections import (
    TEXTS,
    acceptance_section,
    agents_section,
    concurrency_section,
    context_section,
    load_section,
    source_of,
    speed_section,
)
from sparkdeploy.bench.report.shown import LOAD, ShownRun, with_names
from sparkdeploy.bench.report.summary import cache_hits, summary_of
from sparkdeploy.bench.tables import change, figure, free_gib, machine_facts, origin_facts, percent
from sparkdeploy.image.templates import render_page
from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.bench.compare import Side
    from sparkdeploy.bench.quality.comparison import QualityResult
    from sparkdeploy.bench.record import Run, SuiteResult
    from sparkdeploy.bench.report.shown import Section

SPARK = "DGX Spark"
MOST_RUNS = len(shipped(TEXTS)["series"])
"""As many as there are colours that can be told apart; a further one begins again."""


@dataclass(frozen=True, slots=True)
class Field:
    """What others reported, as recipes/facts/published.yaml has it."""

    published: tuple[Mapping[str, Any], ...]
    """Of one recipe: by prompt, with their mean, or one figure for all of a suite."""
    others: tuple[Mapping[str, Any], ...]
    """Other set-ups for the 122B on one Spark: what, tok_s, method and source."""


def read_published(path: Path) -> Field:
    """Read the table; it is ours, so its shape is not questioned."""
    content = read_document(path).content
    published = []
    for entry in content["published"]:
        prompts = entry.get("prompts", {})
        mean = entry.get("mean") or sum(prompts.values()) / len(prompts)
        published.append({**entry, "prompts": prompts, "mean": mean})
    return Field(tuple(published), tuple(content["others"]))


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
    judged = [(item.name, item.quality) for item in shown if item.quality]
    reference = shown[:1] if len(shown) > 1 else ()
    engines = (run.origin.engine for run in runs)
    return render_page(
        Path(__file__).parent,
        "report.html.j2",
        title=" and ".join(item.name for item in shown) if len(shown) < 3 else f"{len(shown)} runs",
        shared=shared,
        runs=[
            (item, {name: own[name] for name in own if name not in shared})
            for item, own in zip(shown, facts, strict=True)
        ],
        summary=summary_of(shown, known),
        judged=judged,
        gates=dict.fromkeys(_limits(result.limits) for _, result in judged),
        unmeasured=[it.name for it in shown if not it.quality and it not in reference],
        cache_hits=[percent(cache_hits(item)) for item in shown],
        cache_tokens=[figure(it.kv_cache_tokens if it else None, 0) for it in engines],
        free_gib=[figure(free_gib(it for s in run.suites for it in s.cells)) for run in runs],
        figure=figure,
        sections=list(filter(None, _sections(shown, field))),
        texts=shipped(TEXTS),
        published=list(_beside_published(shown, field)),
        change=change,
        source_of=source_of,
        others=field.others,
        elsewhere=[
            item.name
            for item in shown
            if (machine := item.run.origin.machine) is None or SPARK not in machine.product
        ],
        warnings=tuple(_warnings(shown)),
        made_at=made_at,
        version=version,
    )


def _sections(shown: Sequence[ShownRun], field: Field) -> Iterator[Section | None]:
    yield speed_section(shown, field.published, "five")
    yield speed_section(shown, field.published, "decode")
    yield load_section(shown)
    yield agents_section(shown)
    yield concurrency_section(shown)
    yield context_section(shown)
    yield acceptance_section(shown)


def _limits(limits: Mapping[str, float]) -> str:
    texts = shipped(TEXTS)["limits"]
    return ", ".join(texts[name].format(limits[name]) for name in texts if name in limits)


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    yield from origin_facts(run.origin)
    yield from (("started", run.started_at), ("record", run.run_id))
    suites = (f"{it.name} ({it.rounds} round{'s'[: it.rounds != 1]})" for it in run.suites)
    yield "measured", ", ".join(suites)
    yield from machine_facts([cell for suite in run.suites for cell in suite.cells])


def _named(
    runs: Sequence[Run], known: Sequence[Side], quality: Sequence[QualityResult | None]
) -> Iterator[ShownRun]:
    labels = [run.label for run in runs]
    for index, (run, result) in enumerate(zip(runs, quality, strict=True)):
        label = labels[index]
        number = f" ({labels[: index + 1].count(label)})" if labels.count(label) > 1 else ""
        yield ShownRun(run, label + number, index % MOST_RUNS, _others(run, runs, known), result)


def _others(run: Run, shown: Sequence[Run], known: Sequence[Side]) -> tuple[Run, ...]:
    """Return the further runs of the same label, unless two of them are shown apart."""
    side = next((item for item in known if run in item.runs), None)
    if side is None or sum(other in side.runs for other in shown) > 1:
        return ()
    return tuple(other for other in side.runs if other != run)


def _warnings(shown: Sequence[ShownRun]) -> Iterator[str]:
    suites = [(item, suite) for item in shown for suite in item.run.suites]
    yield from with_names((item.name, remark) for item, suite in suites for remark in _ill(suite))
    prompts: dict[str, set[str]] = {}
    for _, suite in suites:
        if suite.name != LOAD:
            prompts.setdefault(suite.name, set()).add(suite.prompts)
    for name in sorted(name for name, found in prompts.items() if len(found) > 1):
        yield f"The prompts of {name} are not the same in all runs: do not compare them."


def _ill(suite: SuiteResult) -> Iterator[str]:
    if not suite.is_complete:
        yield f"the suite {suite.name} was interrupted; what it had is shown."
    failures = sum(cell.failures for cell in suite.cells)
    if failures:
        asked = sum(r.requests for cell in suite.cells for r in cell.rounds)
        yield f"{failures} of {asked} requests of {suite.name} failed; they are in no figure."


def _beside_published(
    runs: Sequence[ShownRun], field: Field
) -> Iterator[tuple[str, Mapping[str, Any], float | None]]:
    """Yield the run, what somebody reported of its recipe, and our figure of the same."""
    for shown in runs:
        found = (item for item in field.published if item["recipe"] == shown.recipe)
        yield from ((shown.name, item, _here(shown, item)) for item in found)


def _here(shown: ShownRun, item: Mapping[str, Any]) -> float | None:
    prompts = item["prompts"]
    means = [
        value
        for cell in shown.cells(item["suite"])
        if cell.concurrency == 1 and (not prompts or cell.prompt in prompts)
        if (value := value_of(cell, item["figure"])) is not None
    ]
    # A class that is missing would make the mean one of something else.
    return sum(means) / len(means) if means and len(means) >= len(prompts) else None
