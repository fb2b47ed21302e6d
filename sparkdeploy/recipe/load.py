"""Load recipes and engines, hold them against the rules, and report all mistakes at once."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sparkdeploy.errors import ConsentNeededError, Mistakes, NoRecipeError, RecipeError
from sparkdeploy.recipe import rules
from sparkdeploy.recipe.arguments import argument_mistakes, package_mistakes
from sparkdeploy.recipe.consent import (
    asked,
    consent_hint,
    digest,
    judged_mods,
    of_the_node,
    self_consents,
    template_hash,
)
from sparkdeploy.recipe.document import (
    Document,
    KeyPath,
    ValueOrigin,
    is_foreign,
    is_stack,
    read_document,
    with_setting,
    written_part,
)
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.image_name import stated_release
from sparkdeploy.recipe.image_pins import pinned_engine
from sparkdeploy.recipe.library import (
    Library,
    known_file,
    library,
    locate,
    recipe_folders,
    resolve_inheritance,
)
from sparkdeploy.recipe.mods import FoundMod, find_mods
from sparkdeploy.recipe.paths import anchored
from sparkdeploy.recipe.rules import Mistake
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.recipe.validate import validated
from sparkdeploy.recipe.words import closest, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence, Sized

    from sparkdeploy.recipe.foreign.report import Translation

__all__ = [
    "Library",
    "Loaded",
    "Resolved",
    "error_of",
    "library",
    "load_all",
    "load_engine",
    "load_recipe",
    "look_into",
    "recipe_folders",
]
T = TypeVar("T", Recipe, Engine)
MAX_LISTED = 100
OUR_SIGNS = frozenset({"schema", "extends", "engine", "model", "serve"})
"""Keys that our own recipes have, one at least."""


@dataclass(frozen=True, slots=True)
class Resolved:
    recipe: Recipe
    engine: Engine
    origins: Mapping[KeyPath, ValueOrigin]
    warnings: tuple[str, ...] = ()
    """What the engine's vLLM may refuse; nobody asked its own parser."""
    translation: Translation | None = None
    wanted: str = ""
    mods: tuple[FoundMod, ...] = ()
    image: str | None = None
    """Of an engine of kind `image`: what the recipe or the engine's file calls it."""
    allowed: tuple[Mistake, ...] = ()
    pending: tuple[Mistake, ...] = ()
    """What needs a consent that nobody has given yet."""
    template_hash: str = ""
    """Of the chat template as it was when consent was looked for; empty where none is needed."""

    @property
    def called(self) -> str:
        """What a command that is proposed says for it: what the user said, as it is typed."""
        return shlex.quote(self.wanted or self.recipe.name)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A recipe as far as it could be read: what it is, and what stands in its way."""

    document: Document
    mistakes: tuple[Mistake, ...]
    translation: Translation | None
    recipe: Recipe | None = None
    resolved: Resolved | None = None
    """None where the recipe or its engine could not be read."""
    consents: tuple[Mistake, ...] = ()
    warnings: tuple[str, ...] = ()
    consent_record: Path | None = None

    def lines(self, found: Iterable[Mistake]) -> list[str]:
        """Return mistakes or consents in words, each with its file and line."""
        return [_line(self.document, item) for item in dict.fromkeys(found)]


def load_recipe(
    library: Library, wanted: str, settings: Iterable[str] = (), *, unasked: bool = False
) -> Resolved:
    """Load a recipe by name or path; RecipeError lists every mistake with file, line and fix.

    With `unasked`, for who runs and writes nothing of it, what needs consent is no mistake.
    """
    loaded = look_into(library, wanted, settings)
    is_allowed = unasked or not loaded.consents
    if not loaded.mistakes and is_allowed and loaded.resolved is not None:
        return loaded.resolved
    what, hint = f"recipe {wanted}", consent_hint(wanted, loaded.consents)
    error = error_of(
        what,
        loaded.document,
        list(loaded.mistakes),
        loaded.consents,
        hint=hint,
        record=loaded.consent_record,
    )
    raise error


def load_all(
    library: Library, names: Collection[str] | None = None
) -> dict[str, Resolved | RecipeError]:
    """Load every recipe of a library, or those `names` that it has; a broken one is its error.

    They are in the order of their names.
    """
    found: dict[str, Resolved | RecipeError] = {}
    files = library.recipe_files()
    for name in sorted(files if names is None else files.keys() & names):
        try:
            found[name] = load_recipe(library, name)
        except RecipeError as error:
            found[name] = error
    return found


def look_into(library: Library, wanted: str, settings: Iterable[str] = ()) -> Loaded:
    """Read a recipe with all that it inherits; RecipeError only where there is none to speak of."""
    path = locate(library, wanted)
    document, translation, settings = _read_whole(library, path, list(settings))
    for assignment in settings:
        document = with_setting(document, assignment)
    document = anchored(document, Path())
    if translation is not None:
        translation = replace(translation, document=document)
    recipe, mistakes = validated(document, Recipe)
    engine, engine_mistakes = _engine_of(library, document)
    mistakes += engine_mistakes
    if recipe is None:
        return Loaded(document, (*mistakes,), translation)
    image = recipe.image or (engine.image if engine is not None else None)
    if engine is not None:
        engine = pinned_engine(_with_image(engine, recipe.image), library.images)
    # A value that is wrong was left out; what that means for the mapping that it stood in is no
    # second mistake.
    wrong = {mistake.path[:end] for mistake in mistakes for end in range(1, len(mistake.path) + 1)}
    found = rules.find_contradictions(recipe, engine)
    mistakes += [mistake for mistake in found if mistake.path not in wrong]
    refused, warnings = _arguments(recipe, engine)
    foreign = library.foreign_files(document.origins)
    mistakes += [*refused, *self_consents(recipe, document.origins, foreign)]
    mistakes += of_the_node(recipe, document.origins)
    mods = find_mods(recipe, document.origins, path.parent)
    needed = tuple(asked(recipe, document.origins, foreign))
    record, template = None, ""
    if needed:
        mods, template = judged_mods(mods), template_hash(recipe.serve.chat_template)
    if needed and library.consents is not None:
        record = library.consents / digest(needed, document.origins, mods, template)
    is_allowed = recipe.allow_unsafe or (record is not None and record.is_file())
    lines = tuple(_line(document, warning) for warning in warnings)
    resolved = None
    if engine is not None:
        allowed, pending = (needed, ()) if is_allowed else ((), needed)
        resolved = Resolved(
            recipe=recipe,
            engine=engine,
            origins=document.origins,
            warnings=lines,
            translation=translation,
            wanted=wanted,
            mods=mods,
            image=image,
            allowed=allowed,
            pending=pending,
            template_hash=template,
        )
    consents = () if is_allowed else needed
    return Loaded(document, (*mistakes,), translation, recipe, resolved, consents, lines, record)


def _read_whole(
    library: Library, path: Path, settings: list[str]
) -> tuple[Document, Translation | None, list[str]]:
    """Return a recipe with what it inherits, how it was translated, and what is still to be set."""
    document = read_document(path)
    if is_stack(document):
        raise NoRecipeError(
            f"{path} is a stack of several models, and no recipe",
            hint="`plan`, `up`, `gateway` and `export llama-swap` take a stack",
        )
    if not (is_foreign(document) or OUR_SIGNS & document.content.keys()):
        raise NoRecipeError(f"{path} is no recipe: neither one of ours nor in a format of others")
    if not is_foreign(document):
        return resolve_inheritance(library, document, path, ()), None, settings
    from sparkdeploy.recipe.foreign.translate import translate  # noqa: PLC0415 - most are ours

    translation, rest = translate(document, path, settings)
    return anchored(translation.document, path.parent), translation, rest


def _with_image(engine: Engine, image: str | None) -> Engine:
    """Return the engine of an image that a recipe names; a tag may say which release it holds."""
    if image is None:
        return engine
    release = stated_release(image)
    return engine.model_copy(update={"image": image} | ({"vllm": release} if release else {}))


def _arguments(recipe: Recipe, engine: Engine | None) -> tuple[list[Mistake], list[Mistake]]:
    """Return what vLLM would refuse, and what it may, where only a near release was asked."""
    if engine is None:
        return [], []
    found, is_certain = argument_mistakes(recipe, engine)
    found += package_mistakes(recipe, engine)
    # A mod may bring flags, parsers and packages of its own.
    return (found, []) if is_certain and not recipe.mods else ([], found)


def load_engine(library: Library, name: str) -> Engine:
    """Raise RecipeError when it is unknown or invalid."""
    document = read_document(known_file(library.engine_files(), name, "engine"))
    engine, problems = validated(document, Engine)
    if problems or engine is None:
        raise error_of(f"engine {name}", document, problems)
    return engine


def _engine_of(library: Library, document: Document) -> tuple[Engine | None, list[Mistake]]:
    name = document.content.get("engine")
    if not isinstance(name, str):
        return None, []
    if name in (files := library.engine_files()):
        return load_engine(library, name), []
    problem = Mistake(("engine",), f"there is no engine {shown(name)}", closest(name, files))
    return None, [problem]


def error_of(
    what: str,
    document: Document,
    problems: list[Mistake],
    consents: Sequence[Mistake] = (),
    *,
    hint: str | None = None,
    record: Path | None = None,
) -> RecipeError:
    """Return the error that lists mistakes and consents, each with its file and line.

    `hint` and `record` are of consents: how one is given, and the file that remembers it.
    """
    problems = list(dict.fromkeys(problems))
    every = (*problems, *consents)
    lines = [_line(document, problem) for problem in every[:MAX_LISTED]]
    if len(every) > MAX_LISTED:
        lines.append(f"... and {len(every) - MAX_LISTED} more")
    message, detail = f"{what} {count_words(problems, consents)}", Mistakes("\n".join(lines))
    if problems or not consents:
        return RecipeError(message, detail=detail, hint=hint if consents else None)
    error = ConsentNeededError(message, detail=detail, hint=hint)
    error.record = record
    return error


def count_words(mistakes: Sized, consents: Sized) -> str:
    counted = []
    if wrong := len(mistakes):
        counted.append(f"has {wrong} mistake{'s' * (wrong > 1)}")
    if asked := len(consents):
        things = f"{asked} things that need" if asked > 1 else "1 thing that needs"
        counted.append(f"asks for {things} your consent")
    return " and ".join(counted)


def _line(document: Document, problem: Mistake) -> str:
    path, name = written_part(problem.path, document.origins), ".".join(map(str, problem.path))
    where = f"{document.origins[path]}: " if path else ""
    # What was typed is called as it was typed, once.
    place = where if where == f"--set {name}: " else f"{where}{name}: "
    fix = f"; {problem.fix}" if problem.fix else ""
    return f"{place}{problem.message}{fix}"
