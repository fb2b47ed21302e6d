"""A new recipe on its way to a file: its values, what each was guessed from, and its text."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.recipe.editors import schema_line
from sparkdeploy.recipe.words import shown
from sparkdeploy.yaml_text import in_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.authoring.new_conversion import Misfit
    from sparkdeploy.recipe.schema import Weights

COMMENT_COLUMN = 56


@dataclass(frozen=True, slots=True)
class Guess:
    """One value of a recipe, and what it was guessed from; empty where it is known."""

    value: str
    """As YAML; a word of somebody else's goes through `in_line`."""
    why: str = ""
    is_certain: bool = False
    """Whether `why` is a reason, and nothing is guessed."""


@dataclass(frozen=True, slots=True)
class DraftRecipe:
    """A recipe on its way to a file."""

    name: str
    model: Weights
    base: str | None
    engine: Guess | None = None
    least: str | None = None
    serve: Mapping[str, Guess] = field(default_factory=dict)
    nodes: int = 1
    notes: tuple[str, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    """What of the base this model cannot have; what switches it off is written."""

    def text(self) -> str:
        parts = (self._head(), self._section("checkpoint", {}), self._section("serve", self.serve))
        return "\n".join([*itertools.chain(*parts), *self._cluster(), ""])

    def _head(self) -> Iterator[str]:
        yield schema_line("recipe")
        yield "# Made by `sparkdeploy new`. What says `guess` is not the word of the model's owner."
        yield from (f"# {note}" for note in self.notes)
        yield "schema: 1"
        yield f"name: {in_line(self.name)}"
        yield f"title: {in_line(self._title())}"
        if self.base is not None:
            yield f"extends: {in_line(self.base)}"
        if self.engine is not None:
            yield _line("engine", self.engine, "")
        if self.least is not None:
            yield _line("least_vllm", Guess(self.least), "")
        yield f"model: {in_line(self.model.model_dump(exclude_defaults=True))}"

    def _title(self) -> str:
        """Return the repository's name, or the folder's without the way to it."""
        if self.model.path is None:
            return self.model.source
        # A folder's name may hold what no title may.
        return shown(Path(self.model.path).name or self.name)

    def _section(self, name: str, guesses: Mapping[str, Guess]) -> Iterator[str]:
        off = {
            key: Guess(value, f"this model cannot have it: {misfit.reason}", is_certain=True)
            for misfit in self.misfits
            for key, value in misfit.off.get(name, {}).items()
        }
        if guesses or off:
            yield f"{name}:"
        yield from (_line(key, guess, "  ") for key, guess in {**off, **guesses}.items())

    def _cluster(self) -> Iterator[str]:
        size = {"tensor_parallel": self.nodes, "min_nodes": self.nodes} if self.nodes > 1 else {}
        guesses = {key: Guess(str(value), _NODES) for key, value in size.items()}
        yield from self._section("cluster", guesses)


_NODES = "its weights fit no fewer machines"


def _line(name: str, guess: Guess, indent: str) -> str:
    line = f"{indent}{name}: {guess.value}"
    mark = "" if guess.is_certain else "guess: "
    return f"{line:<{COMMENT_COLUMN}} # {mark}{guess.why}" if guess.why else line
