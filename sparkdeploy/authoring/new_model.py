"""What is known of a model that `new` writes a recipe for: the first engine that serves it, and
what it cannot have of another recipe's conversion."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.estimate.limits import context_of
from sparkdeploy.plan.models import conversion_of, unfit_for
from sparkdeploy.recipe.answers import Task, planned_answers
from sparkdeploy.recipe.arguments import release_of
from sparkdeploy.recipe.load import library, load_engine
from sparkdeploy.recipe.releases import (
    family_among,
    family_of,
    first_release,
    parse_version,
    short_name,
)
from sparkdeploy.recipe.serve import Serve
from sparkdeploy.recipe.words import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from sparkdeploy.checkpoint.published import PublishedConfig
    from sparkdeploy.recipe.answers import Answers
    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.releases import Family
    from sparkdeploy.recipe.schema import Recipe, Weights
    from sparkdeploy.settings import Settings

USUAL, NEWEST, COMPILED = "cuda-0.25", "cuda-0.33", "cuda-0.19"
"""In the order in which they are tried."""
USUAL_WHY = "the usual one"
CONTEXT_LIMIT = 1 << 24
MOST_ARCHITECTURES = 8
"""Real models have one or two."""
SHOWN_ARCHITECTURES = 3
UNCONVERTED = Conversion()
PARTS = {
    # Whole, for a mapping is laid over the one of the recipe that is extended.
    "fp8_mode": ("fp8_dense", '{mode: "off", source: null, from: source}'),
    "shared_experts": ("shared_experts", "bf16"),
    "lm_head": ("lm_head", "bf16"),
    "draft_rows": ("draft_lm_head", "null"),
    "mtp_weights": ("mtp_weights", "bf16"),
    "mtp": ("mtp", '"off"'),
}
"""Each part of a conversion: its setting under `checkpoint`, and what switches it off, as YAML."""
_POOLING_NAME = re.compile(r"embedding|rerank")
_POOLING_FILES = frozenset(
    {"modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"}
)


@dataclass(frozen=True, slots=True)
class NewModel:
    """A model by what its owner publishes of it, strange as that may be."""

    weights: Weights
    published: PublishedConfig

    @property
    def name(self) -> str:
        return short_name(self.weights.known_as)

    @property
    def architectures(self) -> list[str]:
        named = self.published.config.get("architectures")
        return [str(it) for it in named[:MOST_ARCHITECTURES]] if isinstance(named, list) else []

    def describe(self) -> str:
        names = self.architectures
        if names:
            more = ", ..." if names[SHOWN_ARCHITECTURES:] else ""
            return ", ".join(map(shown, names[:SHOWN_ARCHITECTURES])) + more
        kind = self.published.config.get("model_type")
        return f"a {shown(kind)} model" if kind else "config.json names no architecture"

    def family(self) -> Family | None:
        return family_among(self.name, self.architectures)

    def answers(self) -> Answers:
        """Return what the model is for, by its name too: the recipe then says so to vLLM."""
        is_named = _POOLING_NAME.search(self.name.lower()) is not None
        is_packed = not _POOLING_FILES.isdisjoint(self.published.files)
        plain = planned_answers(Serve(), self.published.config)
        if plain.main is not Task.CHAT or not (is_named or is_packed):
            return plain
        return planned_answers(Serve(runner="pooling"), self.published.config)

    def own_context(self) -> int:
        """Return the longest request in tokens by the configuration; 0 where it is silent."""
        tokens = context_of(self.published.config)
        return tokens if tokens < CONTEXT_LIMIT else 0


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
    recipe_library = library(settings)
    # A recipe is held against the family of the model's name.
    families = (model.family(), family_of(model.name))
    engines = [load_engine(recipe_library, name) for name in (USUAL, NEWEST, COMPILED)]
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
    if model.published.config.get("auto_map"):
        yield (
            "It brings code of its own (auto_map in config.json): that needs "
            "serve.trust_remote_code: true, and your consent."
        )


@dataclass(frozen=True, slots=True)
class Misfit:
    setting: str
    """By its path in the recipe."""
    reason: str
    off: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What switches it off, as YAML: by section and key."""


def misfits(recipe: Recipe, config: Mapping[str, Any], settings: Settings) -> Iterator[Misfit]:
    """Yield what `plan` would refuse of a recipe's conversion for a model of this config.json."""
    wanted = conversion_of(recipe, settings)
    for part, (setting, off) in PARTS.items():
        value = getattr(wanted, part)
        if value == getattr(UNCONVERTED, part):
            continue
        reasons = unfit_for(config, replace(UNCONVERTED, **{part: value}))
        if reasons:
            drafts = _undrafted(recipe) if part == "mtp" else {}
            switched = {"checkpoint": {setting: off}, **drafts}
            yield Misfit(f"checkpoint.{setting}", "; ".join(reasons), switched)


def _undrafted(recipe: Recipe) -> dict[str, dict[str, str]]:
    """Return what ends drafting by MTP, which needs the weights that are not there."""
    drafting = {"serve": recipe.serve.speculative, "cluster": recipe.cluster.speculative}
    return {
        section: {"speculative": "null"}
        for section, item in drafting.items()
        if item is not None and item != "off" and item.is_mtp
    }
