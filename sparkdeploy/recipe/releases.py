"""What each vLLM release takes and can do, and which models it serves.

A file per engine, recipes/engines/arguments/NAME.json, is what `image/inside/arguments.py` printed
where that engine's vLLM can be imported. recipes/facts/families.yaml says which release a family of
models needs, and which fails with it. docs/figures/engines.md shows the rows of features.
"""

import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from sparkdeploy import yaml_text
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.fields import Strict, VllmRelease
from sparkdeploy.settings import resources

Version = tuple[int, int, int]


def parse_version(text: str) -> Version:
    major, minor, patch = text.split(".")
    return int(major), int(minor), int(patch)


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: how many values it takes, and which."""

    takes: Literal["none", "one", "optional", "many"]
    type: Literal["text", "json", "auto", "float", "size", "int"] | None = None
    """`auto`: a number of tokens, or that word; `size`: 64K as well. None where it has choices."""
    choices: Sequence[str] = ()
    aliases: Sequence[str] = ()


@dataclass(frozen=True)
class Release:
    """What `vllm serve` of one build takes."""

    vllm: str
    flags: Mapping[str, Flag]
    names: Mapping[str, Sequence[str]]
    """Such as `tool_parsers`: names that flags refer to without listing them as choices."""
    keys: Mapping[str, Sequence[str]]

    @functools.cached_property
    def spellings(self) -> Mapping[str, str]:
        """Return the flag that each spelling means, `-tp` and `--no-x` among them."""
        return {form: name for name, flag in self.flags.items() for form in (name, *flag.aliases)}


@functools.cache
def releases() -> Mapping[str, Release]:
    """Return every release that an engine of ours has, by the engine's name."""
    return {path.stem: read_release(path) for path in sorted(arguments_folder().glob("c*.json"))}


def newest() -> Release:
    return max(releases().values(), key=lambda release: parse_version(release.vllm))


def arguments_folder() -> Path:
    return resources() / "recipes" / "engines" / "arguments"


