"""What of a source is taken (recipes, templates beside them, folders of mods), and its index."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparkdeploy import yaml_text
from sparkdeploy.authoring.source.git import Blob, Repository
from sparkdeploy.errors import NoRecipeError, RecipeError
from sparkdeploy.recipe import mods
from sparkdeploy.recipe.load import Library, Loaded, look_into
from sparkdeploy.recipe.paths import MAX_TEMPLATE_BYTES
from sparkdeploy.recipe.sources import MAX_COUNT, RecipeRow, is_plain_path, stem
from sparkdeploy.recipe.words import shortest_ends, shown

RECIPE_SUFFIXES = (".yaml", ".yml")
TEMPLATE_SUFFIX = ".jinja"
MAX_FILES = 20_000
MAX_BYTES = 256 << 20
MAX_NAME_BYTES = 200
MAX_DEPTH = 16
MAX_RECIPES = 5_000
OUR_NAMES = ".sparkdeploy"
"""How files of ours in a source's folder begin: they say where it ends, and what was taken."""
_NAMES_IN_COMMANDS = re.compile(r"[\w.+@ /-]+")


@dataclass(slots=True)
class Taken:
    """What was written of a source, and how many things were left out, by the reason."""

    files: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def take_commit(repository: Repository, commit: str, into: Path) -> Taken:
    """Write what is wanted of a commit below a folder; RecipeError for more than the limits."""
    taken, wanted = _chosen(repository.blobs(commit))
    for blob, content in repository.contents(wanted):
        _write(into, blob, content)
    return taken


def _chosen(found: Iterable[Blob]) -> tuple[Taken, list[Blob]]:
    """Choose files by their names alone; count what is left out although it looked wanted."""
    taken, wanted, blobs = Taken(), [], {blob.path: blob for blob in found}
    mod_folders = {path.rpartition("/")[0] for path in blobs if path.endswith(f"/{mods.SCRIPT}")}
    for path, blob in blobs.items():
        in_mod = any(path[: slash.start()] in mod_folders for slash in re.finditer("/", path))
        limit_bytes = _limit_bytes(path, in_mod=in_mod)
        if limit_bytes is None:
            continue
        reason = _reason_against(path, blob, limit_bytes)
        if reason is None:
            wanted.append(blob)
        else:
            taken.left_out[reason] += 1
    size_bytes = sum(blob.size_bytes for blob in wanted)
    if len(wanted) > MAX_FILES or size_bytes > MAX_BYTES:
        raise RecipeError(
            f"the source has {len(wanted)} files of {size_bytes >> 20} MiB that would be taken, and"
            f" {MAX_FILES} files or {MAX_BYTES >> 20} MiB are the most",
            hint="a repository of recipes is smaller; is it the right one?",
        )
    taken.files += (blob.path for blob in wanted)
    return taken, wanted


def _limit_bytes(path: str, *, in_mod: bool) -> int | None:
    """Return how large a file of that name may be; None for one that nobody needs."""
    if in_mod:
        return mods.MAX_BYTES
    if path.endswith(RECIPE_SUFFIXES):
        return yaml_text.MAX_BYTES
    return MAX_TEMPLATE_BYTES if path.endswith(TEMPLATE_SUFFIX) else None


def _reason_against(path: str, blob: Blob, limit_bytes: int) -> str | None:
    if not blob.is_file:
        return "another repository (submodule)" if blob.mode == "160000" else "a link"
    if not is_plain_path(path):
        return "a name that leads elsewhere or cannot be shown"
    parts = path.split("/")
    is_deep = len(parts) > MAX_DEPTH
    if is_deep or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        return "a name that is too long"
    if any(part.lower().startswith(OUR_NAMES) for part in parts):
        return "a name of ours"
    # A recipe's name is printed in commands, for people to copy.
    is_typed = path.endswith((*RECIPE_SUFFIXES, TEMPLATE_SUFFIX))
    if is_typed and (_NAMES_IN_COMMANDS.fullmatch(path) is None or "/-" in f"/{path}"):
        return "a name with signs that a shell may obey"
    return "too large" if blob.size_bytes > limit_bytes else None


def _write(into: Path, blob: Blob, content: bytes) -> None:
    """Write into a folder that was made for it: a name that is there is another's doing."""
    path = into / blob.path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("xb") as file:
        file.write(content)
    path.chmod(0o700 if blob.mode == "100755" else 0o600)


def rows_of(folder: Path, files: Sequence[str], recipe_library: Library) -> Iterator[RecipeRow]:
    """Yield a row for each recipe; RecipeError for more of them than a source may have."""
    recipes: dict[str, Loaded | RecipeError] = {}
    for file in sorted(file for file in files if file.endswith(RECIPE_SUFFIXES)):
        found = _looked_into(recipe_library, folder / file)
        # Workflows, settings and lists of other tools end in .yaml as well.
        if not isinstance(found, NoRecipeError):
            recipes[file] = found
        if len(recipes) > MAX_RECIPES:
            raise RecipeError(f"the source holds more than {MAX_RECIPES} recipes")
    names = shortest_ends([stem(file) for file in recipes])
    for (file, found), name in zip(recipes.items(), names, strict=True):
        yield _row(name, file, found)


def own_rows(recipe_library: Library) -> Iterator[RecipeRow]:
    for name, path in sorted(recipe_library.recipe_files().items()):
        yield _row(name, path.name, _looked_into(recipe_library, path))


def _looked_into(recipe_library: Library, path: Path) -> Loaded | RecipeError:
    try:
        return look_into(recipe_library, str(path))
    except RecipeError as error:
        return error


def _row(name: str, file: str, found: Loaded | RecipeError) -> RecipeRow:
    if isinstance(found, RecipeError) or found.recipe is None:
        lines = () if isinstance(found, RecipeError) else found.lines(found.mistakes)
        why = found.message if isinstance(found, RecipeError) else [*lines, "it cannot be read"][0]
        return RecipeRow(name, file, "", "", "", "", "", 1, None, 0, _relative(why))
    recipe, limits, drafting = found.recipe, found.recipe.cluster, found.recipe.serve.speculative
    mistakes = found.lines(found.mistakes)
    return RecipeRow(
        name=name,
        file=file,
        title=one_line(recipe.title),
        model=one_line(recipe.model.source),
        engine=one_line(recipe.engine),
        image=one_line(recipe.image or ""),
        drafts=one_line(f"{drafting.method or 'draft'} {drafting.tokens}") if drafting else "",
        min_nodes=min(limits.least_nodes, MAX_COUNT),
        max_nodes=min(limits.max_nodes, MAX_COUNT) if limits.max_nodes is not None else None,
        consents=len(found.consents),
        refusal=_relative(mistakes[0]) if mistakes else "",
    )


def one_line(text: str) -> str:
    """Return a text of a stranger for an index: on one line, short, without control signs."""
    return shown(" ".join(text.split()))


def _relative(line: str) -> str:
    """Return a line of a report without the folder that its file lies in."""
    file, colon, rest = line.partition(": ")
    return shown(f"{Path(file).name}{colon}{rest}" if colon and "/" in file else line)
