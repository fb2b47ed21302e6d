"""What the vLLM releases take: flags, choices and names, as each release's own parser says it.

A file per engine, recipes/engines/arguments/NAME.json, is what `image/inside/arguments.py` printed
where that engine's vLLM can be imported.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence  # noqa: TC003 - pydantic reads them
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter

from sparkdeploy.recipe.features import parse_version
from sparkdeploy.recipe.image_name import is_pinned
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from pathlib import Path

OFFICIAL_IMAGES = ("vllm-openai", "vllm-openai-cu129", "vllm-openai-cu130")
ANY_IMAGE = "image"
"""The engine of an image that a recipe or a user names; its own release is an assumption."""


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
    """Of the flags that take a mapping."""

    @functools.cached_property
    def spellings(self) -> Mapping[str, str]:
        """Return the flag that each spelling means, `-tp` and `--no-x` among them."""
        return {form: name for name, flag in self.flags.items() for form in (name, *flag.aliases)}


def is_tag(image: str | None) -> bool:
    """Say whether an image is named by a tag, which may be another image tomorrow."""
    return image is not None and not is_pinned(image)


def stated_release(image: str) -> str | None:
    """Return the release that a tag of vLLM's own image says it holds: `v0.27.1-cu130`.

    Others number their builds by themselves.
    """
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    match = re.match(r"v?(\d+\.\d+\.\d+)(?![\d.])", tag)
    return match[1] if match is not None and name in OFFICIAL_IMAGES else None


@functools.cache
def releases() -> Mapping[str, Release]:
    """Return every release that an engine of ours has, by the engine's name."""
    files = sorted(arguments_folder().glob("c*.json"))
    return {path.stem: read_release(path) for path in files}


def newest() -> Release:
    return max(releases().values(), key=lambda release: parse_version(release.vllm))


def arguments_folder() -> Path:
    return resources() / "recipes" / "engines" / "arguments"


@functools.cache
def read_release(path: Path) -> Release:
    return TypeAdapter(Release).validate_json(path.read_text(encoding="utf-8"))
