"""`recipe import`: recipes of eugr's and sparkrun's formats, as ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkdeploy.cli import options, recipe_source
from sparkdeploy.cli.printing import answer
from sparkdeploy.errors import RecipeError
from sparkdeploy.terminal.console import console

group = typer.Typer(help="Recipes of others: import, search, sources.", no_args_is_help=True)
group.add_typer(recipe_source.group, name="source")
group.command("search", cls=options.FitsHereByDefault)(recipe_source.search_recipes)


@group.command("import")
def import_recipe(
    source: Annotated[
        Path,
        typer.Argument(help="A recipe of others (a file, or SOURCE/RECIPE), or a folder of them."),
    ],
    destination: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write recipes of ours into it."),
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
        console.info(_summary(len(found), sum(item.translation is not None for item in found)))
    if only is not None and only.refusal is not None:
        raise RecipeError(only.refusal)
    if not any(item.translation for item in found):
        raise RecipeError(f"{source} holds no recipe of others that could be read")


def _summary(count: int, translated: int) -> str:
    return f"{translated} of {count} files translated"
