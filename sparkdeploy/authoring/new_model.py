"""What is known of a model that `new` writes a recipe for: the first engine that serves it, and
what it cannot have of another recipe's conversion."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparkdeploy.about import UNIT
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.checkpoint.published import PublishedConfig
from sparkdeploy.estimate.limits import context_of
from sparkdeploy.folders import schema_line
from sparkdeploy.plan.models import conversion_of, unfit_for
from sparkdeploy.recipe.answers import Answers, Task, planned_answers
from sparkdeploy.recipe.arguments import release_of
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.load import library, load_engine
from sparkdeploy.recipe.releases import (
    Family,
    family_among,
    family_of,
    first_release,
    parse_version,
    short_name,
)
from sparkdeploy.recipe.schema import Recipe, Weights
from sparkdeploy.recipe.serve import Serve
from sparkdeploy.recipe.words import shown
from sparkdeploy.settings import Settings
from sparkdeploy.yaml_text import in_line

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
