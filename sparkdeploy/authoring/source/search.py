"""`list WORD`: recipes by words, among the shipped ones, one's own and those of sources."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sparkdeploy.authoring.source import files
from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.load import library, load_recipe
from sparkdeploy.recipe.sources import RecipeRow, Sources
from sparkdeploy.settings import Settings, load_settings
from sparkdeploy.terminal.style import Piece, Style, line_of
from sparkdeploy.terminal.tables import Fill, TextColumn, TextRow, TextTable, row_of

CONSENT_SIGN = "!"
"""Before a recipe of which something needs consent."""


@dataclass(frozen=True, slots=True)
class Hit:
    called: str
    row: RecipeRow
    path: Path | None = None
    fits: str | None = None
    """What `--fits` says of it; None where nobody asked."""

    def shown(self, *, names_machines: bool) -> TextRow:
        row = self.row
        parts = [row.model, row.drafts, _machines(row, always=names_machines)]
        text = row.refusal or ", ".join([*filter(None, parts), row.image or row.engine])
        sign = Piece(CONSENT_SIGN if row.consents else " ", Style.CAUTION)
        ink = Style.BAD if row.refusal else Style.PLAIN
        return row_of(line_of(sign, f" {self.called}"), self.fits or "", Piece(text, ink))

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self.row), "name": self.called, "fits": self.fits}


def table_of(hits: Iterable[Hit], *, names_machines: bool) -> TextTable:
    columns = (TextColumn(), TextColumn(), TextColumn("", Fill.WORDS))
    return TextTable(columns, tuple(hit.shown(names_machines=names_machines) for hit in hits))


def search(words: Sequence[str], nodes: int | None, settings: Settings) -> Iterator[Hit]:
    """Yield the recipes that hold all words and can be served by so many nodes, one's own first."""
    for row in files.own_rows(library(settings)):
        if row.holds(words) and _serves(row, nodes):
            yield Hit(row.name, row)
    sources = Sources.below(settings.state_dir)
    for found in sources.readable():
        name = found.record.name
        folder = sources.files_of(name)
        for row in found.rows:
            if row.holds(words) and _serves(row, nodes):
                yield Hit(f"{name}/{row.name}", row, folder / row.file)


def _machines(row: RecipeRow, *, always: bool) -> str:
    """Say how many machines serve a recipe, where it is not one or more."""
    least, most = row.min_nodes, row.max_nodes
    if most is None:
        return f"{least} or more machines" if least > 1 or always else ""
    if least == most:
        return "1 machine" if least == 1 else f"{least} machines"
    return f"{least} to {most} machines"


def _serves(row: RecipeRow, nodes: int | None) -> bool:
    if nodes is None:
        return True
    return row.min_nodes <= nodes <= (row.max_nodes or max(nodes, row.min_nodes))


def with_fits(hits: Iterable[Hit], hardware: str) -> Iterator[Hit]:
    """Yield those that fit, and those of which nobody knows, which say so; no hub is asked."""
    # A search without it is there sooner.
    from sparkdeploy.authoring.fits import fitting_row  # noqa: PLC0415
    from sparkdeploy.authoring.outlook import ground_for  # noqa: PLC0415

    ground = ground_for(hardware, load_settings())
    for hit in hits:
        if hit.row.refusal:
            continue
        fits: object = "may fit"
        with contextlib.suppress(RecipeError):
            wanted = hit.called if hit.path is None else str(hit.path)
            # Nothing is run: what needs consent is looked at like the rest.
            found = load_recipe(ground.recipe_library, wanted, unasked=True)
            fits = fitting_row(ground, found)["fits"]
        if fits != "does not fit":
            yield replace(hit, fits="fits" if fits == "fits" else "unknown")
