"""What others published of the recipes, beside what was measured here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.report.shown import NOTHING
from sparkdeploy.bench.tables import change, figure
from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.bench.report.shown import ShownRun

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
class Field:
    published: tuple[Published, ...]
    others: tuple[Mapping[str, Any], ...]
    """Other set-ups for the 122B on one Spark: what, tok_s, method and source."""


def read_published(path: Path) -> Field:
    """Read the table; it is ours, so its shape is not questioned."""
    content = read_document(path).content
    published = tuple(_published(**entry) for entry in content["published"])
    return Field(published, tuple(content["others"]))


def _published(prompts: Mapping[str, float] | None = None, **entry: Any) -> Published:  # noqa: ANN401 - YAML
    prompts = prompts or {}
    mean = entry.pop("mean", None) or sum(prompts.values()) / len(prompts)
    return Published(**entry, prompts=prompts, mean=mean)


def beside_published(
    runs: Sequence[ShownRun], field: Field
) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield what, here, published, difference and source for each figure of these recipes."""
    for shown in runs:
        for item in (item for item in field.published if item.recipe == shown.recipe):
            here = _here(shown, item)
            counted = FIGURES.get(item.figure, item.figure)
            yield (
                f"{shown.name}: {item.recipe}, {counted} ({item.label})",
                figure(here),
                figure(item.mean),
                change(here / item.mean - 1) if here is not None else NOTHING,
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
    # A class that is missing would make the mean one of something else.
    return sum(means) / len(means) if means and len(means) >= len(item.prompts) else None
