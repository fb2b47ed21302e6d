"""What is served instead of a model: its config.json in miniature, and no weights.

The miniature has the same architecture and keys, few layers, narrow and consistent. Widths that
kernels depend on (heads, latent vectors, states, kernels of convolutions) stay; counts of layers,
heads, experts and tokens, and the widths between layers, become small.
"""

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sparkdeploy import yaml_text
from sparkdeploy.checkpoint import durable
from sparkdeploy.checkpoint.architecture import architecture_of, config_sizes
from sparkdeploy.checkpoint.contents import CONFIG_FILE
from sparkdeploy.checkpoint.published import PublishedConfig
from sparkdeploy.checkpoint.tiny_model.build import config_files
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.stored_json import read_json

_BY_NUMBER: Final = {"gpt_oss"}
"""vLLM writes their conversations by tokens' numbers, which a smaller vocabulary lacks."""
_VOCABULARIES: Final = ("tokenizer.json", "tekken.json", "tokenizer.model", "vocab.txt")
_MARKS: Final = Path(__file__).with_name("marks.json")
"""What vLLM's parsers look for in a vocabulary (its tool_parsers/ and reasoning/, 0.32); a
tokenizer without them ends the server's start."""
HIDDEN = 256
_TABLES: Final = yaml_text.load_file(Path(__file__).with_name("stand_in.yaml"))
_MOST: Final[Mapping[str, int]] = _TABLES["most"]
_TOKEN_COUNTS: Final = ("vocab_size", "vocab_size_per_layer_input")


@dataclass(frozen=True, slots=True)
class StandInModel:
    folder: Path
    notes: tuple[str, ...]
    has_own_tokenizer: bool
    is_hybrid: bool = False


