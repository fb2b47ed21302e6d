"""Which recipes fit a machine, for `list` and for what is searched."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from sparkdeploy.authoring.model_facts import WhenMissing
from sparkdeploy.authoring.outlook import Ground
from sparkdeploy.errors import RecipeError, SparkdeployError
from sparkdeploy.estimate.hardware import HERE, facts_folder, hardware_named, read_hardware
from sparkdeploy.estimate.verdict import Fits
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.report import FIT_INKS
from sparkdeploy.terminal.style import Piece, Style
from sparkdeploy.terminal.tables import Block, Fill, TextColumn, TextRow, TextTable, row_of

BROKEN = "broken"


def fitting_rows(
    ground: Ground, recipes: Mapping[str, Resolved | RecipeError]
) -> list[dict[str, object]]:
    return [
        fitting_row(ground, item)
        if isinstance(item, Resolved)
        else {"recipe": name, "fits": BROKEN, "machines": 1, "reason": item.in_one_line}
        for name, item in recipes.items()
    ]


def fitting_row(ground: Ground, resolved: Resolved) -> dict[str, object]:
    name, least = resolved.recipe.name, resolved.recipe.cluster.least_nodes
    try:
        # A recipe for several machines is judged by one machine's share.
        outlook = ground.outlook(resolved, WhenMissing.NOBODY, cluster=least > 1)
    except SparkdeployError as error:
        unknown = {"recipe": name, "fits": Fits.UNKNOWN.value, "machines": least}
        return {**unknown, "reason": error.message}
    verdict = {**asdict(outlook.verdict), "fits": outlook.verdict.fits.value}
    words = {"line": outlook.verdict_line(), "words": outlook.verdict_words()}
    return {"recipe": name, **verdict, "machines": outlook.nodes, **words}


def fit_words(rows: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """Return one word for each recipe: `fits`, `on 2` for machines together, `no`, or `?`."""
    return {str(row["recipe"]): _fit_word(row) for row in rows}


def _fit_word(row: Mapping[str, object]) -> str:
    words = {Fits.YES.value: "fits", Fits.NO.value: "no", BROKEN: BROKEN}
    word = words.get(str(row["fits"]), "?")
    return f"on {row['machines']}" if word == "fits" and row["machines"] != 1 else word


def fitting_lines(rows: Sequence[Mapping[str, object]], hardware: str) -> Iterator[Block]:
    """Yield a row a recipe under the machine's name; `hardware` as it was asked for."""
    title = "this machine"
    if hardware != HERE:
        title = hardware_named(hardware, read_hardware(facts_folder() / "hardware.yaml")).title
    yield f"on {title} (? may fit: what is not known is told; on 2: two of them)"
    columns = (TextColumn(), TextColumn(), TextColumn("", Fill.WORDS))
    yield TextTable(columns, tuple(map(_fitting_row, rows)), indent=2)


def _fitting_row(row: Mapping[str, object]) -> TextRow:
    word = _fit_word(row)
    verdict = Piece(word, FIT_INKS.get(word.split()[0], Style.CAUTION))
    return row_of(str(row["recipe"]), verdict, str(row.get("words") or row["reason"]))
