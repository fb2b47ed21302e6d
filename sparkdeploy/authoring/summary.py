"""`plan --hardware` on one screen: whether it fits, how fast, how long it takes, what it sets."""

from collections.abc import Iterator
from typing import Any

from sparkdeploy.authoring.outlook import Outlook
from sparkdeploy.checks.report import finding_lines
from sparkdeploy.estimate.report import memory_table
from sparkdeploy.plan.report import backend_lines, fork_lines
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.server.phases import start_words
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.style import line_of
from sparkdeploy.terminal.tables import Block, Fill, TextColumn, TextTable, row_of
from sparkdeploy.units import format_bytes, format_gib

WITHOUT_EFFECT = {
    *("schema", "name", "title", "source", "preview", "extends", "expect", "notes"),
    *("engine", "model", "least_vllm", "allow_unsafe", "allow_known_bad"),
}
"""What of a recipe says who wrote it, or is said elsewhere."""
LONGEST_SETTING = 76
"""A line of eighty columns has its indent and a comma besides."""
MOST_CHARACTERS = 400
"""Five lines of a terminal."""


def summary_lines(outlook: Outlook, settings: Settings) -> Iterator[Block]:
    """Yield at most forty lines of eighty columns."""
    recipe, budget = outlook.resolved.recipe, outlook.budget
    yield line_of(outlook.verdict_piece())
    yield from finding_lines((*outlook.problems, *outlook.warnings))
    yield f"{recipe.name}: {recipe.title}"
    yield from fork_lines(outlook.resolved)
    yield from outlook.division_lines()
    yield f"memory of {budget.hardware.title}: {format_gib(budget.hardware.memory_bytes)}"
    yield memory_table(budget, format_bytes(outlook.facts.total_bytes))
    if budget.layout is None:
        yield f"KV cache: {f'not known: {budget.unknown}' if budget.unknown else 'none is kept'}"
    else:
        columns = (TextColumn("context", Fill.FIGURE), TextColumn("requests at once", Fill.FIGURE))
        rows = (row_of(f"{it.context_tokens:,}", f"{it.concurrency:.1f}") for it in budget.rows())
        yield TextTable(columns, tuple(rows), 4)
    if (reported := outlook.reported_line()) is not None:
        yield reported
    yield from outlook.conversion_lines()
    if outlook.plan is not None:
        yield from backend_lines(outlook.plan)
        size = outlook.plan.head.needs.download_bytes
        fetch = "unknown" if size is None else format_bytes(size)
        start = start_words(outlook.plan, settings.state_dir)
        yield f"start: {'' if size == 0 else f'{fetch} to download; '}{start}"
    yield f"it sets: {_set_values(recipe)}"
    yield "-v shows weights, reserves and the bytes of a step, each with its source"


def _set_values(recipe: Recipe) -> str:
    """Return what a recipe sets in the place of vLLM's own choice, as `--set` would."""
    values = recipe.model_dump(by_alias=True, mode="json", exclude_defaults=True)
    leaves = _leaves({k: v for k, v in values.items() if k not in WITHOUT_EFFECT})
    settings = [f"{path}={value}" for path, value in leaves]
    # What is cut in its middle says nothing: a longer one is counted with the rest.
    found = [it for it in settings if len(it) <= LONGEST_SETTING]
    long = len(settings) - len(found)
    kept: list[str] = []
    while found and sum(map(len, kept)) + 2 * len(kept) + len(found[0]) < MOST_CHARACTERS:
        kept.append(found.pop(0))
    left = len(found) + long
    rest = f", and {left} more: sparkdeploy show {recipe.name}" if left else ""
    return (", ".join(kept) or "nothing but the model") + rest


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any JSON
    if isinstance(value, dict) and value and path != "serve.env":
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif path == "serve.env":
        yield path, ",".join(value)  # any of them may be a secret
    else:
        yield path, str(value).lower() if isinstance(value, bool) else str(value)
