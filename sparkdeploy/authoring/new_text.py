"""The text of a recipe that `new` writes: for a model, with its guesses, or a changed one."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from sparkdeploy.about import UNIT
from sparkdeploy.folders import schema_line
from sparkdeploy.recipe.words import shown
from sparkdeploy.yaml_text import in_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

    from sparkdeploy.authoring.new_model import Misfit
    from sparkdeploy.recipe.schema import Recipe, Weights

COMMENT_COLUMN = 56
KNOB_COLUMN = 44
KNOBS: dict[str, tuple[str, ...]] = {
    "model": ("repo", "revision", "path", "served_name"),
    "serve": (
        *("port", "max_model_len", "max_num_seqs", "max_num_batched_tokens"),
        *("gpu_memory_utilization", "kv_cache_dtype", "attention_backend", "speculative"),
        *("reasoning_parser", "tool_call_parser", "enable_auto_tool_choice"),
        *("override_generation_config", "env", "extra_args"),
    ),
    "limits": ("memory_floor_gib", "startup_timeout_s"),
    "cluster": ("tensor_parallel", "pipeline_parallel", "min_nodes"),
}
"""What people change, by section; docs/recipes.md has the rest."""


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
        why = "its weights fit no fewer machines"
        guesses = {key: Guess(str(value), why) for key, value in size.items()}
        yield from self._section("cluster", guesses)


def _line(name: str, guess: Guess, indent: str) -> str:
    line = f"{indent}{name}: {guess.value}"
    mark = "" if guess.is_certain else "guess: "
    return f"{line:<{COMMENT_COLUMN}} # {mark}{guess.why}" if guess.why else line


def changing_text(name: str, base: str, recipe: Recipe) -> str:
    """Return a recipe that is what its base is, until somebody takes a `#` away."""
    lines = [
        schema_line("recipe"),
        f"# Made by `sparkdeploy new`: {shown(base)}, to be changed. Take the # from a line that",
        "# you change; what stands there is what it says today. docs/recipes.md has every field.",
        "schema: 1",
        f"name: {in_line(name)}",
        f"title: {in_line(f'{recipe.name}, changed')}",
        f"extends: {in_line(base)}",
        f"# engine: {in_line(recipe.engine)}",
    ]
    for section, names in KNOBS.items():
        values = getattr(recipe, section)
        fields = type(values).model_fields
        lines += [f"{section}:", *(_knob(it, getattr(values, it), fields[it]) for it in names)]
    return "\n".join([*lines, ""])


def _knob(name: str, value: Any, field: FieldInfo) -> str:  # noqa: ANN401 - of any field
    written = value.model_dump(exclude_defaults=True) if isinstance(value, BaseModel) else value
    line = f"  # {name}: {in_line(written)}"
    extra = field.json_schema_extra
    unit = str(extra.get(UNIT, "")) if isinstance(extra, dict) else ""
    words = re.split(r"[.;:](?: |$)", field.description or "")[0]
    remark = f"{unit}: {words[:1].lower()}{words[1:]}" if unit else words
    return f"{line:<{KNOB_COLUMN}} # {remark}" if remark else line
