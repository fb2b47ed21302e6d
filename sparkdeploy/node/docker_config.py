"""Docker's own configuration: which engine its command asks, and the proxies of its containers.

The SDK knows no contexts, so what `docker ps` shows may be another engine than ours.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""What no proxy reaches: a guard asks its own server there."""
_BYPASS = ("NO_PROXY", "no_proxy")


@dataclass(frozen=True, slots=True)
class Context:
    """Whom Docker's command asks: a context by name, or the variable DOCKER_HOST."""

    name: str
    address: str
    """Empty where the context is named and not described."""


def config_folder(env: Mapping[str, str] = os.environ) -> Path:
    folder = env.get("DOCKER_CONFIG")
    return Path(folder) if folder else Path("~/.docker").expanduser()


def current_context(env: Mapping[str, str] = os.environ) -> Context:
    """Return whom Docker's command asks now; a file that nobody can read says nothing."""
    if address := env.get("DOCKER_HOST"):
        return Context("DOCKER_HOST", address)
    folder = config_folder(env)
    name = env.get("DOCKER_CONTEXT") or _read(folder / "config.json").get("currentContext")
    if not isinstance(name, str) or name in {"", "default"}:
        return Context("default", DEFAULT_ADDRESS)
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()
    meta: Any = _read(folder / "contexts" / "meta" / digest / "meta.json")
    for key in ("Endpoints", "docker", "Host"):
        meta = meta.get(key) if isinstance(meta, dict) else None
    return Context(name, meta if isinstance(meta, str) else "")


def other_context(address: str, env: Mapping[str, str] = os.environ) -> Context | None:
    """Return whom Docker's command asks where that is not the engine at an address."""
    found = current_context(env)
    return None if _real(found.address) == _real(address or DEFAULT_ADDRESS) else found


def environment(own: Mapping[str, str], env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return a container's variables; where a proxy is set, loopback is not asked through it.

    The SDK adds the proxies of config.json to every container, as Docker's command does.
    """
    section = _read(config_folder(env) / "config.json").get("proxies")
    kinds = section.values() if isinstance(section, dict) else ()
    given = [it for it in kinds if isinstance(it, dict)]
    in_own = any(name.lower().endswith("_proxy") and name not in _BYPASS for name in own)
    if not in_own and not any(it.get(f"{kind}Proxy") for it in given for kind in ("http", "https")):
        return dict(own)
    named = [own.get(name) for name in _BYPASS] + [it.get("noProxy") for it in given]
    words = ",".join(text for text in named if isinstance(text, str)).split(",")
    bypass = ",".join(dict.fromkeys([*filter(None, map(str.strip, words)), *LOOPBACK]))
    return {**own, **dict.fromkeys(_BYPASS, bypass)}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _real(address: str) -> str:
    """Return an address with the links of a socket's path followed: /run is /var/run as well."""
    path = address.removeprefix("unix://")
    return os.path.realpath(path) if path.startswith("/") else address
