"""What must not be in a file that is posted, and taking it out of every text."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparkdeploy.deploy.evidence import known_secrets
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.node.facts import own_name
from sparkdeploy.recipe.paths import named_paths
from sparkdeploy.secret_shapes import (
    REMOVED,
    SHORTEST_KNOWN,
    environment_secrets,
    text_without_secrets,
)
from sparkdeploy.settings import LOGIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.bench.campaign.folder import Campaign
    from sparkdeploy.settings import Settings

LEAST_NAME = 2
"""A shorter name of a machine or a user stands in too many words that are none."""
SETTINGS_OF = (
    *("VLLM_", "NCCL_", "TORCH", "PYTORCH_", "CUDA_", "FLASHINFER_", "OMP_", "INSTANTTENSOR_"),
)
"""Beginnings of variables that set how something computes; their values say nothing of a user."""
OWN_HOSTS = (
    *("container_registry", "github_registry", "package_index", "hub", "debian_mirror"),
    "source_forge",
)
"""Sources of config.yaml, whose hosts may be the user's own."""
EVERYBODYS = frozenset({"root", "localhost", "ubuntu", "here"})
OUR_WORDS = frozenset(
    {"prompt", "kind", "counting", "machine", "finish_reason", "ending", "step", "taken_at"}
)
"""Fields whose values are the program's own, whatever somebody's machine is called."""
_HOST_OF_URL = re.compile(r"(\b\w+://)(?:[^/\s@'\"]*@)?(?!127\.0\.0\.1\b|localhost\b)[^/\s'\",)]+")
_LOGIN = re.compile(r"(?<![\w./+-])[\w.+-]+@(?!sha256:)[\w-]+(?:\.[\w-]+)*")
"""No ORG/NAME@REVISION, and no image by its digest."""
_ADDRESS = re.compile(r"(?<![\w.])(?!127\.0\.0\.1\b|0\.0\.0\.0\b)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_GROUP = "[0-9a-fA-F]{1,4}"
_SHORT_6 = rf"(?:{_GROUP}:){{1,6}}(?:(?::{_GROUP}){{1,6}}|:)"
_ADDRESS_6 = re.compile(rf"(?<![\w:])(?:(?:{_GROUP}:){{3,7}}(?:{_GROUP})?|{_SHORT_6})(?![\w:])")
_HOMES = re.compile(r"(?:/home/|/Users/|/root(?=/|\b)|~/)[^\s'\",:)\]}]*")
_REGISTRY = re.compile(r"(?<![\w./-])[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*:\d+(?=/)")
"""A registry of one's own in an image's name: HOST:PORT/NAME."""


@dataclass(frozen=True, slots=True)
class Private:
    """What is known to be nobody else's business, by value."""

    secrets: tuple[str, ...] = ()
    """Keys, and what the environment holds: eight characters or more."""
    names: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """The home folder and others of this machine; a path below one is taken out whole."""

    def without(self, value: Any, field: str = "") -> Any:  # noqa: ANN401 - any JSON
        """Return a JSON value without any of it, in keys of mappings neither."""
        if isinstance(value, dict):
            return {self._shapes(name): self.without(item, name) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.without(item, field) for item in value]
        if not isinstance(value, str):
            return value
        text = self._shapes(value)
        return text if field in OUR_WORDS else self._without_names(text)

    def _shapes(self, text: str) -> str:
        """Take out what is known by its value or its form, which no name of a field has."""
        text = text_without_secrets(text, self.secrets)
        for folder in self.folders:
            text = re.sub(rf"{re.escape(folder)}(?![\w.-])[^\s'\",:)\]}}]*", REMOVED, text)
        text = _HOMES.sub(REMOVED, text)
        text = _HOST_OF_URL.sub(rf"\1{REMOVED}", text)
        for shape in (_LOGIN, _REGISTRY, _ADDRESS, _ADDRESS_6):
            text = shape.sub(REMOVED, text)
        return text

    def _without_names(self, text: str) -> str:
        for name in self.names:
            text = re.sub(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", REMOVED, text)
        return text


def private_of(campaign: Campaign, settings: Settings) -> Private:
    """Gather what this machine and this campaign know and others need not."""
    before = None if campaign.is_over else campaign.before
    env: dict[str, str] = dict(before.env) if before is not None else {}
    own = (settings.config_dir, settings.state_dir, settings.cache_dir, settings.data_dir)
    folders = set(map(str, (Path.home(), *own, settings.hub_cache)))
    for recipe in campaign.plan.recipes:
        if Path(recipe.wanted).is_absolute():
            folders.add(recipe.wanted)
        try:
            resolved = resolve(Request(recipe.wanted, campaign.plan.assignments), settings)
        except SparkdeployError:
            continue  # It was readable when it was measured; its values are in no record.
        env |= resolved.recipe.serve.env
        folders |= {str(path) for _, path in named_paths(resolved.recipe)}
    unusual = (value for name, value in env.items() if not name.startswith(SETTINGS_OF))
    long = (value for value in unusual if len(value) >= SHORTEST_KNOWN)
    known = {*known_secrets(settings.state_dir / "keys"), *environment_secrets(), *long}
    names = (name for name in _names(settings) if name and len(name) >= LEAST_NAME)
    return Private(
        secrets=_longest_first(known),
        names=_longest_first(set(names) - EVERYBODYS),
        folders=_longest_first(folders - {"/"}),
    )


def _longest_first(values: set[str]) -> tuple[str, ...]:
    return tuple(sorted(values, key=lambda item: (-len(item), item)))


def _names(settings: Settings) -> Iterator[str | None]:
    """Yield names of machines and users, also those of nodes and of servers of one's own."""
    here = (settings.node_name, platform.node())
    yield from (*here, *(name.partition(".")[0] for name in here))
    yield from (own_name(), os.environ.get("USER"), os.environ.get("SUDO_USER"))
    nodes = (settings.cluster or {}).get("nodes")
    for node in nodes if isinstance(nodes, list) else ():
        if isinstance(node, dict):
            yield from (str(node[part]) for part in ("name", "ssh", "user") if part in node)
    urls = [settings.build.index_url, settings.docker_host, *settings.build.proxies.values()]
    for name in OWN_HOSTS:
        if settings.sources.get(name, "default") != "default":
            url = getattr(settings.hosts, name)
            urls.append(url if "//" in url else f"//{url}")
    yield from (urlsplit(LOGIN.sub("//", url)).hostname for url in urls if url)
