"""Why a build failed and what helps, from the end of its log. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sparkdeploy.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.errors import NodeError
    from sparkdeploy.image.stages import Stage

_REFUSED = re.compile(r"^sparkdeploy-refused: (.*)$", re.MULTILINE)
_HINTS = {
    r"certificate verif|CERTIFICATE_VERIFY|UnknownIssuer|invalid peer certificate": (
        "behind a private CA, set `ca_bundle` in config.yaml to its PEM file"
    ),
    r"name resolution|resolve host|dns error|failed to lookup address|Could not resolve"
    r"|no such host|Name or service not known|Failed to resolve|Connection refused"
    r"|not a trusted or secure host": (
        "the build cannot reach the index: set https_proxy, or `index_url` or `wheelhouse` in"
        " config.yaml"
    ),
    r"[Nn]o space left on device|os error 28": (
        "free space under Docker's data root (`docker info` names it), or move it to a larger disk"
    ),
    r"[Hh]ash(es)? (mismatch|do not match)|DO NOT MATCH THE HASHES": (
        "a package differs from the lock: clear the wheelhouse or the mirror that served it"
    ),
    r"returned a non-zero code: 137": (
        "its container was killed: by hand, or because the machine ran out of memory"
        " (`dmesg | tail` says so)"
    ),
}

_IN_THE_WAY = (
    "what the image itself says may stand in the way: its ONBUILD runs first, and its SHELL, PATH"
    " and other variables are what programs find there (`docker image inspect` shows them)"
)


def failed(stage: Stage, where: str, log: Iterable[str]) -> BuildError:
    """Return the error of a build that Docker ended.

    `where` is the instruction, `step 3/8`; empty before the first. `log` is the end of its log.
    """
    detail = "\n".join(log)
    refused = _REFUSED.search(detail)
    if refused and stage.mod:
        return BuildError(
            f"the mod {stage.mod} does not fit {stage.below}: {refused[1]}",
            hint="it may be for another release of vLLM, or need a network (`network: true`); serve"
            " without mods: --set mods=[]",
            detail=detail,
        )
    if refused:
        return BuildError(
            f"engine {stage.engine} does not fit what it stands on: {refused[1]}",
            hint=stage.update_hint,
            detail=detail,
        )
    place = f" at {where}" if where else ""
    hint = next((hint for cause, hint in _HINTS.items() if re.search(cause, detail)), None)
    if hint is None and stage.is_of_others:
        hint = _IN_THE_WAY
    if hint is not None and "$TORCH_SOURCE" in detail:
        # That instruction asks PyTorch's index alone.
        own = "torch_cuda_index" if stage.runs_on == "cuda" else "torch_cpu_index"
        hint = hint.replace("`index_url`", f"`{own}`")
    return BuildError(
        f"stage {stage.name} of engine {stage.engine} did not build: it failed{place}",
        detail=detail,
        hint=hint,
    )


def ended_by_node(
    stage: Stage, error: NodeError, *, where: str = "", log: Iterable[str] = ()
) -> BuildError:
    """As `failed`, where Docker itself failed or no longer answered."""
    made = failed(stage, where, [*log, *filter(None, (error.message, error.detail))])
    made.hint = made.hint or error.hint
    return made
