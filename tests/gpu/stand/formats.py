"""Make small models as publishers ship them: other architectures, other quantisations.

Each begins as the tiny Qwen3.5 whose grammar decides its text by wide margins, at 16 bits: `nvfp4`
(Qwen3.6: experts NVFP4, all else left at 16 bits), `next-fp8` (Qwen3-Next in its own layout,
experts FP8 in blocks) and `dense` (Qwen3.6-27B's architecture at 16 bits). All have their MTP layer
at 16 bits. Beside each lie two overlays: `-draft` has the draft vocabulary alone, `-fast` also FP8
for what is left and an INT8 head.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparkdeploy.checkpoint.contents import index_content, read_tensors
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.checkpoint.draft_vocabulary import DraftVocabulary, rank_tokens
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.safetensors import TensorData, read_header, write_file
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.checkpoint.tiny_model import grammar
from sparkdeploy.checkpoint.tiny_model.build import build_tiny_model
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape

SHAPE = TinyShape(hidden=512, vocab=4096, attention_heads=4, expert_intermediate=256)
SEED = 7
ROWS = SHAPE.vocab // 2
DRAFT = DraftVocabulary(rank_tokens({}, special=(), vocabulary=SHAPE.vocab), 0, 0, ())
DRAFTING = Conversion(draft_rows=ROWS, draft_origin=DRAFT.origin)
FAST = replace(DRAFTING, fp8_mode="online", fp8_layers="all", lm_head="int8")
TYPES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3",
         torch.uint8: "U8"}  # fmt: skip
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
TEXT = "model.language_model."


def make(which: str, root: Path, shape: TinyShape = SHAPE) -> None:
    """Write `root`/twins/WHICH, and its overlays in `root`/m/ck."""
    factor = 128 / shape.hidden
    grammar._HEAD_SIZE *= factor
    grammar._UNPRINTED_SIZE *= factor
    (root / "twins").mkdir(parents=True, exist_ok=True)
    base, out = root / "twins" / f"{which}-base", root / "twins" / which
    build_tiny_model(base, shape, seed=SEED)
    grammar._HEAD_SIZE /= factor
    grammar._UNPRINTED_SIZE /= factor
    out.mkdir(exist_ok=True)
    tensors, config = dict(plain(base)), json.loads((base / "config.json").read_text())
    del config["quantization_config"]
    tensors, config = FORMATS[which](tensors, config)
    write_file(out / "model.safetensors", {name: _data(it) for name, it in tensors.items()})
    (out / "config.json").write_text(json.dumps(config))
    for file in base.glob("*token*"):
        (out / file.name).write_bytes(file.read_bytes())
    (out / "model.safetensors.index.json").write_text(json.dumps(index_content(read_tensors(out))))
    for name, conversion in (("draft", DRAFTING), ("fast", FAST)):
        built = build_overlay(
            open_folder(out), conversion, root / "m" / "ck" / f"{which}-{name}", None, DRAFT
        )
        print(f"{which}-{name}: {built.fp8_layer_count} fp8", flush=True)


def plain(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield a tiny model's tensors, what is INT4 as BF16."""
    found = {name: _tensor(folder / it.file, name) for name, it in read_tensors(folder).items()}
    for name, tensor in found.items():
        stem, _, last = name.rpartition(".")
        if last in ("qzeros", "scales"):
            continue
        if last != "qweight":
            yield name, tensor
            continue
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        codes = ((tensor.unsqueeze(1) >> shifts.view(1, -1, 1)) & 15).reshape(-1, tensor.shape[1])
        scales = found[f"{stem}.scales"].float().repeat_interleave(128, 0)
        yield f"{stem}.weight", ((codes - 8).float() * scales).t().contiguous().bfloat16()


def _tensor(path: Path, name: str) -> Tensor:
    header = read_header(path)
    info = header.tensors[name]
    with path.open("rb") as file:
        content = bytearray(header.read(file, info))
    dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I32": torch.int32}
    return torch.frombuffer(content, dtype=dtype[info.dtype]).view(info.shape)


def _data(tensor: Tensor) -> TensorData:
    content = tensor.contiguous().cpu()
    raw = content.view(torch.uint8) if content.dim() else content.reshape(1).view(torch.uint8)
    return TYPES[tensor.dtype], tuple(tensor.shape), raw.numpy().tobytes()


