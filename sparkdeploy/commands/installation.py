"""How this program came to this machine, and so how a newer one comes."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NEWER = "NEWER_DIST"
"""Stands for the file or address of a newer wheel or sdist."""


@dataclass(frozen=True, slots=True)
class Installation:
    by: str
    update: str
    """The command that brings a newer version."""


def this_installation(prefix: Path, *, brought_by: str | None) -> Installation:
    """Return how the program in the environment `prefix` was installed.

    `brought_by` is the machine that sent it here by `--on`.
    """
    if brought_by is not None:
        return Installation("--on", "update it where you type `--on`: the next command brings it")
    origin: Mapping[str, Any] = {}
    with suppress(metadata.PackageNotFoundError, ValueError):
        told = metadata.distribution("sparkdeploy").read_text("direct_url.json")
        origin = json.loads(told or "{}")
    return installation_of(prefix, origin)


def installation_of(prefix: Path, origin: Mapping[str, Any]) -> Installation:
    """Decide by the marks that installers leave; `origin` is PEP 610's, empty from an index."""
    checkout = _checkout(origin)
    pull = f"git -C {checkout} pull"
    if (prefix / "installed-sources").is_file():
        return Installation("install.sh", f"{pull} && {checkout}/install.sh")
    if origin.get("dir_info", {}).get("editable"):
        return Installation("an editable checkout", pull)
    wanted = NEWER if origin else "sparkdeploy"
    if (prefix / "pipx_metadata.json").is_file():
        update = f"pipx install --force {NEWER}" if origin else "pipx upgrade sparkdeploy"
        return Installation("pipx", update)
    if (prefix / "uv-receipt.toml").is_file():
        update = f"uv tool install --force {NEWER}" if origin else "uv tool upgrade sparkdeploy"
        return Installation("uv tool", update)
    if "archive-v0" in prefix.parts:
        update = f"uvx --from {NEWER} sparkdeploy" if origin else "uvx sparkdeploy@latest"
        return Installation("uvx", update)
    python = shlex.quote(str(prefix / "bin" / "python"))
    return Installation("pip", f"{python} -I -m pip install --upgrade {wanted}")


def _checkout(origin: Mapping[str, Any]) -> str:
    return shlex.quote(unquote(urlsplit(str(origin.get("url", ""))).path) or "CHECKOUT")
