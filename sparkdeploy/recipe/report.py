"""Recipes in words: the table of all, and one with the origin of every value."""

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.document import KeyPath
from sparkdeploy.recipe.load import Library, Resolved, load_engine
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.recipe.words import shortest_ends
from sparkdeploy.terminal.style import Line, Piece, Style, line_of
from sparkdeploy.terminal.tables import Block, Fill, TextColumn, TextRow, TextTable, row_of

FIT_INKS = {"fits": Style.GOOD, "on": Style.GOOD, "no": Style.QUIET, "broken": Style.BAD}
"""Of the first word of what a recipe's verdict is."""
LEFT_OUT = "(left out)"
BESIDE_DRAFTS = "it drafts: vLLM refuses requests with min_p or logit_bias (HTTP 400)"
"""`SamplingParams._validate_spec_decode`, the same in 0.25.1 and 0.32.0."""
SHORT_TITLE = 43
"""Beside the longest name and a figure it leaves a line of eighty columns whole."""
LEFT = {"no": "do not fit", "?": "may fit"}
ANY_RELEASE = "any"
"""Of an engine that stands for every image."""
_FORMAT = re.compile(
    r"[-_.](?=(?:int[48]|w[48]a\d+|fp8|nvfp4|mxfp4|awq|gptq|autoround|bf16|it|instruct)\b)",
    re.IGNORECASE,
)
"""Where a repository's name turns to the format of its weights."""


def recipe_rows(
    loaded: Mapping[str, Resolved | RecipeError], library: Library
) -> Iterator[dict[str, Any]]:
    """Yield a row for each recipe."""
    own, shipped = library.own_names(), replace(library, folders=library.folders[-1:])
    replaced = own & shipped.recipe_files().keys()
    for name, found in loaded.items():
        if isinstance(found, RecipeError):
            yield {"name": name, "error": found.in_one_line}
            continue
        recipe, expect = found.recipe, found.recipe.expect
        yield {
            "name": name,
            "title": recipe.title,
            "model": model_name(recipe.model.known_as),
            "engine": recipe.engine,
            "min_nodes": recipe.cluster.least_nodes,
            "preview": recipe.preview,
            "least_vllm": recipe.least_vllm,
            "reported_tok_s": expect.tok_s if expect else None,
            "reported_figure": expect.figure if expect else None,
            "source": expect.source if expect else recipe.source,
            "is_own": name in own,
            "replaces_shipped": name in replaced,
        }


def model_name(known_as: str) -> str:
    """Return what a repository's quantised copies have in common: the name before their format."""
    short = known_as.rstrip("/").rpartition("/")[2]
    return _FORMAT.split(short, maxsplit=1)[0] or short


def engine_rows(library: Library) -> Iterator[dict[str, Any]]:
    for name in sorted(library.engine_files()):
        try:
            engine = load_engine(library, name)
        except RecipeError as error:
            yield {"name": name, "error": error.in_one_line}
            continue
        values = engine.model_dump(include={"name", "title", "kind", "vllm"})
        # Until an image is named its release is only what flags are held against.
        is_any = engine.kind == "image" and engine.image is None
        yield {**values, "vllm": ANY_RELEASE} if is_any else values


def short_lines(
    recipes: list[dict[str, Any]], fits: Mapping[str, str], default: str, where: str
) -> Iterator[Block]:
    """Yield a line for each recipe that fits, and for one's own, by model; the rest is counted."""
    yield f"recipes that fit {where} (* is the default; tok/s are others', ~ without prefill)"
    readable = sorted(
        (row for row in recipes if "error" not in row),
        key=lambda row: (row["model"].lower(), row["name"]),
    )
    rows, left = [], Counter[str]()
    for row in readable:
        name, word = row["name"], fits.get(row["name"], "?")
        if word == "fits" or row["is_own"] or name == default:
            marks = f"{'yours: ' * row['is_own']}{'' if word == 'fits' else f'({word}) '}"
            title = textwrap.shorten(f"{marks}{row['title']}", SHORT_TITLE, placeholder=" ...")
            rows.append(row_of(_marked(name, default), _figure(row), title))
        else:
            left[word] += 1
    yield TextTable((TextColumn(), TextColumn("", Fill.FIGURE), TextColumn()), tuple(rows), 2)
    yield from _broken_lines(recipes)
    words = (f"{count} {LEFT.get(word, 'need several')}" for word, count in left.items())
    yield f"further: {', '.join((*words, 'engines'))}; `sparkdeploy list --all` has them"


