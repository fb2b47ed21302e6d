"""The engine of a recipe that `new` writes: the first of ours whose vLLM serves the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.recipe.arguments import release_of
from sparkdeploy.recipe.families import family_of, first_release
from sparkdeploy.recipe.features import parse_version
from sparkdeploy.recipe.load import library, load_engine
from sparkdeploy.recipe.words import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sparkdeploy.authoring.new_model import NewModel
    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.families import Family
    from sparkdeploy.settings import Settings

USUAL, NEWEST, COMPILED = "cuda-0.25", "cuda-0.33", "cuda-0.19"
"""In the order in which they are tried."""
USUAL_WHY = "the usual one"


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    engine: Engine
    why: str
    knows: tuple[str, ...] = ()
    """Which of the model's architectures are in its release's registry."""
    notes: tuple[str, ...] = ()

    def least_vllm(self) -> str | None:
        """Return the first release that has what this one serves; None where all before had it."""
        came = [release for name in self.knows if (release := first_release([name]))]
        return min(came, key=parse_version) if came and len(came) == len(self.knows) else None

    def has_parser(self, kind: str, name: str) -> bool:
        return name in release_of(self.engine)[0].names[kind]


def engine_for(model: NewModel, settings: Settings) -> ChosenEngine:
    """Raise RecipeError where an engine of such a name is the user's own and invalid."""
    shelf = library(settings)
    # A recipe is held against the family of the model's name.
    families = (model.family(), family_of(model.name))
    engines = [load_engine(shelf, name) for name in (USUAL, NEWEST, COMPILED)]
    lacks = [_shortcoming(model, families, engine) for engine in engines]
    if lacks[0] is None:
        known = _known(model, engines[0])
        why = f"the usual one; vLLM {engines[0].vllm} has {shown(known[0])}" if known else USUAL_WHY
        return ChosenEngine(engines[0], why, known)
    for engine, lack in zip(engines, lacks, strict=True):
        if lack is None:
            compiled = ", which takes hours to compile" if engine.name == COMPILED else ""
            return ChosenEngine(engine, f"{lacks[0]}{compiled}", _known(model, engine))
    return ChosenEngine(engines[0], USUAL_WHY, (), tuple(_unknown(model, engines)))


def _shortcoming(model: NewModel, families: Iterable[Family | None], engine: Engine) -> str | None:
    """Say why an engine does not serve a model; None where nothing says so."""
    if model.architectures and not _known(model, engine):
        return f"vLLM {engine.vllm} does not know {shown(model.architectures[0])}"
    for family in families:
        if family is None:
            continue
        least = family.least_release()
        if least is not None and parse_version(engine.vllm) < parse_version(least):
            return f"{engine.name} is older than {family.name}, which came with {least}"
        if family.failure(engine.vllm) is not None:
            return f"vLLM {engine.vllm} fails with {family.name} on a Spark"
    return None


def _known(model: NewModel, engine: Engine) -> tuple[str, ...]:
    registry = release_of(engine)[0].names["architectures"]
    return tuple(name for name in model.architectures if name in registry)


def _unknown(model: NewModel, engines: Iterable[Engine]) -> Iterator[str]:
    """Yield what the user has to know of a model that no engine of ours serves."""
    releases = ", ".join(sorted((it.vllm for it in engines), key=parse_version))
    yield f"None of our engines knows its architecture: they have vLLM {releases}."
    if model.has_own_code():
        yield (
            "It brings code of its own (auto_map in config.json): that needs "
            "serve.trust_remote_code: true, and your consent."
        )
