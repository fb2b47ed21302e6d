"""What a recipe from elsewhere may not ask for unless the user says --allow-unsafe.

A recipe is data: it chooses settings of vLLM, and vLLM runs in a container without rights. For a
recipe from elsewhere the lists of harmless.yaml say which settings; everything else needs consent,
because it may load code of the recipe's choice, read or write files that it was not given, or open
ports of its own. What was typed (`--set`), and a recipe that stands wholly in the user's own
recipes folder, are the user's words and are not looked at.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy.recipe import flags, harmless, paths
from sparkdeploy.recipe.document import written_part
from sparkdeploy.recipe.harmless import lists, shown
from sparkdeploy.recipe.rules import Mistake, drafting_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sparkdeploy.recipe.document import KeyPath, ValueOrigin
    from sparkdeploy.recipe.schema import Recipe

CONSENT_OPTIONS = {"allow_known_bad": "--allow-known-bad", "allow_unsafe": "--allow-unsafe"}
"""Fields that only an option of the command line sets: no file from elsewhere speaks for you."""


@dataclass(frozen=True, slots=True)
class Judge:
    """A recipe with the origins of its values, and which of those are a stranger's."""

    recipe: Recipe
    origins: Mapping[KeyPath, ValueOrigin]
    foreign_files: frozenset[str]
    """Empty for a recipe of trusted files alone: there is nothing to judge."""
    model_folders: tuple[Path, ...] = ()

    def self_consents(self) -> Iterator[Mistake]:
        for field, option in CONSENT_OPTIONS.items():
            # A recipe of the user's own may insist on a release; on foreign code only a command.
            is_own = field != "allow_unsafe" and not self._is_foreign((field,))
            if getattr(self.recipe, field) and not self._is_typed((field,)) and not is_own:
                yield Mistake(
                    (field,),
                    "a recipe cannot allow itself what needs your consent",
                    f"remove it, and pass {option} on the command line",
                )

    def consents(self) -> Iterator[Mistake]:
        """Yield what needs consent and has none yet."""
        if not self.recipe.allow_unsafe:
            yield from self.needed()

    def needed(self) -> Iterator[Mistake]:
        """Yield what needs consent, given or not.

        A setting of the user's own recipe counts as well once a stranger's extends it: remote code
        that the user allows one model is another thing when the stranger names the model.
        """
        if not self.foreign_files:
            return
        settings = (
            *self._fields(),
            *self._mods(),
            *self._drafting(),
            *self._environment(),
            *self._flags(),
        )
        asked = [item for item in settings if not self._is_typed(item[0])]
        asked += [item for item in self._paths() if self._is_foreign(item[0])]
        yield from (Mistake(path, question, "") for path, question in asked)

    def template_question(self, meant: Path) -> str | None:
        """Say why the chat template at `meant` needs consent; None where it needs none."""
        origin = self._origin(paths.CHAT_TEMPLATE)
        if not self.foreign_files or not self._is_foreign(paths.CHAT_TEMPLATE):
            return None
        beside = Path(origin.file).parent if origin is not None else Path()
        return paths.template_question(meant, beside)

    def _origin(self, path: KeyPath) -> ValueOrigin | None:
        return self.origins.get(written_part(path, self.origins))

    def _is_typed(self, path: KeyPath) -> bool:
        origin = self._origin(path)
        return origin is not None and origin.line is None

    def _is_foreign(self, path: KeyPath) -> bool:
        origin = self._origin(path)
        # A value that nobody knows the file of is nobody's own.
        return origin is None or (origin.line is not None and origin.file in self.foreign_files)

    def _fields(self) -> Iterator[tuple[KeyPath, str]]:
        for name, row in lists().fields.items():
            path = tuple(name.split("."))
            value: Any = self.recipe
            for key in path:
                value = getattr(value, key, None)
            if value is not None and not lists().matches(row, value):
                yield path, f"{shown(value)}: {row.why}"

    def _mods(self) -> Iterator[tuple[KeyPath, str]]:
        for index, mod in enumerate(self.recipe.mods):
            yield ("mods", index), f"{shown(mod.name)}: a mod runs as root while an image is built"

    def _drafting(self) -> Iterator[tuple[KeyPath, str]]:
        for path, drafting in drafting_of(self.recipe):
            for below, question in harmless.mapping_questions("speculative", drafting.further):
                yield (*path, *below), question

    def _environment(self) -> Iterator[tuple[KeyPath, str]]:
        for name, value in self.recipe.serve.env.items():
            path, said = ("serve", "env", name), shown(f"{name}={value}")
            row = lists().env.get(name)
            if row is None:
                yield (
                    path,
                    f"{said}: not on the list of harmless variables; a variable can name code, a "
                    "file or a host",
                )
            elif not lists().matches(row, value):
                yield path, f"{said}: {lists().without_consent(row)}"

    def _flags(self) -> Iterator[tuple[KeyPath, str]]:
        for index, question in harmless.questions(self.recipe.serve.extra_args):
            yield ("serve", "extra_args", index), question
        # Fields that become flags are held against the flags' own rows.
        for field, flag in (flags.VALUE_FLAGS | flags.JSON_FLAGS).items():
            value, row = getattr(self.recipe.serve, field), lists().flags[flag]
            if isinstance(value, dict) and row.keys is not None:
                for below, question in harmless.mapping_questions(row.keys, value):
                    yield ("serve", field, *below), question
            elif value is not None and not lists().matches(row, value):
                yield ("serve", field), f"{shown(value)}: {lists().without_consent(row)}"

    def _paths(self) -> Iterator[tuple[KeyPath, str]]:
        for path, meant in paths.named_paths(self.recipe):
            origin = self._origin(path)
            beside = Path(origin.file).parent if origin is not None else Path()
            if path == paths.CHAT_TEMPLATE:
                question = paths.template_question(meant, beside)
            else:
                question = paths.model_question(meant, beside, self.model_folders)
            if question is not None:
                yield path, question


def consent_hint(wanted: str, asked: Iterable[Mistake] = ()) -> str:
    """Return how to look at what is asked for: `show` has a recipe's values, and no mod's files."""
    name, rest = shlex.quote(shown(wanted)), "--allow-unsafe takes all of the above"
    if any(item.path[:1] == ("mods",) for item in asked):
        command = f"sparkdeploy plan {name} --allow-unsafe --show mods"
        return f"`{command}` prints what the mods run and runs nothing; {rest}"
    return f"`sparkdeploy show {name} --allow-unsafe` prints it and runs nothing; {rest}"
