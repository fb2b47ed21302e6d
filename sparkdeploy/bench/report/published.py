"""What others published of the recipes, beside what was measured here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.report.table import NOTHING, Column, Table, section_of
from sparkdeploy.bench.tables import change, figure
from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.bench.report.table import Row, Section, ShownRun

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
    rows = [row for shown in runs for row in _rows(shown, field)]
    others: list[Row] = [
        (it.what, (NOTHING, figure(it.tok_s), NOTHING, f"{it.method}; {it.source}"))
        for it in field.others
    ]
    columns = (
        *map(Column, ("here", "published", "difference")),
        Column("method and source", is_text=True),
    )
    groups = (("recipes of these runs", rows), ("other set-ups, one request", others))
    table = Table("Published figures, tok/s", "what", columns, groups)
    if not rows:
        return section_of("nothing_published", table, notes=(OTHERS,))
    notes = [OTHERS]
    elsewhere = ", ".join(
        shown.name
        for shown in runs
        if (machine := shown.run.origin.machine) is None or SPARK not in machine.product
    )
    if elsewhere:
        notes.append(f"Not taken on a DGX Spark, so the difference says little: {elsewhere}.")
    return section_of("published", table, notes=notes)


def _rows(shown: ShownRun, field: Field) -> Iterator[Row]:
    for item in field.published:
        if item.recipe == shown.recipe:
            here = _here(shown, item)
            counted = FIGURES.get(item.figure, item.figure)
            cells = (
                figure(here),
                figure(item.mean),
                change(here / item.mean - 1) if here is not None else NOTHING,
                f"{item.method}; {item.hardware}; {item.source}",
            )
            yield f"{shown.name}: {item.recipe}, {counted} ({item.label})", cells


def _here(shown: ShownRun, item: Published) -> float | None:
    means = [
        cell.statistics[item.figure].mean
        for cell in shown.cells(item.suite)
        if cell.concurrency == 1
        and item.figure in cell.statistics
        and (not item.prompts or cell.prompt in item.prompts)
    ]
    # A class that is missing would make the mean one of something else.
    return sum(means) / len(means) if means and len(means) >= len(item.prompts) else None
