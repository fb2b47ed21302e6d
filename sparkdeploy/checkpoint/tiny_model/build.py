"""Write a twin to disk."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkdeploy.checkpoint import durable, safetensors
from sparkdeploy.checkpoint.contents import INDEX_FILE, index_content, read_tensors
from sparkdeploy.checkpoint.tiny_model import tensors
from sparkdeploy.checkpoint.tiny_model.grammar import Grammar
from sparkdeploy.checkpoint.tiny_model.shape import FULL_ATTENTION_INTERVAL, ExpertFormat, TinyShape
from sparkdeploy.checkpoint.tiny_model.tokenizer import TinyTokenizer
from sparkdeploy.errors import CheckpointError
from sparkdeploy.stored_json import read_json

IDENTITY_FILE = "twin.json"
MTP_FILE = "model_extra_tensors.safetensors"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
_FOLDER = Path(__file__).parent
_KEPT = {"bits": 16, "data_type": "float"}

_FORMAT = 4
"""Counts up whenever the same shape and seed give other bytes."""


def build_tiny_model(out: Path, shape: TinyShape, *, seed: int) -> None:
    """Make the folder `out` a twin: the same bytes for the same shape and seed, on any machine."""
    identity = {"format": _FORMAT, "seed": seed, "shape": asdict(shape)}
    write_once(out, identity, lambda folder: _write_twin(folder, shape, seed))


def write_once(out: Path, identity: object, write: Callable[[Path], None]) -> None:
    """Let `write` fill the folder `out`, all at once, unless it did so for the same identity."""
    with contextlib.suppress(OSError, ValueError):
        if read_json(out / IDENTITY_FILE) == identity:
            return
    try:
        with durable.staged_folder(out) as staging:
            write(staging)
            durable.write_json(staging / IDENTITY_FILE, identity)
    except OSError as error:
        raise CheckpointError(f"{out}: the twin cannot be written: {error}") from error


def _write_twin(folder: Path, shape: TinyShape, seed: int) -> None:
    for name, shard in _shards(shape, seed).items():
        safetensors.write_file(folder / name, shard)
    files = {INDEX_FILE: index_content(read_tensors(folder)), **config_files(shape)}
    durable.write_text(folder / CHAT_TEMPLATE_FILE, files["tokenizer_config.json"]["chat_template"])
    for name, content in files.items():
        durable.write_json(folder / name, content)


def _shards(shape: TinyShape, seed: int) -> dict[str, tensors.Tensors]:
    """Two numbered shards, so that nothing relies on one, and the draft layer in Intel's file."""
    text = Grammar(shape, seed, TinyTokenizer(shape.vocab).printed_ids)
    main = {**tensors.language_tensors(text), **tensors.vision_tensors(shape, seed)}
    names = list(main)
    middle = len(names) // 2
    return {
        "model-00001-of-00002.safetensors": {name: main[name] for name in names[:middle]},
        "model-00002-of-00002.safetensors": {name: main[name] for name in names[middle:]},
        MTP_FILE: tensors.mtp_tensors(shape, seed),
    }


def config_files(shape: TinyShape) -> dict[str, Any]:
    """The content of every JSON file that describes a twin, by its name.

    In files.json `$NAME` stands for what shape and tokenizer decide. Sampling settings are the
    model's own. An image has 64 tokens at most, so that one fits a context of a few hundred.
    """
    tokenizer = TinyTokenizer(shape.vocab)
    templates = read_json(_FOLDER / "files.json")
    facts = {
        **tokenizer.special_ids,
        **asdict(shape),
        "full_attention_interval": FULL_ATTENTION_INTERVAL,
        "layer_types": list(shape.layer_types),
        "vision_intermediate": 2 * shape.vision_hidden,
        "vision_patch": tensors.VISION_PATCH,
        "vision_positions": tensors.VISION_POSITIONS,
        "blocks": f"{tensors.TEXT_PREFIX}.layers",
        "kept_modules": {name: dict(_KEPT) for name in _kept_modules(shape)},
        "chat_template": (_FOLDER / CHAT_TEMPLATE_FILE).read_text(encoding="utf-8"),
        **tokenizer.facts(),
    }
    facts["quantization"] = filled(templates["quantization_config.json"], facts)
    return {name: filled(template, facts) for name, template in templates.items()}


def filled(template: object, facts: Mapping[str, object]) -> Any:  # noqa: ANN401 - any JSON
    """Put the fact of its name in the place of every `$NAME`."""
    if isinstance(template, dict):
        return {key: filled(value, facts) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(value, facts) for value in template]
    if isinstance(template, str) and template.startswith("$"):
        return facts[template[1:]]
    return template


def _kept_modules(shape: TinyShape) -> list[str]:
    """Linear layers left at 16 bits, by their names in the checkpoint."""
    names = ["lm_head", "mtp.fc"]
    names += [f"mtp.layers.0.self_attn.{name}_proj" for name in "qkvo"]
    names += _kept_in_mlp("mtp.layers.0.mlp")
    for layer, kind in enumerate(shape.layer_types):
        prefix = f"{tensors.TEXT_PREFIX}.layers.{layer}"
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
