"""`recipe source` and `recipe search`: repositories of recipes, pinned to a commit."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkdeploy.cli.options import JsonOption, YesOption, current_settings
from sparkdeploy.cli.printing import answer
from sparkdeploy.console import console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.commands.source.change import SourceChange
    from sparkdeploy.recipe.sources.shelf import Snapshot

group = typer.Typer(help="Repositories of recipes, each pinned to a commit.", no_args_is_help=True)
SourceName = Annotated[str, typer.Argument(metavar="NAME", help="The source's name.")]
SHORT_COMMIT = 12


@group.command("add")
def add(
    name: SourceName,
    origin: Annotated[str, typer.Argument(metavar="GIT_URL|PATH", help="Where it comes from.")],
    ref: Annotated[
        str | None, typer.Option("--at", metavar="REF", help="A branch, a tag or a commit.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Take a repository of recipes, or a folder of them, as it is now."""
    from sparkdeploy.commands.source.change import add_source

    snapshot = add_source(name, origin, ref, current_settings())
    answer(_added_lines(snapshot), _as_dict(snapshot), as_json=as_json)


@group.command("update")
def update(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Sources; all when left out.")
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch sources anew; show what would change, and take it once you agree."""
    from sparkdeploy.commands.source.change import update_all

    def agrees(change: SourceChange) -> bool:
        for line in _change_lines(change):
            console.info(line)
        if yes or console.confirm(f"Take {change.after.name} as it is now?"):
            return True
        stays = change.before.commit[:SHORT_COMMIT]
        console.info(f"{change.after.name} stays at {stays}; --yes takes it")
        return False

    changes = update_all(names or (), agrees, current_settings())
    answer(_taken_lines(changes), [asdict(change) for change in changes], as_json=as_json)


@group.command("ls")
def list_sources(as_json: JsonOption = False) -> None:
    """List the sources: where each comes from, which commit, and how many recipes it has."""
    from sparkdeploy.recipe.sources.shelf import Sources

    sources = Sources.below(current_settings().state_dir)
    found = [sources.get(name) for name in sources.names()]
    answer(_listed_lines(found), [_as_dict(item) for item in found], as_json=as_json)


@group.command("rm")
def remove(name: SourceName) -> None:
    """Forget a source with all its files; deployments of its recipes go on running."""
    from sparkdeploy.commands.source.change import remove_source

    remove_source(name, current_settings())
    console.info(f"removed source {name}")


def search_recipes(
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="All have to be in it.")],
    fits: Annotated[
        str | None,
        typer.Option(
            "--fits",
            metavar="HARDWARE",
            help="What fits on: spark, h100, h200; this machine without.",
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, metavar="N", help="For that many machines.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find recipes by words in their name, title, model or drafter: ours, yours and of sources."""
    from sparkdeploy.commands.source.search import search

    hits = search(words, nodes, current_settings())
    if fits is not None:
        from sparkdeploy.commands.source.fitting import with_fits

        hits = with_fits(hits, fits)
    found = list(hits)
    answer((hit.line() for hit in found), [hit.as_dict() for hit in found], as_json=as_json)
    console.info(f"{len(found)} recipes; `sparkdeploy plan NAME` says what each needs")


def _added_lines(snapshot: Snapshot) -> Iterator[str]:
    record = snapshot.record
    usable = [row for row in snapshot.rows if not row.refusal]
    asking = sum(row.consents > 0 for row in usable)
    yield f"source {record.name} at {record.commit[:SHORT_COMMIT]}: {len(usable)} recipes"
    refused = len(snapshot.rows) - len(usable)
    if refused:
        yield f"  {refused} more are for another server, or hold mistakes"
    yield f"  {asking} need your consent (--allow-unsafe); `plan NAME/RECIPE` says to what"
    if usable:
        yield f"try: sparkdeploy plan {record.name}/{usable[0].name}"


def _listed_lines(found: list[Snapshot]) -> Iterator[str]:
    for item in found:
        record = item.record
        at = f" at {record.ref}" if record.ref else ""
        commit = record.commit[:SHORT_COMMIT]
        yield f"  {record.name:<14} {commit}  {len(item.rows):>4} recipes  {record.origin}{at}"


def _change_lines(change: SourceChange) -> Iterator[str]:
    before, after = change.before.commit[:SHORT_COMMIT], change.after.commit[:SHORT_COMMIT]
    yield f"source {change.after.name}: {before} -> {after}"
    yield from (f"  {line}" for line in change.lines)
    if not change.lines:
        yield "  no recipe, template or mod is another one"


def _taken_lines(changes: list[SourceChange]) -> Iterator[str]:
    for change in changes:
        yield f"source {change.after.name} is at {change.after.commit[:SHORT_COMMIT]} now"
    if not changes:
        yield "nothing was taken"


def _as_dict(snapshot: Snapshot) -> dict[str, Any]:
    return {**asdict(snapshot.record), "recipes": [asdict(row) for row in snapshot.rows]}
