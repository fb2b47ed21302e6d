"""TurboQuant's arithmetic on a CPU against slow references, FP64 and itself in other batches."""

import math
import struct
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from said import error
from sparkdeploy_vllm.turboquant.format import BITS, SlotFormat, slot_format
from sparkdeploy_vllm.turboquant.reference import (
    attend,
    midpoints,
    pack_slots,
    rotate,
    rotated_queries,
    unpack_keys,
    unpack_values,
)
from vllm.model_executor.layers.quantization.turboquant.centroids import get_centroids
from vllm.model_executor.layers.quantization.turboquant.config import TurboQuantConfig
from vllm.v1.attention.ops import triton_turboquant_decode, triton_turboquant_store

HEAD_DIMS = (64, 128, 256)
FORMATS = [(name, head_dim) for name in BITS for head_dim in HEAD_DIMS]
KV_HEADS = 2
HEADS = 6
NEAR = 1e-6
"""Of a midpoint: two ways to add in FP32 may find a coordinate on either side of it."""


def hadamard(head_dim: int) -> torch.Tensor:
    """FP32 [D, D], Sylvester's matrix over sqrt(D); D a power of two."""
    signs = torch.ones(1, 1, dtype=torch.float32)
    while signs.shape[0] < head_dim:
        signs = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), signs)
    return signs / math.sqrt(head_dim)


def _centroids(layout: SlotFormat) -> torch.Tensor:
    bits = layout.key_bits if layout.has_rotated_keys else layout.value_bits
    return get_centroids(layout.head_dim, bits)


