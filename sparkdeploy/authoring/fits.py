"""Which recipes fit a machine, a line each: `list`, `list --fits` and `recipe search --fits`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from sparkdeploy.authoring.machine import HERE
from sparkdeploy.authoring.outlook import WhenMissing, facts_folder, ground_for
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.estimate.hardware import hardware_named, read_hardware
from sparkdeploy.estimate.verdict import Fits
from sparkdeploy.recipe.report import FIT_INKS
from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.style import Piece, Style
from sparkdeploy.terminal.tables import Fill, TextColumn, TextTable, row_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.authoring.outlook import Ground
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.terminal.tables import Block, TextRow


def fitting_rows(hardware: str) -> list[dict[str, object]]:
    """Return every recipe's verdict on a machine; a model that nobody knows is one too."""
    ground = ground_for(hardware, load_settings())
    return [fitting_row(ground, item) for _, item in sorted(ground.recipes.items())]


def fitting_row(ground: Ground, resolved: Resolved) -> dict[str, object]:
    name = resolved.recipe.name
    try:
        # A recipe for several machines is judged by one machine's share.
        is_cluster = resolved.recipe.cluster.least_nodes > 1
        outlook = ground.outlook(resolved, WhenMissing.NOBODY, cluster=is_cluster)
    except SparkdeployError as error:
        least = resolved.recipe.cluster.least_nodes
        unknown = {"recipe": name, "fits": Fits.UNKNOWN.value, "machines": least}
        return {**unknown, "reason": error.message}
    verdict = {**asdict(outlook.verdict), "fits": outlook.verdict.fits.value}
    told = {"line": outlook.verdict_line(), "words": outlook.verdict_words()}
    return {"recipe": name, **verdict, "machines": outlook.nodes, **told}


def fit_words(rows: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """Return one word for each recipe: `fits`, `on 2` for machines together, `no`, or `?`."""
    return {str(row["recipe"]): _fit_word(row) for row in rows}


def _fit_word(row: Mapping[str, object]) -> str:
    words = {Fits.YES.value: "fits", Fits.NO.value: "no"}
    word = words.get(str(row["fits"]), "?")
    return f"on {row['machines']}" if word == "fits" and row["machines"] != 1 else word


def fitting_lines(rows: Sequence[Mapping[str, object]], hardware: str) -> Iterator[Block]:
    """Yield a row a recipe under the machine's name; `hardware` as it was asked for."""
    yield f"on {_title_of(hardware)} (? may fit: what is not known is told; on 2: two of them)"
    columns = (TextColumn(), TextColumn(), TextColumn("", Fill.WORDS))
    yield TextTable(columns, tuple(map(_fitting_row, rows)), indent=2)


def _fitting_row(row: Mapping[str, object]) -> TextRow:
    word = _fit_word(row)
    verdict = Piece(word, FIT_INKS.get(word.split()[0], Style.CAUTION))
    return row_of(str(row["recipe"]), verdict, str(row.get("words") or row["reason"]))


def _title_of(hardware: str) -> str:
    if hardware == HERE:
        return "this machine"
    return hardware_named(hardware, read_hardware(facts_folder() / "hardware.yaml")).title