def make_stand_in(folder: Path, published: PublishedConfig, name: str) -> StandInModel:
    """Write the folder anew; what an earlier rehearsal left there goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    own = _copy_tokenizer(published, folder)
    vocabulary = None if own else _write_stand_in_tokenizer(folder)
    if published.config.get("model_type") in _BY_NUMBER:
        vocabulary = None
    small = shrink(published.config, vocabulary)
    durable.write_json(folder / CONFIG_FILE, small.config)
    notes = [
        f"{name} -> a stand-in with dummy weights: its config.json {published.origin}, shrunk",
        *small.notes,
    ]
    if not own:
        notes.append("tokenizer and chat template are a stand-in's: the model's own are not here")
    return StandInModel(folder, tuple(notes), own, small.is_hybrid)


def _copy_tokenizer(published: PublishedConfig, folder: Path) -> bool:
    """Copy what small files of the model are at hand; a vocabulary must be among them."""
    source = published.folder
    if source is None or not any((source / name).is_file() for name in _VOCABULARIES):
        return False
    for name in _TABLES["tokenizer_files"]:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    return True


def _write_stand_in_tokenizer(folder: Path) -> int:
    """Write the twin's tokenizer with marks that parsers know; return its tokens."""
    files = config_files(TinyShape())
    tokenizer: dict[str, Any] = files["tokenizer.json"]
    first = TinyShape().vocab
    known = {item["content"] for item in tokenizer["added_tokens"]}
    marks = [mark for mark in read_json(_MARKS) if mark not in known]
    tokenizer["added_tokens"] += [_mark(first + at, mark) for at, mark in enumerate(marks)]
    settings = files["tokenizer_config.json"]
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings["added_tokens_decoder"] |= {
        str(first + at): {key: value for key, value in _mark(0, mark).items() if key != "id"}
        for at, mark in enumerate(marks)
    }
    durable.write_text(folder / "tokenizer.json", json.dumps(tokenizer))
    durable.write_text(folder / "tokenizer_config.json", json.dumps(settings))
    durable.write_text(folder / "chat_template.jinja", settings["chat_template"])
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        durable.write_text(folder / name, json.dumps(files[name]))
    return -(-(first + len(marks)) // 64) * 64


def _mark(number: int, content: str) -> dict[str, object]:
    properties = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": number, "content": content, **dict.fromkeys(properties, False)}


@dataclass(frozen=True, slots=True)
class Shrunken:
    config: dict[str, Any]
    notes: tuple[str, ...]
    is_hybrid: bool = False


def shrink(config: Mapping[str, Any], vocabulary: int | None = None) -> Shrunken:
    """Return the miniature; with `vocabulary` its tokens are so many.

    Raises UnknownArchitectureError for layers that are not known: what could be left out of them
    nobody could say. Raises CheckpointError for numbers that no model has.
    """
    architecture = architecture_of(config)
    # The shortest beginning that has a layer of every kind; two at least.
    kinds = [(layer.mixers, layer.experts is not None) for layer in architecture.layers]
    layers = max(2, *(kinds.index(kind) + 1 for kind in set(kinds)))
    small: dict[str, Any] = copy.deepcopy(dict(config))
    found = config_sizes(small).text  # the very object that describes the language model
    text = found if isinstance(found, dict) else small
    notes = []
    for gone, why in (
        ("quantization_config", "the CPU engine computes it in 16 bits"),
        ("auto_map", "vLLM's own class of this model is served"),
    ):
        if small.pop(gone, None) is not None:
            notes.append(f"{gone} of config.json is left out: {why}")
    text.pop("quantization_config", None)
    dense = text.get("first_k_dense_replace")
    if type(dense) is int and dense > 1:
        # One dense layer stands for all that come before the experts.
        layers = max(2, layers - dense + 1)
    _shrink_text(text, len(architecture.layers), layers)
    notes.append(f"{len(architecture.layers)} layers -> {layers}: each kind is among them")
    _shrink_towers(small, text["hidden_size"])
    if vocabulary is not None:
        _renumber(small, text, vocabulary)
    return Shrunken(small, tuple(notes), architecture.recurrent is not None)


def _shrink_text(text: dict[str, Any], count: int, layers: int) -> None:
    for name, value in list(text.items()):
        is_pattern = isinstance(value, str) and name == "hybrid_override_pattern"
        if (isinstance(value, list) or is_pattern) and len(value) == count > 2:
            text[name] = value[:layers]
        elif type(value) is int and name in _MOST:
            text[name] = min(value, _MOST[name])
    for name in ("num_hidden_layers", "n_layer", "num_layers"):
        if name in text:
            text[name] = layers
    # Lists that name layers by their numbers keep those that are left.
    for name in ("mlp_only_layers", "attn_layer_indices", "moe_layers", "dense_layers"):
        value = text.get(name)
        if isinstance(value, list) and all(type(item) is int for item in value):
            text[name] = [item for item in value if item < layers]
    _shrink_heads(text)
    _shrink_states(text)


def _shrink_heads(text: dict[str, Any]) -> None:
    heads = text.get("num_attention_heads", text.get("n_head"))
    if type(heads) is not int or heads < 1:
        text["hidden_size"] = min(text["hidden_size"], HIDDEN)
        return
    own = text.get("num_key_value_heads")
    kv_heads = own if type(own) is int and own > 0 else heads
    fewer = min(kv_heads, 2)
    queries = fewer * max(1, min(heads // kv_heads, 4))
    if "kv_lora_rank" in text:
        # A latent cache is one for all heads, and configurations count as many of each.
        queries = min(heads, 4)
    width = text.get("head_dim") or text["hidden_size"] // heads
    has_own_width = text.get("head_dim") is not None or "kv_lora_rank" in text
    # Without a width of its own a head is as wide as hidden size and heads make it.
    text["hidden_size"] = HIDDEN if has_own_width else queries * width
    text["num_attention_heads" if "num_attention_heads" in text else "n_head"] = queries
    if own is not None:
        text["num_key_value_heads"] = queries if "kv_lora_rank" in text else fewer
    for name in ("num_global_key_value_heads", "swa_num_key_value_heads"):
        if type(text.get(name)) is int:
            text[name] = min(text[name], fewer)


def _shrink_states(text: dict[str, Any]) -> None:
    if type(text.get("linear_num_key_heads")) is int:
        ratio = max(1, min(4, text["linear_num_value_heads"] // text["linear_num_key_heads"]))
        text["linear_num_key_heads"], text["linear_num_value_heads"] = 2, 2 * ratio
    heads = next((it for it in ("mamba_num_heads", "mamba_n_heads", "num_heads") if it in text), "")
    width = text.get("mamba_head_dim") or text.get("mamba_d_head") or text.get("head_dim") or 64
    if heads and type(width) is int:
        expand = text.get("mamba_expand") or text.get("expand") or 2
        inner = expand * text["hidden_size"]
        text[heads] = max(1, inner // width)
        if "mamba_d_ssm" in text:
            text["mamba_d_ssm"] = text[heads] * width


def _shrink_towers(small: dict[str, Any], hidden: int) -> None:
    """A tower stays as wide as it is, with two layers; what leads out of it fits the text."""
    for part in ("vision_config", "audio_config"):
        tower = small.get(part)
        if not isinstance(tower, dict):
            continue
        for name in ("depth", "num_hidden_layers"):
            if type(tower.get(name)) is int:
                tower[name] = min(tower[name], 2)
        for name in ("deepstack_visual_indexes", "fullatt_block_indexes"):
            if isinstance(tower.get(name), list):
                tower[name] = [1] if tower[name] else []
        for name in ("out_hidden_size", "text_hidden_size", "projection_dim"):
            if type(tower.get(name)) is int:
                tower[name] = hidden


def _renumber(small: dict[str, Any], text: dict[str, Any], vocabulary: int) -> None:
    """Tokens that config.json names lie within the vocabulary that there is."""
    for name in _TOKEN_COUNTS:
        if name in text:
            text[name] = vocabulary
    for part in (small, text):
        for name, value in part.items():
            is_token = name.endswith(("_token_id", "_token_index"))
            if is_token and type(value) is int and value >= vocabulary:
                part[name] = vocabulary - 1
            elif is_token and isinstance(value, list):
                part[name] = [min(it, vocabulary - 1) for it in value if type(it) is int]
