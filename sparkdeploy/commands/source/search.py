"""`recipe search`: recipes by words, among the shipped ones, one's own and those of sources."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.recipe.library import Library, read_unchecked, recipe_folders
from sparkdeploy.recipe.sources.shelf import RecipeRow, Sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    """Yield the recipes that hold all words and can be served by that many nodes.

    One's own and the shipped ones come first. What is refused is found by its file's name alone.
    """
    for row in _own_rows(settings):
        if row.holds(words) and _serves(row, nodes):
            yield Hit(row.name, row)
    sources = Sources.below(settings.state_dir)
    for name in sources.names():
        for row in sources.get(name).rows:
            if row.holds(words) and _serves(row, nodes):
                yield Hit(f"{name}/{row.name}", row)


def _own_rows(settings: Settings) -> Iterator[RecipeRow]:
    for name, path, content in read_unchecked(Library(recipe_folders(settings))):
        yield _row(name, path.name, content)


def _row(name: str, file: str, content: Mapping[str, Any]) -> RecipeRow:
    """A recipe that nobody held against the format yet may hold anything."""
    model, cluster = _part(content, "model"), _part(content, "cluster")
    drafting = _part(_part(content, "serve"), "speculative")
    nodes = [cluster.get(key) for key in ("min_nodes", "max_nodes")]
    least, most = (number if isinstance(number, int) else None for number in nodes)
    return RecipeRow(
        name=name,
        file=file,
        title=str(content.get("title", "")),
        model=str(model.get("repo") or model.get("path", "")),
        engine=str(content.get("engine", "")),
        image=str(content.get("image", "")),
        drafts=f"{drafting.get('method', 'draft')} {drafting.get('tokens', '')}"
        if drafting
        else "",
        min_nodes=least or 1,
        max_nodes=most,
        consents=0,
        refusal="",
    )


def _part(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = content.get(key)
    return part if isinstance(part, dict) else {}


def _serves(row: RecipeRow, nodes: int | None) -> bool:
    if nodes is None:
        return True
    return row.min_nodes <= nodes <= (row.max_nodes or max(nodes, row.min_nodes))
