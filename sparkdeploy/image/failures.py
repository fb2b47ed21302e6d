"""Why a build failed, in words that help: from the end of its log to a BuildError. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkdeploy.errors import BuildError

if TYPE_CHECKING:
    from sparkdeploy.errors import NodeError

_REFUSED = re.compile(r"^sparkdeploy-refused: (.*)$", re.MULTILINE)
_HINTS = (
    (
        re.compile(r"certificate verif|CERTIFICATE_VERIFY|UnknownIssuer|invalid peer certificate"),
        "behind a private CA, set `ca_bundle` in config.yaml to its PEM file",
    ),
    (
        re.compile(
            r"name resolution|resolve host|dns error|failed to lookup address|Could not resolve"
            r"|no such host|Name or service not known|Failed to resolve|Connection refused"
            r"|not a trusted or secure host"
        ),
        "the build cannot reach the index: set https_proxy, or `index_url` or `wheelhouse` in"
        " config.yaml",
    ),
    (
        re.compile(r"[Nn]o space left on device|os error 28"),
        "free space under Docker's data root (`docker info` names it), or move it to a larger disk",
    ),
    (
        re.compile(r"[Hh]ash(es)? (mismatch|do not match)|DO NOT MATCH THE HASHES"),
        "a package differs from the lock: clear the wheelhouse or the mirror that served it",
    ),
    (
        re.compile(r"returned a non-zero code: 137"),
        "its container was killed: by hand, or because the machine ran out of memory"
        " (`dmesg | tail` says so)",
    ),
)


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a build stood when it ended."""

    stage: str
    engine: str
    where: str = ""
    """The instruction, `step 3/8`; empty before the first."""
    tail: tuple[str, ...] = ()
    """The last lines of its log, the error among them."""


def hint_for(log: str) -> str | None:
    """Return what helps against a failure known by its log."""
    return next((hint for pattern, hint in _HINTS if pattern.search(log)), None)


def failed(scene: Scene) -> BuildError:
    """Return the error of a build that Docker ended."""
    detail = "\n".join(scene.tail)
    if refused := _REFUSED.search(detail):
        return BuildError(
            f"engine {scene.engine} does not fit what it stands on: {refused[1]}", detail=detail
        )
    where = f" at {scene.where}" if scene.where else ""
    return BuildError(
        f"stage {scene.stage} of engine {scene.engine} did not build: it failed{where}",
        detail=detail,
        hint=hint_for(detail),
    )


def ended_by_node(scene: Scene, error: NodeError) -> BuildError:
    """Return the error of a build whose engine answered before it began, and then no more."""
    said = tuple(text for text in (error.message, error.detail) if text)
    made = failed(replace(scene, tail=(*scene.tail, *said)))
    made.hint = made.hint or error.hint
    return made