def _nvfp4(tensors: dict[str, Tensor], config: Any) -> tuple[dict[str, Tensor], Any]:
    """Experts as compressed-tensors packs them: e2m1, a scale of e4m3 for 16, one for all."""
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not re.search(r"language_model.*\.experts\.\d+\.", name):
            packed[name] = tensor
            continue
        stem = name.removesuffix(".weight")
        groups = tensor.float().view(tensor.shape[0], -1, 16)
        whole = 448 * 6 / groups.abs().amax()
        scales = (groups.abs().amax(2) / 6 * whole).clamp_min(2**-6).to(torch.float8_e4m3fn)
        sizes = groups / (scales.float() / whole).unsqueeze(2)
        codes = (sizes.abs().unsqueeze(-1) - FP4).abs().argmin(-1) + 8 * (sizes < 0)
        codes = codes.view(tensor.shape).to(torch.uint8)
        packed[f"{stem}.weight_packed"] = codes[:, ::2] | codes[:, 1::2] << 4
        packed[f"{stem}.weight_scale"] = scales
        packed[f"{stem}.weight_global_scale"] = whole.reshape(1)
        packed[f"{stem}.input_global_scale"] = torch.tensor([448.0 * 6 / 8])
    kinds = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
             "symmetric": True}  # fmt: skip
    group = {"targets": ["Linear"], "format": "nvfp4-pack-quantized",
             "weights": {**kinds, "dynamic": False},
             "input_activations": {**kinds, "dynamic": "local"}}  # fmt: skip
    ignored = ["lm_head", "re:.*visual.*", "re:.*self_attn.*", "re:.*linear_attn.*", "re:mtp.*",
               "re:.*mlp.gate$", "re:.*shared_expert.*"]  # fmt: skip
    stated = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
              "quantization_status": "compressed", "config_groups": {"group_0": group},
              "ignore": ignored}  # fmt: skip
    return packed, {**config, "quantization_config": stated}


def _next(tensors: dict[str, Tensor], config: Any) -> tuple[dict[str, Tensor], Any]:
    """Qwen3-Next: no tower, and projections of Gated DeltaNet by key head."""
    text = config["text_config"]
    heads, size = text["linear_num_key_heads"], text["linear_key_head_dim"]
    laid: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = name.replace(TEXT, "model.")
        stem = own.rpartition(".in_proj_")[0]
        if ".visual." in name or re.search(r"\.in_proj_[za]\.", name):
            continue
        if ".in_proj_qkv." in name:
            width = heads * size
            parts = (tensor[:width], tensor[width : 2 * width], tensor[2 * width :])
            gate = tensors[name.replace("in_proj_qkv", "in_proj_z")]
            laid[f"{stem}.in_proj_qkvz.weight"] = _by_head((*parts, gate), heads)
        elif ".in_proj_b." in name:
            decay = tensors[name.replace("in_proj_b", "in_proj_a")]
            laid[f"{stem}.in_proj_ba.weight"] = _by_head((tensor, decay), heads)
        else:
            laid[own] = tensor
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    rope |= {name: it for name, it in text.get("rope_parameters", {}).items() if name in rope}
    named = {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]}
    further = {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
    return laid, {**text, **named, **further, **rope, "rope_parameters": rope}


def _next_fp8(tensors: dict[str, Tensor], config: Any) -> tuple[dict[str, Tensor], Any]:
    """As `_next`, with experts of FP8 in blocks and all else left at 16 bits."""
    packed: dict[str, Tensor] = {}
    laid, config = _next(tensors, config)
    for name, tensor in laid.items():
        is_expert = re.search(r"^model\..*\.experts\.\d+\.", name)
        packed |= _fp8_blocks(name, tensor) if is_expert else {name: tensor}
    left = [name.removesuffix(".weight") for name, tensor in packed.items()
            if name.endswith(".weight") and tensor.dim() == 2
            and tensor.dtype == torch.bfloat16]  # fmt: skip
    stated = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
              "weight_block_size": [128, 128], "modules_to_not_convert": left}  # fmt: skip
    return packed, {**config, "quantization_config": stated}


def _by_head(parts: tuple[Tensor, ...], heads: int) -> Tensor:
    """Join matrices so that a key head's rows of each stand together."""
    return torch.cat([part[at] for at in range(heads) for part in (
        it.view(heads, -1, it.shape[-1]) for it in parts)])  # fmt: skip


def _fp8_blocks(name: str, tensor: Tensor) -> dict[str, Tensor]:
    tiles = tensor.float().view(tensor.shape[0] // 128, 128, tensor.shape[1] // 128, 128)
    scales = tiles.abs().amax(dim=(1, 3), keepdim=True).clamp_min(1e-4) / 448
    codes = (tiles / scales).to(torch.float8_e4m3fn).view(tensor.shape)
    return {name: codes, name.replace(".weight", ".weight_scale_inv"): scales[:, 0, :, 0]}


def _dense(tensors: dict[str, Tensor], config: Any) -> tuple[dict[str, Tensor], Any]:
    """What was the shared expert is the whole feed-forward."""
    kept = {
        name.replace(".shared_expert.", "."): tensor
        for name, tensor in tensors.items()
        if not re.search(r"\.experts\.|mlp\.gate\.|shared_expert_gate", name)
    }
    text = {name: it for name, it in config["text_config"].items() if "expert" not in name}
    text |= {"model_type": "qwen3_5_text", "intermediate_size": SHAPE.shared_expert_intermediate}
    names = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]}
    return kept, {**config, **names, "text_config": text}


FORMATS: dict[str, Callable[[dict[str, Tensor], Any], tuple[dict[str, Tensor], Any]]] = {
    "nvfp4": _nvfp4,
    "next-fp8": _next_fp8,
    "dense": _dense,
}
