"""Docker's own file of logins, where the SDK's words for what is wrong with it help nobody."""

from __future__ import annotations

import base64
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

from sparkdeploy.errors import NodeError

_STORE_ERROR = "Credentials store error: "
_HELPER = "docker-credential-"
# What it warns of it raises as well, as soon as the helper is asked.
warnings.filterwarnings("ignore", module=r"docker\.credentials")


def login_file() -> Path:
    """Return the file that Docker's client reads."""
    folder = os.environ.get("DOCKER_CONFIG")
    return (Path(folder) if folder else Path("~/.docker").expanduser()) / "config.json"


def refuse_unreadable() -> None:
    """Raise NodeError for a login that the SDK would stumble over, whatever it is asked for."""
    for registry, entry in _mapping("auths").items():
        cause = _fault(entry)
        if cause is not None:
            raise _unreadable(registry, cause)


def helper_failure(error: Exception) -> NodeError | None:
    """Return what is wrong with a login that another program keeps; None for other errors."""
    if not str(error).startswith(_STORE_ERROR):
        return None
    said = str(error.__cause__).strip().rstrip(".")
    helpers = _mapping("credHelpers").items()
    named = [registry for registry, helper in helpers if _names(said, helper)]
    return _unreadable(" and ".join(map(str, named)) or "the registry", said)


def _names(said: str, helper: object) -> bool:
    return re.search(rf"{_HELPER}{re.escape(str(helper))}(?![\w-])", said) is not None


def _unreadable(registry: str, cause: str) -> NodeError:
    return NodeError(
        f"the login for {registry} could not be read from {login_file()}: {cause}",
        hint=f"`docker login {registry}` writes it anew; or take it out of that file",
    )


def _fault(entry: object) -> str | None:
    """Return what is wrong with one entry of `auths`; None for one that the SDK can read."""
    if not isinstance(entry, dict):
        return "it is no mapping"
    if "identitytoken" in entry or "auth" not in entry:
        return None
    try:
        login = base64.b64decode(str(entry["auth"]).encode("ascii")).decode("utf-8")
    except ValueError:
        return "its `auth` is no base64 of USER:PASSWORD"
    return None if ":" in login else "its `auth` is no base64 of USER:PASSWORD"


def _mapping(name: str) -> dict[str, Any]:
    """Return a part of the file; empty where there is none, or nothing that could be read."""
    try:
        content = json.loads(login_file().read_text(encoding="utf-8"))
        part = content.get(name)
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    return part if isinstance(part, dict) else {}
