"""Figures that others published, from the shipped table, each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


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
    """All of it."""

    published: tuple[Published, ...]
    others: tuple[Other, ...]

    def of(self, suite: str, recipes: set[str]) -> tuple[Published, ...]:
        """Return what stands beside a suite of runs of those recipes."""
        return tuple(
            item for item in self.published if item.suite == suite and item.recipe in recipes
        )


def read_published(path: Path) -> Field:
    """Read the table."""
    content = read_document(path).content
    return Field(
        tuple(_published(entry) for entry in content["published"]),
        tuple(Other(**entry) for entry in content["others"]),
    )


def _published(entry: Mapping[str, object]) -> Published:
    rest = {key: str(value) for key, value in entry.items() if key not in {"prompts", "mean"}}
    written = entry.get("prompts")
    prompts = {str(k): float(v) for k, v in written.items()} if isinstance(written, dict) else {}
    mean = entry.get("mean")
    return Published(
        **rest,
        prompts=prompts,
        mean=float(str(mean)) if mean is not None else sum(prompts.values()) / len(prompts),
    )
