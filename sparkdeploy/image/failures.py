"""Why a build failed and what helps, from the end of its log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import yaml_text
from sparkdeploy.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.errors import NodeError
    from sparkdeploy.image.stages import Stage

_REFUSED = re.compile(r"^sparkdeploy-refused: (.*)$", re.MULTILINE)

_IN_THE_WAY = (
    "what the image itself says may stand in the way: its ONBUILD runs first, and its SHELL, PATH"
    " and other variables are what programs find there (`docker image inspect` shows them)"
)


def hints() -> list[dict[str, str]]:
    """Return what helps, by a pattern of a build's log; the first that is found counts."""
    rows: list[dict[str, str]] = yaml_text.load_file(Path(__file__).with_suffix(".yaml"))["rows"]
    return rows


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
    hint = next((row["hint"] for row in hints() if re.search(row["pattern"], detail)), None)
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