@functools.cache
def read_release(path: Path) -> Release:
    return TypeAdapter(Release).validate_json(path.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Feature:
    """Something a recipe may ask for: the first release that has it, and how we know."""

    name: str
    since: str
    source: str

    def is_in(self, vllm: str) -> bool:
        return parse_version(vllm) >= parse_version(self.since)


MTP = Feature("MTP speculative decoding of Qwen3.5", "0.19.0", "qwen3_5_mtp.py in 0.19.1")
ONLINE_FP8_BLOCK = Feature(
    "the online FP8 per-block method class, which the plugin uses",
    "0.20.2",
    "sources of the 0.20.2 wheel; 0.19.1 has none (test_image_selfcheck_matrix.py)",
)
TURBOQUANT_HYBRID = Feature(
    "TurboQuant for models with linear attention",
    "0.21.0",
    "vllm#39931; 0.20.2 raises NotImplementedError",
)
TURBOQUANT_SPECULATION = Feature(
    "TurboQuant with speculation, which takes the plugin's override of its back end",
    "0.21.0",
    "vllm#53180; the fixes #53406 and #53410 are not in 0.33.0",
)
LM_HEAD_METHOD = Feature(
    "an INT8 LM head (before 0.23 the plugin replaces the layer: read in the sources, never run)",
    "0.19.0",
    "test_image_selfcheck_matrix.py",
)
DRAFT_LAYER = Feature(
    "INT4 experts that the plugin makes of a draft layer's, beside its FP8 matrices",
    "0.25.1",
    "auto_gptq.py of 0.25.1, 0.32.0 and 0.33.0; older releases were not read",
)
SHARED_INT4 = Feature(
    "INT4 linear layers that the plugin makes of shared experts",
    "0.25.1",
    "inc.py and auto_gptq.py of 0.25.1 and 0.33.0; older releases were not read",
)
DFLASH = Feature(
    "DFlash speculative decoding",
    "0.23.0",
    "the release of the figure in recipes/dflash.yaml; beside Gated DeltaNet later, see there",
)


class BadReleases(Strict):
    """Releases that do not serve a family on a Spark, the last one with all its patches."""

    from_: Annotated[VllmRelease, Field(alias="from")]
    to: VllmRelease
    why: str
    source: str


class Variable(Strict):
    """A variable that a family is served with from a release on, unless the recipe sets it."""

    name: str
    value: str
    since: VllmRelease
    source: str


class Parsers(Strict):
    """vLLM's parsers of thoughts and of tool calls: what most recipes of a family name."""

    reasoning: str | None = None
    tools: str | None = None
    leave_calls_empty: list[str] = Field(default_factory=list)
    """Parsers of tool calls that others name for it and that find nothing, as users reported."""
    source: str = "most recipes"
    needs: str = ""
    """What they need besides, in a sentence."""


class Family(Strict):
    """Models that vLLM treats alike."""

    name: str
    repositories: str
    """A pattern that is looked for in a repository's name, without its owner, in small letters."""
    architectures: list[str] = Field(default_factory=list)
    """Each of them tells the family, whatever the model is called."""
    also: list[str] = Field(default_factory=list)
    """Further ones of models of that name; others have them too."""
    least: VllmRelease | None = None
    """Where the registry says too little."""
    fails: list[BadReleases] = Field(default_factory=list)
    env: list[Variable] = Field(default_factory=list)
    keeps_states: bool = False
    """Whether some of its layers keep a state of fixed size in place of keys and values."""
    parsers: Parsers = Parsers()

    def least_release(self) -> str | None:
        """Return the first release that knows the family; None where all that were read do."""
        return self.least or first_release(self.architectures)

    def failure(self, vllm: str) -> BadReleases | None:
        version = parse_version(vllm)
        spans = ((parse_version(it.from_), parse_version(it.to), it) for it in self.fails)
        return next((it for first, last, it in spans if first <= version <= last), None)


@functools.cache
def families() -> tuple[Family, ...]:
    rows = yaml_text.load_file(resources() / "recipes" / "facts" / "families.yaml")["families"]
    return tuple(map(Family.model_validate, rows))


def first_release(architectures: Iterable[str]) -> str | None:
    """Return the release with which the last of some architectures came; None: all had them."""
    known = _architecture_releases()
    return max((known[it] for it in architectures if it in known), key=parse_version, default=None)


@functools.cache
def _architecture_releases() -> dict[str, str]:
    """Return the release with which each architecture came, if 0.19.1 did not have it."""
    rows = yaml_text.load_file(resources() / "recipes" / "facts" / "architecture_releases.yaml")
    return {name: release for release, names in rows.items() for name in names}


def family_of(name: str, among: Iterable[Family] | None = None) -> Family | None:
    """Return the family of a model by its repository's or folder's name."""
    short = short_name(name).lower()
    rows = families() if among is None else among
    return next((it for it in rows if re.search(it.repositories, short)), None)


def short_name(name: str) -> str:
    """Return what a model is called, without its owner and the folders above it."""
    *above, last = name.rstrip("/").split("/")
    if len(above) > 1 and above[-1] == "snapshots":
        return above[-2].rpartition("--")[2]
    return last


def family_among(name: str, architectures: Collection[str]) -> Family | None:
    """Return the family of a model whose architectures are known; they go before its name."""

    def contradicts(family: Family) -> bool:
        known = {*family.architectures, *family.also}
        return bool(known and architectures) and known.isdisjoint(architectures)

    named = family_of(name, (it for it in families() if not contradicts(it)))
    by_architecture = (it for it in families() if set(it.architectures) & set(architectures))
    return named or next(by_architecture, None)


def variables_of(name: str, engine: Engine) -> dict[str, str]:
    """Return the variables that a model is served with, by its family and the engine's release."""
    family = family_of(name)
    if family is None or engine.runs_on == "cpu":
        return {}
    version = parse_version(engine.vllm)
    return {it.name: it.value for it in family.env if version >= parse_version(it.since)}
