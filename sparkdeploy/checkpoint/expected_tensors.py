"""The tensors that a config.json promises, by recipes/facts/tensors.yaml, and what lacks of them.

Names stand behind the prefix that each repository has for its language model.
"""

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from sparkdeploy.checkpoint.architecture import ConfigSizes, architecture_of, config_sizes
from sparkdeploy.checkpoint.contents import ModelSizes, mtp_names, summary
from sparkdeploy.checkpoint.layers import Attention, Latent, Layer, Mixer, Recurrent
from sparkdeploy.checkpoint.repo_files import printable
from sparkdeploy.checkpoint.safetensors import TensorInfo
from sparkdeploy.recipe.document import read_document
from sparkdeploy.settings import resources

Shape = tuple[int, ...]
_MAMBA: Final = "nemotron_h"
_FLOATS: Final = frozenset({"BF16", "F16", "F32", "F8_E4M3", "F8_E5M2"})
_EMBEDDINGS: Final = ("embed_tokens.weight", "embeddings.weight")
_EXPERT: Final = re.compile(r"^(.*\.experts)\.\d+\.(gate_proj|up_proj|down_proj)\.weight$")
_FUSED: Final = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"}


def expected_tensors(config: Mapping[str, Any]) -> dict[str, Shape] | None:
    """Return what a checkpoint of the language model has; None for a type not known so far."""
    architecture, sizes = architecture_of(config), config_sizes(config)
    model_type, table = architecture.model_type, _table()
    if model_type not in table["model_types"]:
        return None
    own_head = 0 if architecture.ties_embeddings else architecture.vocab_size
    ends = {"vocab": architecture.vocab_size, "own_head": own_head}
    ends["hidden"] = architecture.hidden_size
    outside = table.get(f"outside_of_layers_of_{model_type}", table["outside_of_layers"])
    found = dict(_present(outside, ends, sizes))
    # Layers that are alike have the same tensors.
    of_layer: dict[Layer, dict[str, Shape]] = {}
    for index, layer in enumerate(architecture.layers):
        if layer not in of_layer:
            known = {"hidden": architecture.hidden_size, **_layer_sizes(sizes, model_type, layer)}
            parts = (table["parts"][part] for part in table["model_types"][model_type])
            of_layer[layer] = {
                name: shape for part in parts for name, shape in _present(part, known, sizes)
            }
        found |= {f"layers.{index}.{name}": shape for name, shape in of_layer[layer].items()}
    return found


@functools.cache
def _table() -> dict[str, Any]:
    return read_document(resources() / "recipes" / "facts" / "tensors.yaml").content


def _present(
    part: Mapping[str, str], known: Mapping[str, int], sizes: ConfigSizes
) -> Iterator[tuple[str, Shape]]:
    """Yield those of a part whose sizes are all there, an expert's for each expert."""
    for name, text in part.items():
        widths, _, condition = text.partition(" if ")
        shape = tuple(1 if it == "1" else known.get(it, 0) for it in widths.split(" x "))
        if not all(shape) or (condition and not _holds(condition, known, sizes)):
            continue
        count = known["experts"] if "{expert}" in name else 1
        yield from ((name.replace("{expert}", str(expert)), shape) for expert in range(count))


def _holds(condition: str, known: Mapping[str, int], sizes: ConfigSizes) -> bool:
    name, _, value = condition.partition("=")
    if value:
        return bool(sizes.text.get(name) == value)
    return bool(known.get(name)) or sizes.says(name)


def _layer_sizes(sizes: ConfigSizes, model_type: str, layer: Layer) -> dict[str, int]:
    """Return the sizes that a layer has, by the names of tensors.yaml."""
    known: dict[str, int] = {}
    for mixer in layer.mixers:
        known |= _mixer_sizes(sizes, model_type, mixer)
    if layer.experts is not None:
        width = layer.experts.width
        shared_count = sizes.optional("n_shared_experts") or 0
        mixer_shared = sizes.optional("moe_shared_expert_intermediate_size") or 0
        known |= {
            "experts": layer.experts.count,
            "expert_width": width,
            "two_expert_widths": 2 * width,
            "shared_width": sizes.optional("shared_expert_intermediate_size") or 0,
            "joint_shared_width": shared_count * width,
            "mixer_shared_width": mixer_shared if shared_count else 0,
        }
    elif model_type != _MAMBA:
        known["dense_width"] = sizes.number("intermediate_size")
    elif not layer.mixers:
        known["lone_width"] = sizes.number("intermediate_size")
    return known


