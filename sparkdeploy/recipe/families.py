"""Which vLLM a family of models needs, and which fails with it: recipes/facts/families.yaml."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from sparkdeploy import yaml_text
from sparkdeploy.recipe.features import parse_version
from sparkdeploy.recipe.fields import Strict, VllmRelease
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sparkdeploy.recipe.engine import Engine


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
    """Who names them for the family."""
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
    parsers: Parsers = Parsers()

    def least_release(self) -> str | None:
        """Return the first release that knows the family; None where all that were read do."""
        return self.least or first_release(self.architectures)

    def failure(self, vllm: str) -> BadReleases | None:
        version = parse_version(vllm)
        return next(
            (it for it in self.fails if parse_version(it.from_) <= version <= parse_version(it.to)),
            None,
        )


def first_release(architectures: Iterable[str]) -> str | None:
    """Return the release with which the last of some architectures came; None: all had them."""
    known = architecture_releases()
    return max((known[it] for it in architectures if it in known), key=parse_version, default=None)


def family_of(name: str, among: Iterable[Family] | None = None) -> Family | None:
    """Return the family of a model by its repository's or folder's name."""
    short = short_name(name).lower()
    rows = families() if among is None else among
    return next((it for it in rows if re.search(it.repositories, short)), None)


def short_name(name: str) -> str:
    """Return what a model is called: neither its owner nor the folders above it say anything of it.

    A snapshot in a cache of the hub's is called as its repository.
    """
    *above, last = name.rstrip("/").split("/")
    if len(above) > 1 and above[-1] == "snapshots":
        return above[-2].rpartition("--")[2]
    return last


def family_among(name: str, architectures: Collection[str]) -> Family | None:
    """Return the family of a model whose architectures are known; they go before its name."""
    named = family_of(name, (it for it in families() if not _contradicts(it, architectures)))
    by_architecture = (it for it in families() if set(it.architectures) & set(architectures))
    return named or next(by_architecture, None)


def _contradicts(family: Family, architectures: Collection[str]) -> bool:
    known = {*family.architectures, *family.also}
    return bool(known and architectures) and known.isdisjoint(architectures)


def variables_of(name: str, engine: Engine) -> dict[str, str]:
    """Return the variables that a model is served with, by its family and the engine's release."""
    family = family_of(name)
    if family is None or engine.runs_on == "cpu":
        return {}
    version = parse_version(engine.vllm)
    return {it.name: it.value for it in family.env if version >= parse_version(it.since)}


@functools.cache
def architecture_releases() -> dict[str, str]:
    """Return the release with which each architecture came, if 0.19.1 did not have it."""
    rows = yaml_text.load_file(resources() / "recipes" / "facts" / "architecture_releases.yaml")
    return {name: release for release, names in rows.items() for name in names}


@functools.cache
def families() -> tuple[Family, ...]:
    found = yaml_text.load_file(resources() / "recipes" / "facts" / "families.yaml")["families"]
    return tuple(Family.model_validate(row) for row in found)