def list_lines(
    recipes: list[dict[str, Any]],
    engines: list[dict[str, Any]],
    fits: Mapping[str, str],
    default: str,
    where: str = "here",
) -> Iterator[Block]:
    """Yield recipes by model, then engines; `fits` says of each recipe whether it fits."""
    yield (
        f"recipes (* is the default; fits: {where}, on 2: on two like it, ? is not known; "
        "tok/s are others', ~ without prefill)"
    )
    rows: list[TextRow | Line] = []
    by_model: dict[str, list[dict[str, Any]]] = {}
    for row in (row for row in recipes if "error" not in row):
        by_model.setdefault(row["model"], []).append(row)
    for model in sorted(by_model, key=str.lower):
        rows.append(line_of(Piece(model, Style.STRONG)))
        rows += (_recipe_row(row, fits.get(row["name"], "?"), default) for row in by_model[model])
    yield TextTable(
        (TextColumn(), TextColumn(), TextColumn("", Fill.FIGURE), TextColumn("", Fill.WORDS)),
        tuple(rows),
        indent=2,
    )
    yield from _broken_lines(recipes)
    yield line_of(Piece("engines:", Style.STRONG))
    engine_rows = (
        row_of(row["name"], row["vllm"], row["title"]) for row in engines if "error" not in row
    )
    columns = (TextColumn(), TextColumn(), TextColumn("", Fill.WORDS))
    yield TextTable(columns, tuple(engine_rows), indent=4)
    yield from _broken_lines(engines)


def _marked(name: str, default: str) -> Piece:
    mark, ink = ("*", Style.STRONG) if name == default else (" ", Style.PLAIN)
    return Piece(f"{mark} {name}", ink)


def _figure(row: Mapping[str, Any]) -> str:
    sign = "~" if row["reported_figure"] == "decode" else ""
    return f"{sign}{row['reported_tok_s']:g}" if row["reported_tok_s"] else "-"


def _recipe_row(row: Mapping[str, Any], fits: str, default: str) -> TextRow:
    verdict = Piece(fits, FIT_INKS.get(fits.split(maxsplit=1)[0], Style.CAUTION))
    title = f"{row['title']}{' (needs a fork: `plan` names it)' if row['preview'] else ''}"
    title += " (yours, instead of the shipped one)" if row["replaces_shipped"] else ""
    return row_of(_marked(row["name"], default), verdict, _figure(row), title)


def _broken_lines(rows: list[dict[str, Any]]) -> Iterator[Line]:
    for row in (row for row in rows if "error" in row):
        yield line_of("  ", Piece(f"broken: {row['error']}", Style.BAD))


def origin_lines(resolved: Resolved) -> Iterator[Block]:
    """Yield `path: value  # where it was written` for every value; the folders stand at the end."""
    content = resolved.recipe.model_dump(by_alias=True)
    files = list({str(it.file) for it in resolved.origins.values() if it.line is not None})
    names = dict(zip(files, shortest_ends(files), strict=True))
    rows = []
    for path, value in _leaves(content, ()):
        origin = resolved.origins.get(path)
        if origin is not None and origin.line is not None:
            origin = replace(origin, file=names[str(origin.file)])
        text = f"{'.'.join(map(str, path))}: {json.dumps(value)}"
        rows.append(row_of(text, Piece(f"# {origin or 'default'}", Style.QUIET)))
    yield TextTable((TextColumn("", Fill.WORDS), TextColumn()), tuple(rows))
    if resolved.recipe.serve.speculative is not None:
        yield line_of(Piece(f"# {BESIDE_DRAFTS}", Style.QUIET))
    yield from _folder_lines(names)
    if resolved.translation is not None:
        yield from resolved.translation.short_lines()


def _folder_lines(names: Mapping[str, str]) -> Iterator[Line]:
    """Yield each folder once, with what lies in it."""
    by_folder: dict[str, list[str]] = {}
    for file, name in sorted(names.items(), key=lambda item: item[1]):
        if name != file:
            by_folder.setdefault(file.removesuffix(f"/{name}") or "/", []).append(name)
    for folder, found in by_folder.items():
        lie = "lies" if len(found) == 1 else "lie"
        yield line_of(Piece(f"# {', '.join(found)} {lie} in {folder}", Style.QUIET))


def values_to_show(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe's values as JSON has them, for what others can read.

    Any variable of `serve.env` may be a secret, whatever it is called: their names stay alone.
    """
    values = recipe.model_dump(by_alias=True, mode="json")
    values["serve"]["env"] = dict.fromkeys(recipe.serve.env, LEFT_OUT)
    return values


def _leaves(value: Any, prefix: KeyPath) -> Iterator[tuple[KeyPath, Any]]:  # noqa: ANN401 - any
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*prefix, str(key)))
    else:
        yield prefix, value