def _mixer_sizes(sizes: ConfigSizes, model_type: str, mixer: Mixer) -> dict[str, int]:
    if isinstance(mixer, Attention):
        queries = mixer.query_heads * mixer.key_width
        return {
            "attention_heads": mixer.query_heads,
            "key_width": mixer.key_width,
            "queries": queries,
            "gated_queries": 2 * queries,
            "keys": mixer.kv_heads * mixer.key_width,
            "values": mixer.kv_heads * mixer.value_width,
        }
    return _latent(sizes, mixer) if isinstance(mixer, Latent) else _state(sizes, model_type, mixer)


def _latent(sizes: ConfigSizes, mixer: Latent) -> dict[str, int]:
    value_width = sizes.number("v_head_dim")
    rank = sizes.optional("q_lora_rank") or 0
    queries = mixer.query_heads * (mixer.head_width - value_width + mixer.rope_width)
    heads = sizes.number("index_n_heads") if mixer.indexer_width else 0
    return {
        "query_rank": rank,
        "latent_queries": queries,
        "direct_queries": 0 if rank else queries,
        "latent_width": mixer.width,
        "latent_rank": mixer.rank,
        "unfolded": mixer.query_heads * mixer.head_width,
        "latent_values": mixer.query_heads * value_width,
        "indexer_heads": heads,
        "indexer_width": mixer.indexer_width,
        "indexer_queries": heads * mixer.indexer_width,
        "indexer_inputs": rank or sizes.number("hidden_size"),
    }


def _state(sizes: ConfigSizes, model_type: str, mixer: Recurrent) -> dict[str, int]:
    found = {"channels": mixer.channels, "state_heads": mixer.heads}
    found["kernel"] = mixer.window_tokens + 1
    if model_type == _MAMBA:
        channels = mixer.channels + mixer.groups * mixer.group_channels
        inputs = mixer.channels + channels + mixer.heads
        return {**found, "mamba_channels": channels, "mamba_inputs": inputs}
    width = sizes.number("linear_value_head_dim")
    return {
        **found,
        "value_width": width,
        "state_values": mixer.heads * width,
        "channels_and_values": mixer.channels + mixer.heads * width,
        "two_state_heads": 2 * mixer.heads,
    }


def expectation_problems(
    expected: Mapping[str, Shape], tensors: Mapping[str, TensorInfo]
) -> Iterator[str]:
    """Yield what is missing or has another shape; further tensors are nobody's business."""
    prefix = _prefix(tensors)
    missing = []
    for name, shape in expected.items():
        found = _found(name, prefix, tensors)
        if found is None:
            missing.append(name)
        # Experts that are fused into one tensor have one more dimension.
        elif found.dtype in _FLOATS and found.shape != shape and len(found.shape) != len(shape) + 1:
            yield (
                f"{printable(found.name)} is {list(found.shape)}, config.json says {list(shape)}"
            )
    if missing:
        yield f"{summary(missing)} are missing"


def _prefix(tensors: Mapping[str, TensorInfo]) -> str:
    """What stands before the language model's names, by its embeddings; the shortest such name."""
    ends = [
        (len(name), name.removesuffix(end))
        for name in tensors
        for end in _EMBEDDINGS
        if name == end or name.endswith("." + end)
    ]
    return min(ends)[1] if ends else "model."


def _found(name: str, prefix: str, tensors: Mapping[str, TensorInfo]) -> TensorInfo | None:
    if name == "lm_head.weight":
        heads = (it for it in tensors if it.endswith((name, "lm_head.qweight")))
        return next((tensors[it] for it in heads), None)
    return next((tensors[it] for it in _forms(prefix + name) if it in tensors), None)


def _forms(name: str) -> Iterator[str]:
    """Yield the names under which a tensor may be stored: as it is, packed, or fused."""
    yield name
    if name.endswith(".weight"):
        stem = name.removesuffix("weight")
        yield stem + "qweight"
        yield stem + "weight_packed"
    yield name + "_blocks"
    fused = _fused(name)
    if fused is not None:
        yield from (fused, f"{fused}.weight", f"{fused}_blocks")


def _fused(name: str) -> str | None:
    """Return what has the weights of all experts of a layer, for the weight of one."""
    expert = _EXPERT.match(name)
    return f"{expert[1]}.{_FUSED[expert[2]]}" if expert is not None else None


def missing_mtp(sizes: ModelSizes, tensors: Collection[str]) -> list[str]:
    """Return the tensors of the draft layers that lack, whether their experts are fused or not."""
    missing = mtp_names(sizes) - set(tensors)
    return sorted(name for name in missing if _fused(name) not in tensors)
