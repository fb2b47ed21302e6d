"""The greedy text without speculation: recorded once for the same images and weights."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint import durable
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.node.private_folder import make_private
from sparkdeploy.stored_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.plan.steps import Plan

_WITHOUT_EFFECT = {"speculative", "port", "max_num_batched_tokens"}


@dataclass(frozen=True, slots=True)
class Answer:
    prompt: str
    text: str
    tokens: int
    duration_s: float


def reference_path(plan: Plan, asked: Mapping[str, object], state_dir: Path) -> Path:
    """Return the file for these images, this conversion, these settings and what is asked of whom.

    Speculation, MTP weights, the port and how many tokens a step may have are left out: they must
    not change the text.
    """
    recipe = plan.resolved.recipe
    inputs = {
        "image": plan.images[-1].stage.tag,
        "asked": dict(asked),
        "fp8": recipe.checkpoint.fp8_dense.model_dump(),
        "lm_head": recipe.checkpoint.lm_head,
        "shared_experts": recipe.checkpoint.shared_experts,
        "serve": recipe.serve.model_dump(exclude=_WITHOUT_EFFECT),
    }
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return state_dir / "rehearsals" / f"{digest[:32]}.json"


def read_reference(path: Path) -> dict[str, str] | None:
    """Return text by prompt, or None when none is recorded or the file is broken."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or not content:
        return None
    return {str(key): str(value) for key, value in content.items()}


def write_reference(path: Path, answers: Sequence[Answer]) -> None:
    """Record the texts; the file appears whole or not at all."""
    make_private(path.parent)
    durable.write_text(path, json.dumps({item.prompt: item.text for item in answers}))


def compare_with_reference(answers: Sequence[Answer], texts: Mapping[str, str]) -> None:
    """Raise UnhealthyError naming the first text that is not the recorded one."""
    for answer in answers:
        expected = texts.get(answer.prompt)
        if expected != answer.text:
            raise UnhealthyError(
                f"greedy text for {answer.prompt!r} is not what it is without speculation",
                detail=f"without: {expected!r}\nwith:    {answer.text!r}",
                hint="the drafter or a kernel is wrong; `--fresh` makes the reference anew",
            )
