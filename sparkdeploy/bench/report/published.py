"""Figures that others published, from the shipped table, and ours beside them with the sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.report.chart import figure, plottable, section_of
from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.bench.report.chart import Section, ShownRun

SPARK = "DGX Spark"
OTHERS = "The published figures are other people's, taken on one DGX Spark."
FIGURES = {"end_to_end_tok_s": "end to end", "stream_decode_tok_s": "decode only"}


@dataclass(frozen=True, slots=True)
class Published:
    """What somebody reported of one recipe: by prompt, or one figure for all of a suite."""

    label: str
    recipe: str
    suite: str
    figure: str
    """Ours that it can stand beside: a name of `record.METRICS`."""
    method: str
    hardware: str
    source: str
    prompts: Mapping[str, float]
    mean: float
    """Of the prompts, unless only one figure was published."""


@dataclass(frozen=True, slots=True)
class Other:
    """A figure of another set-up for the 122B on one Spark."""

    what: str
    tok_s: float
    method: str
    source: str


@dataclass(frozen=True, slots=True)
class Field:
    published: tuple[Published, ...]
    others: tuple[Other, ...]

    def of(self, suite: str, recipes: set[str]) -> tuple[Published, ...]:
        return tuple(
            item for item in self.published if item.suite == suite and item.recipe in recipes
        )


def read_published(path: Path) -> Field:
    """Read the table; it is ours, so its shape is not questioned."""
    content = read_document(path).content
    return Field(
        tuple(_published(**entry) for entry in content["published"]),
        tuple(Other(**entry) for entry in content["others"]),
    )


def _published(prompts: Mapping[str, float] | None = None, **entry: Any) -> Published:  # noqa: ANN401 - YAML
    prompts = prompts or {}
    mean = entry.pop("mean", None) or sum(prompts.values()) / len(prompts)
    return Published(**entry, prompts=prompts, mean=mean)


def published_section(runs: Sequence[ShownRun], field: Field) -> Section:
    """Every published figure of the runs' recipes, and what others reached with other set-ups."""
    others = [
        (other.what, figure(other.tok_s), f"{other.method}; {other.source}")
        for other in field.others
    ]
    rows = [row for shown in runs for row in _rows(shown, field)]
    if not rows:
        return section_of("nothing_published", (), others, (OTHERS,))
    rows += [("-", what, "-", tok_s, "-", said) for what, tok_s, said in others]
    notes = [OTHERS]
    elsewhere = ", ".join(
        shown.name
        for shown in runs
        if (machine := shown.run.origin.machine) is None or SPARK not in machine.product
    )
    if elsewhere:
        notes.append(f"Not taken on a DGX Spark, so the difference says little: {elsewhere}.")
    return section_of("published", (), rows, notes)


def _rows(shown: ShownRun, field: Field) -> Iterator[tuple[str, ...]]:
    for item in field.published:
        if item.recipe == shown.recipe:
            here = _here(shown, item)
            change = here / item.mean - 1 if here is not None and item.mean > 0 else None
            yield (
                shown.name,
                f"{item.recipe}, {FIGURES.get(item.figure, item.figure)} ({item.label})",
                figure(here),
                figure(item.mean),
                f"{change:+.0%}" if change is not None else "-",
                f"{item.method}; {item.hardware}; {item.source}",
            )


def _here(shown: ShownRun, item: Published) -> float | None:
    means = [
        cell.statistics[item.figure].mean
        for cell in shown.cells(item.suite)
        if cell.concurrency == 1
        and item.figure in cell.statistics
        and (not item.prompts or cell.prompt in item.prompts)
    ]
    # A class that is missing or damaged would make the mean one of something else.
    if not means or len(means) < len(item.prompts) or not all(map(plottable, means)):
        return None
    return sum(means) / len(means)
