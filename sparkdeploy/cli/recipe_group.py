"""`recipe`: recipes of others, imported, or from sources pinned to a commit."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkdeploy.cli import options
from sparkdeploy.cli.names import completing, sources
from sparkdeploy.cli.options import answer
from sparkdeploy.errors import ChangesPendingError, RecipeError, SparkdeployError
from sparkdeploy.secret_shapes import masked_address
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.tables import Fill, TextColumn, TextTable, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.authoring.source.change import SourceChange
    from sparkdeploy.recipe.sources import Snapshot

group = typer.Typer(help="Recipes of others: import, sources.", no_args_is_help=True)
source_group = typer.Typer(
    help="Repositories of recipes, each pinned to a commit.", no_args_is_help=True
)
group.add_typer(source_group, name="source")
SourceName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The source's name.", autocompletion=completing(sources)),
]
SHORT_COMMIT = 12


@source_group.command("add")
def add(
    name: SourceName,
    origin: Annotated[str, typer.Argument(metavar="GIT_URL|PATH", help="Where it comes from.")],
    ref: Annotated[
        str | None, typer.Option("--at", metavar="REF", help="A branch, a tag or a commit.")
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Take a repository of recipes as it is now."""
    from sparkdeploy.authoring.source.change import add_source

    snapshot = add_source(name, origin, ref, options.current_settings())
    answer(_added_lines(snapshot), _as_dict(snapshot), as_json=as_json)


@source_group.command("update")
def update(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Sources; all when left out.")
    ] = None,
    yes: options.YesOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Fetch sources anew, and take what changed once you agree.

    Without a terminal and without --yes, changes that were not taken exit 9.
    """
    from sparkdeploy.authoring.source.change import update_all

    def agrees(change: SourceChange) -> bool:
        for line in _change_lines(change):
            console.info(line)
        return yes or console.confirm(f"Take {change.after.name} as it is now?")

    changes, failure = update_all(names or (), agrees, options.current_settings())
    content = [asdict(change) for change in changes]
    answer(_updated_lines(changes), content, as_json=as_json)
    if failure is not None:
        raise failure
    pending = [change.after.name for change in changes if change.state == "pending"]
    if pending and not console.can_ask:
        raise ChangesPendingError(
            f"changes were not taken: {', '.join(pending)}",
            hint=f"sparkdeploy recipe source update {' '.join(pending)} --yes",
        )


@source_group.command("ls")
def list_sources(as_json: options.JsonOption = False) -> None:
    """List the sources, with their commit and recipes."""
    from sparkdeploy.recipe.sources import Sources

    sources = Sources.below(options.current_settings().state_dir)
    found = list(sources.readable())
    answer([_listed(found)], [_as_dict(item) for item in found], as_json=as_json)


@source_group.command("rm")
def remove(name: SourceName) -> None:
    """Forget a source with its files; deployments go on running."""
    from sparkdeploy.authoring.source.change import remove_source

    remove_source(name, options.current_settings())
    console.info(f"removed source {name}")


@group.command("import")
def import_recipe(
    source: Annotated[
        Path,
        typer.Argument(help="A recipe of others (a file, or SOURCE/RECIPE), or a folder of them."),
    ],
    destination: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR|FILE.yaml", help="Write recipes of ours there."
        ),
    ] = None,
    assignments: options.SetOption = None,
    unsafe: options.UnsafeOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Translate recipes of others, and say what is left out. Each line with its reason.

    One file without -o is printed as a recipe of ours; the report goes to stderr.
    """
    from sparkdeploy.authoring.recipe_import import import_recipes

    values = options.overrides(assignments, unsafe=unsafe)
    found = import_recipes(source, destination, values, options.current_settings())
    only = found[0] if len(found) == 1 else None
    if as_json:
        console.answer_json({"schema": 1, "files": [item.as_dict() for item in found]})
    elif only is not None and destination is None and only.text is not None:
        for line in only.lines():
            console.info(line)
        console.answer(only.text.rstrip("\n"))
    else:
        answer((line for item in found for line in item.lines()), None, as_json=False)
        translated = sum(item.translation is not None for item in found)
        console.info(f"{translated} of {len(found)} files translated")
    if only is not None and only.refusal is not None:
        raise RecipeError(only.refusal)
    if not any(item.translation for item in found):
        raise RecipeError(f"{source} holds no recipe of others that could be read")
    refused = [item for item in found if item.translation is None]
    if refused:
        raise SparkdeployError(
            f"{len(refused)} of {len(found)} files were refused",
            hint="the lines above name each; the others were translated",
        )


def _added_lines(snapshot: Snapshot) -> Iterator[str]:
    record, usable = snapshot.record, snapshot.usable
    asking = sum(row.consents > 0 for row in usable)
    yield f"source {record.name} at {record.commit[:SHORT_COMMIT]}: {_recipes(len(usable))}"
    refused = len(snapshot.rows) - len(usable)
    if refused:
        yield f"  {refused} more not served here: for another server, or with mistakes"
    if asking:
        yield f"  {asking} of them need your consent (--allow-unsafe); `plan` says to what"
    if usable:
        # One that anybody may look at comes first.
        first = min(usable, key=lambda row: row.consents > 0)
        yield f"try: {shlex.join(['sparkdeploy', 'plan', f'{record.name}/{first.name}'])}"


def _recipes(count: int) -> str:
    return "1 recipe" if count == 1 else f"{count} recipes"


def _listed(found: list[Snapshot]) -> TextTable:
    rows = []
    for item in found:
        record, usable = item.record, len(item.usable)
        at = f" at {record.ref}" if record.ref else ""
        refused = f", {len(item.rows) - usable} not served here" if usable < len(item.rows) else ""
        commit, count = record.commit[:SHORT_COMMIT], f"{_recipes(usable)}{refused}"
        rows.append(row_of(record.name, commit, count, f"{masked_address(record.origin)}{at}"))
    words = TextColumn("", Fill.WORDS)
    return TextTable((TextColumn(), TextColumn(), words, words), tuple(rows), indent=2)


def _change_lines(change: SourceChange) -> Iterator[str]:
    before, after = change.before.commit[:SHORT_COMMIT], change.after.commit[:SHORT_COMMIT]
    yield f"source {change.after.name}: {before} -> {after}"
    yield from (f"  {line}" for line in change.lines)
    if not change.lines:
        yield "  no recipe, template or mod is another one"


def _updated_lines(changes: Sequence[SourceChange]) -> Iterator[str]:
    for change in changes:
        name, before = change.after.name, change.before.commit[:SHORT_COMMIT]
        yield {
            "up to date": f"{name} is up to date ({before})",
            "pending": f"{name} stays at {before}",
            "taken": f"{name} is at {change.after.commit[:SHORT_COMMIT]} now",
        }[change.state]
    if not changes:
        yield "there is no source that could be updated"


def _as_dict(snapshot: Snapshot) -> dict[str, Any]:
    record = {**asdict(snapshot.record), "origin": masked_address(snapshot.record.origin)}
    return {**record, "recipes": [asdict(row) for row in snapshot.rows]}