def _normal(*shape: int, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16()


def _stored(layout: SlotFormat, tokens: int, seed: int = 3) -> torch.Tensor:
    keys = _normal(tokens, KV_HEADS, layout.head_dim, seed=seed)
    values = _normal(tokens, KV_HEADS, layout.head_dim, seed=seed + 1)
    return pack_slots(keys, values, layout, _centroids(layout))


def _packed_one_by_one(codes: list[int], bits: int) -> bytes:
    whole = sum(code << (bits * place) for place, code in enumerate(codes))
    return whole.to_bytes(len(codes) * bits // 8, "little")


def _single(number: float) -> float:
    """Rounded to FP32."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def _slow_value(value: list[float], bits: int) -> bytes:
    """Each step rounded to FP32, as the store kernel computes."""
    highest = 2**bits - 1
    zero = min(value)
    scale = max(_single(_single(max(value) - zero) / highest), _single(1e-8))
    codes = [int(_single(_single(_single(one - zero) / scale) + 0.5)) for one in value]
    held = [min(max(code, 0), highest) for code in codes]
    return _packed_one_by_one(held, bits) + struct.pack("<ee", scale, zero)


def _slow_key(key: list[float], bits: int, centroids: torch.Tensor) -> tuple[bytes, bool]:
    """The bytes of a key of centroids, and whether FP32 can be in no doubt about them."""
    norm = math.sqrt(sum(one * one for one in key))
    unit = torch.tensor(key, dtype=torch.float64) / (norm + 1e-8)
    coordinates = (unit @ hadamard(len(key)).double()).tolist()
    borders = midpoints(centroids).tolist()
    codes = [sum(border <= one for border in borders) for one in coordinates]
    is_certain = all(abs(one - border) > NEAR for one in coordinates for border in borders)
    rounded = [struct.pack("<e", norm * (1 + sign * NEAR)) for sign in (-1, 0, 1)]
    return _packed_one_by_one(codes, bits) + rounded[1], is_certain and len(set(rounded)) == 1


def check_slots_equal_a_slow_reference_byte_for_byte() -> None:
    for name, head_dim in FORMATS:
        layout = slot_format(name, head_dim)
        keys, values = (_normal(24, head_dim, seed=seed) * 3 for seed in (5, 6))
        slots = pack_slots(keys, values, layout, _centroids(layout))
        assert slots.dtype == torch.uint8
        compared = 0
        for key, value, slot in zip(keys, values, slots, strict=True):
            got = bytes(slot.tolist())
            slow = _slow_value(value.float().tolist(), layout.value_bits)
            assert got[layout.value_offset :][: len(slow)] == slow, name
            assert not any(got[layout.scale_offset + 4 :])
            if layout.has_rotated_keys:
                wanted, is_certain = _slow_key(
                    key.float().tolist(), layout.key_bits, _centroids(layout)
                )
            else:
                wanted, is_certain = bytes(key.to(torch.float8_e4m3fn).view(torch.uint8)), True
            assert not is_certain or got[: layout.value_offset] == wanted, name
            compared += is_certain
        assert compared > 18, (name, head_dim, compared)


def check_the_layout_is_the_one_that_vllm_reserves() -> None:
    for name, head_dim in FORMATS:
        layout, theirs = (
            slot_format(name, head_dim),
            TurboQuantConfig.from_cache_dtype(name, head_dim),
        )
        assert layout.slot_bytes == theirs.slot_size_aligned
        assert layout.value_offset == theirs.key_packed_size
        assert layout.scale_offset == theirs.slot_size - 4
        assert layout.has_rotated_keys is not theirs.key_fp8
        # What `unpack_keys` does, and the FP8 keys have no use for.
        assert layout.has_rotated_keys is theirs.norm_correction


def check_the_rotation_is_vllm_s() -> None:
    from vllm.v1.attention.backends.turboquant_attn import _build_hadamard

    for head_dim in HEAD_DIMS:
        assert torch.equal(hadamard(head_dim), _build_hadamard(head_dim, "cpu"))


class _Launched:
    """In a kernel's place: keeps what it is launched with, and computes nothing."""

    def __getitem__(self, _grid: object) -> "_Launched":
        return self

    def __call__(self, *arguments: object, **_constants: object) -> None:
        self.arguments = arguments


def _launch(
    module: ModuleType, kernel: str, launcher: Callable[..., object], *arguments: Any, **named: Any
) -> tuple[Any, ...]:
    launched, sizes = _Launched(), SimpleNamespace(next_power_of_2=lambda size: size)
    with (
        mock.patch.object(module, kernel, launched),
        mock.patch.object(module, "triton", sizes),
        mock.patch.object(triton_turboquant_decode, "_fwd_kernel_stage2", _Launched()),
    ):
        launcher(*arguments, **named)
    return launched.arguments


def check_vllm_rotates_queries_alone_and_only_for_keys_of_centroids() -> None:
    for name, head_dim in FORMATS:
        layout, config = (
            slot_format(name, head_dim),
            TurboQuantConfig.from_cache_dtype(name, head_dim),
        )
        queries, slots = _normal(3, HEADS, head_dim), _stored(layout, 16).unsqueeze(0)
        handed, *_ = _launch(
            triton_turboquant_decode,
            "_tq_decode_stage1",
            triton_turboquant_decode.triton_turboquant_decode_attention,
            queries,
            slots,
            torch.zeros(3, 1, dtype=torch.int32),
            torch.ones(3, dtype=torch.int32),
            hadamard(head_dim),
            _centroids(layout),
            1.0,
            config.key_mse_bits,
            config.key_packed_size,
            config.effective_value_quant_bits,
            key_fp8=config.key_fp8,
        )
        assert torch.equal(handed, queries) is not layout.has_rotated_keys
        assert error(handed, rotated_queries(queries.float(), layout)) < 1e-6


def check_vllm_stores_keys_as_they_come_or_rotated_and_values_as_they_come() -> None:
    for name, head_dim in FORMATS:
        layout, config = (
            slot_format(name, head_dim),
            TurboQuantConfig.from_cache_dtype(name, head_dim),
        )
        keys, values = (_normal(5, KV_HEADS, head_dim, seed=seed) for seed in (1, 2))
        kernel = "_tq_fused_store_mse" if layout.has_rotated_keys else "_tq_fused_store_fp8"
        handed = _launch(
            triton_turboquant_store,
            kernel,
            triton_turboquant_store.triton_turboquant_store,
            keys,
            values,
            torch.zeros(1, 16, KV_HEADS, layout.slot_bytes, dtype=torch.uint8),
            torch.arange(5),
            hadamard(head_dim),
            midpoints(_centroids(layout)),
            config.key_mse_bits,
            config.key_packed_size,
            config.effective_value_quant_bits,
            key_fp8=config.key_fp8,
        )
        assert torch.equal(handed[2 if layout.has_rotated_keys else 1], _flat(values, handed))
        if not layout.has_rotated_keys:
            assert torch.equal(handed[0], keys.flatten(0, 1))
            continue
        units = keys.float() / keys.float().norm(dim=-1, keepdim=True)
        assert error(handed[0], rotate(units).flatten(0, 1)) < 1e-6
        assert error(handed[1], keys.float().norm(dim=-1).flatten()) < 1e-6


def _flat(values: torch.Tensor, handed: tuple[Any, ...]) -> torch.Tensor:
    return values.flatten(0, 1).to(handed[0].dtype)


def _exact(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal attention in FP64, over what slots hold: keys rotated back, not queries."""
    tokens, context = queries.shape[0], keys.shape[0]
    spread = [each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (keys, values)]
    scores = torch.einsum("thd,shd->hts", queries, spread[0]) * queries.shape[-1] ** -0.5
    unseen = torch.ones(tokens, context, dtype=torch.bool).triu(context - tokens + 1)
    weights = scores.masked_fill(unseen, -math.inf).softmax(dim=-1)
    return torch.einsum("hts,shd->thd", weights, spread[1])


def check_attention_over_slots_equals_fp64_over_what_they_hold() -> None:
    for name, head_dim in FORMATS:
        layout = slot_format(name, head_dim)
        centroids = _centroids(layout)
        for context, tokens in ((1, 1), (7, 7), (33, 1), (129, 3), (300, 8)):
            slots = _stored(layout, context, seed=context)
            queries = _normal(tokens, HEADS, head_dim).float()
            keys = unpack_keys(slots, layout, centroids, torch.float64)
            values = unpack_values(slots, layout, torch.float64)
            unrotated = rotate(keys) if layout.has_rotated_keys else keys
            exact = _exact(queries.double(), unrotated, values)
            got = attend(
                rotated_queries(queries, layout),
                unpack_keys(slots, layout, centroids),
                unpack_values(slots, layout),
                head_dim**-0.5,
            )
            assert got.dtype == torch.float32
            assert error(got, exact) < 1e-5, (name, head_dim, context)


def check_tokens_together_equal_one_at_a_time_bit_for_bit() -> None:
    for name, head_dim in FORMATS:
        layout = slot_format(name, head_dim)
        slots = _stored(layout, 77)
        keys = unpack_keys(slots, layout, _centroids(layout))
        values = unpack_values(slots, layout)
        for tokens in range(1, 9):
            queries = rotated_queries(_normal(tokens, HEADS, head_dim).float(), layout)
            together = attend(queries, keys, values, head_dim**-0.5)
            for token in range(tokens):
                seen = 77 - tokens + token + 1
                alone = attend(
                    rotated_queries(
                        _normal(tokens, HEADS, head_dim)[token : token + 1].float(), layout
                    ),
                    unpack_keys(slots[:seen], layout, _centroids(layout)),
                    unpack_values(slots[:seen], layout),
                    head_dim**-0.5,
                )
                assert torch.equal(together[token], alone[0]), (name, head_dim, tokens, token)
