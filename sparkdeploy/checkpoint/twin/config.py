"""The JSON files of a twin: files.json, where `$NAME` stands for what shape and tokenizer decide.

Sampling settings are the model's own. An image has 64 tokens at most, so that one fits a context
of a few hundred.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkdeploy.checkpoint.twin.shape import FULL_ATTENTION_INTERVAL, ExpertFormat, TwinShape
from sparkdeploy.checkpoint.twin.tensors import TEXT_PREFIX, VISION_PATCH, VISION_POSITIONS
from sparkdeploy.checkpoint.twin.tokenizer import TwinTokenizer
from sparkdeploy.stored_json import read_json

CHAT_TEMPLATE_FILE = "chat_template.jinja"
_FOLDER = Path(__file__).parent
_KEPT = {"bits": 16, "data_type": "float"}


def chat_template() -> str:
    return (_FOLDER / CHAT_TEMPLATE_FILE).read_text(encoding="utf-8")


def config_files(shape: TwinShape) -> dict[str, Any]:
    """The content of every JSON file that describes a twin, by its name."""
    tokenizer = TwinTokenizer(shape.vocab)
    templates = read_json(_FOLDER / "files.json")
    facts = {
        **tokenizer.special_ids,
        **asdict(shape),
        "full_attention_interval": FULL_ATTENTION_INTERVAL,
        "layer_types": list(shape.layer_types),
        "vision_intermediate": 2 * shape.vision_hidden,
        "vision_patch": VISION_PATCH,
        "vision_positions": VISION_POSITIONS,
        "blocks": f"{TEXT_PREFIX}.layers",
        "kept_modules": {name: dict(_KEPT) for name in _kept_modules(shape)},
        "chat_template": chat_template(),
        **tokenizer.facts(),
    }
    facts["quantization"] = _filled(templates["quantization_config.json"], facts)
    return {name: _filled(template, facts) for name, template in templates.items()}


def _filled(template: object, facts: Mapping[str, object]) -> object:
    """Put the fact of its name in the place of every `$NAME`."""
    if isinstance(template, dict):
        return {key: _filled(value, facts) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, facts) for value in template]
    if isinstance(template, str) and template.startswith("$"):
        return facts[template[1:]]
    return template


def _kept_modules(shape: TwinShape) -> list[str]:
    """Linear layers left at 16 bits, by their names in the checkpoint."""
    names = ["lm_head", "mtp.fc"]
    names += [f"mtp.layers.0.self_attn.{name}_proj" for name in "qkvo"]
    names += _kept_in_mlp("mtp.layers.0.mlp")
    for layer, kind in enumerate(shape.layer_types):
        prefix = f"{TEXT_PREFIX}.layers.{layer}"
        names += _kept_in_mlp(f"{prefix}.mlp")
        if shape.expert_format is ExpertFormat.BF16:
            names.append(f"{prefix}.mlp.experts")
        if kind == "linear_attention" and not shape.in_proj_ab_is_packed:
            names += [f"{prefix}.linear_attn.in_proj_a", f"{prefix}.linear_attn.in_proj_b"]
    for block in range(shape.vision_depth):
        prefix = f"model.visual.blocks.{block}"
        names += [f"{prefix}.attn.qkv", f"{prefix}.attn.proj"]
        names += [f"{prefix}.mlp.linear_fc1", f"{prefix}.mlp.linear_fc2"]
    return [*names, "model.visual.merger.linear_fc1", "model.visual.merger.linear_fc2"]


def _kept_in_mlp(mlp: str) -> list[str]:
    shared = [f"{mlp}.shared_expert.{name}_proj" for name in ("gate", "up", "down")]
    return [f"{mlp}.gate", f"{mlp}.shared_expert_gate", *shared]
