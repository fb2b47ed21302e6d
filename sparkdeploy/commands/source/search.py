"""`recipe search`: recipes by words, among the shipped ones, one's own and those of sources."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.recipe.sources.shelf import Sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.recipe.sources.shelf import RecipeRow
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Hit:
    """One recipe that was found, and what it is called on the command line."""

    called: str
    row: RecipeRow
    fits: str | None = None
    """What `--fits` says of it; None where nobody asked."""

    def line(self) -> str:
        row = self.row
        nodes = f", {row.min_nodes} nodes" if row.min_nodes > 1 else ""
        drafts = f", {row.drafts}" if row.drafts else ""
        told = row.refusal or f"{row.model}{drafts}{nodes}, {row.image or row.engine}"
        fits = f"{self.fits}  " if self.fits is not None else ""
        return f"  {self.called:<44} {fits}{told}"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self.row), "name": self.called, "fits": self.fits}


def search(words: Sequence[str], nodes: int | None, settings: Settings) -> Iterator[Hit]:
    """Yield the recipes of every source that hold all words and can be served by that many nodes.

    What is refused is found by its file's name alone.
    """
    sources = Sources.below(settings.state_dir)
    for name in sources.names():
        for row in sources.get(name).rows:
            if row.holds(words) and _serves(row, nodes):
                yield Hit(f"{name}/{row.name}", row)


def _serves(row: RecipeRow, nodes: int | None) -> bool:
    if nodes is None:
        return True
    return row.min_nodes <= nodes <= (row.max_nodes or max(nodes, row.min_nodes))
