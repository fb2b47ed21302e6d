"""Weights with margins for `--load-format dummy`: what a model of full size says can be compared.

vLLM makes up weights so small that every text is one token again and again and shared experts give
zeros. Here a token's embedding is its own row of signs, and the head's rows are those of the token
before it, so that each token has one follower by a margin that no rounding closes; all layers add
noise of a few times an embedding's size, which shows nonsense in the text and a change of rounding
in how far the two best tokens are apart. The draft layer passes embeddings through, and is wrong
after every second token.
"""

import zlib
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.model_loader import dummy_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

STEP = 12_345
"""From a token's number to its follower's."""
CODE_DEVIATION = 4.6
"""Of an INT4 code, from -8 to 7. Their mean is not zero, and would add up over layers if scales did
not have signs as well."""
GROUP = 128
OUTPUTS = (".down_proj.", ".o_proj.", ".out_proj.", ".w2_")
"""Of a block, which are added to the residual stream."""
BLOCK_GAIN = 0.25
HEAD_SIZE = 32.0
"""Over the hidden size: of the head's signs."""
WRONG_TOKEN, WRONG_SIZE = 5, 2.0
"""Whose follower the draft layer guesses after a token whose first sign is positive."""
CODES: dict[str, Tensor] = {}
RANGES = {"A_log": (-4.0, 0.0), "linear_attn.norm.weight": (0.9, 1.1)}
DEVIATIONS = {"dt_bias": 0.5, "conv1d.weight": 0.5}
NORM_DEVIATION = 0.05


def register() -> None:
    """Ours first, then vLLM's loader of made-up weights."""
    from sparkdeploy_vllm import register as register_ours

    register_ours()
    DummyModelLoader.load_weights = load_weights


def load_weights(self: Any, model: Any, _config: Any) -> None:
    """In the place of vLLM's own; layers that are quantised while they are loaded are so here."""
    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        if info.can_load():
            one = partial(_fill_weight, name)
            with mock.patch.object(dummy_loader, "initialize_single_dummy_weight", one):
                self._process_online_quant_layer(layer, info)
            continue
        for own, tensor in layer.named_parameters(recurse=False):
            fill(f"{name}.{own}", tensor)


def _fill_weight(layer: str, tensor: Tensor, /, **_name: str) -> None:
    fill(f"{layer}.weight", tensor)


@torch.no_grad()
def fill(name: str, tensor: Tensor) -> None:
    """Make up what is called `name`, the same in each process, or a rank's part of the same."""
    if tensor.device.type == "meta":
        return
    known = name.removeprefix("language_model.")
    drawn = torch.Generator(tensor.device).manual_seed(zlib.crc32(known.encode()))
    if not tensor.is_floating_point():
        if "qweight" in name:
            tensor.random_(-(2**31), 2**31 - 1, generator=drawn)
        else:
            tensor.zero_()
    elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
        _fill_tokens(tensor, is_head=name.endswith("lm_head.weight"))
    elif found := [it for end, it in RANGES.items() if name.endswith(end)]:
        tensor.uniform_(*found[0], generator=drawn)
    else:
        tensor.normal_(std=_deviation(name, tensor), generator=drawn)
        if name.endswith(".fc.weight"):
            _pass_through(tensor)


def _fill_tokens(tensor: Tensor, *, is_head: bool) -> None:
    """As many rows as there are tokens, the same for both; a rank has as many as any other."""
    rows, hidden = tensor.shape
    ranks = get_tensor_model_parallel_world_size()
    signs = tensor.new_empty((rows * ranks, hidden))
    drawn = torch.Generator(tensor.device).manual_seed(0)
    signs.bernoulli_(0.5, generator=drawn).mul_(2).sub_(1)
    if is_head:
        signs = signs.roll(STEP, 0).mul_(HEAD_SIZE / hidden)
    else:
        CODES["wrong"] = signs[WRONG_TOKEN].clone()
    tensor.copy_(signs[_first_row(rows) :][:rows])


def _first_row(rows: int) -> int:
    """Of this rank's part of a matrix whose ranks have `rows` each."""
    return get_tensor_model_parallel_rank() * rows


def _deviation(name: str, tensor: Tensor) -> float:
    for end, deviation in DEVIATIONS.items():
        if name.endswith(end):
            return deviation
    if tensor.dim() < 2:
        return NORM_DEVIATION
    gain = 1.0
    if any(it in name for it in OUTPUTS):
        # Each rank adds its part.
        gain = BLOCK_GAIN / get_tensor_model_parallel_world_size() ** 0.5
    if "scales" in name:
        return float(gain / CODE_DEVIATION / (tensor.shape[-2] * GROUP) ** 0.5)
    return float(gain / tensor.shape[-1] ** 0.5)


def _pass_through(fc: Tensor) -> None:
    """Give the draft layer's input the embedding, and a wrong token's where its first sign says."""
    rows, hidden = fc.shape[0], fc.shape[1] // 2
    first = _first_row(rows) if rows < hidden else 0
    fc.mul_(0.2)
    fc[:, first : first + rows] += torch.eye(rows, dtype=fc.dtype, device=fc.device)
    fc[:, 0] += WRONG_SIZE * CODES["wrong"][first : first + rows]
