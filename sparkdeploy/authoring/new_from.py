"""`new --from` without a model: a recipe that changes another, with what is usually changed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from sparkdeploy.about import UNIT
from sparkdeploy.recipe.editors import schema_line
from sparkdeploy.recipe.words import shown
from sparkdeploy.yaml_text import in_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from sparkdeploy.recipe.schema import Recipe

KNOBS: dict[str, tuple[str, ...]] = {
    "model": ("repo", "revision", "path", "served_name"),
    "serve": (
        *("port", "max_model_len", "max_num_seqs", "max_num_batched_tokens"),
        *("gpu_memory_utilization", "kv_cache_dtype", "attention_backend", "speculative"),
        *("reasoning_parser", "tool_call_parser", "enable_auto_tool_choice"),
        *("override_generation_config", "env", "extra_args"),
    ),
    "limits": ("memory_floor_gib", "startup_timeout_s"),
    "cluster": ("tensor_parallel", "pipeline_parallel", "min_nodes"),
}
"""What people change, by section; docs/recipes.md has the rest."""
COMMENT_COLUMN = 44


def changing_text(name: str, base: str, recipe: Recipe) -> str:
    """Return a recipe that is what its base is, until somebody takes a `#` away."""
    return "\n".join([*_head(name, base, recipe), *_sections(recipe), ""])


def _head(name: str, base: str, recipe: Recipe) -> Iterator[str]:
    yield schema_line("recipe")
    yield f"# Made by `sparkdeploy new`: {shown(base)}, to be changed. Take the # from a line that"
    yield "# you change; what stands there is what it says today. docs/recipes.md has every field."
    yield "schema: 1"
    yield f"name: {in_line(name)}"
    yield f"title: {in_line(f'{recipe.name}, changed')}"
    yield f"extends: {in_line(base)}"
    yield f"# engine: {in_line(recipe.engine)}"


def _sections(recipe: Recipe) -> Iterator[str]:
    for section, names in KNOBS.items():
        values = getattr(recipe, section)
        yield f"{section}:"
        for name in names:
            yield _knob(name, getattr(values, name), type(values).model_fields[name])


def _knob(name: str, value: Any, field: FieldInfo) -> str:  # noqa: ANN401 - of any field
    told = value.model_dump(exclude_defaults=True) if isinstance(value, BaseModel) else value
    line = f"  # {name}: {in_line(told)}"
    extra = field.json_schema_extra
    unit = str(extra.get(UNIT, "")) if isinstance(extra, dict) else ""
    words = re.split(r"[.;:](?: |$)", field.description or "")[0]
    remark = f"{unit}: {words[:1].lower()}{words[1:]}" if unit else words
    return f"{line:<{COMMENT_COLUMN}} # {remark}" if remark else line
