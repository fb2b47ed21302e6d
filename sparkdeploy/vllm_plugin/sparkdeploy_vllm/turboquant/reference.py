"""TurboQuant in plain torch: the kernels' reference and the path on a CPU.

What a slot holds is `format`'s matter. Everything here is computed per row: additions
over a dimension are done by halving it, element by element, because torch's own sums and products
choose their order by the number of rows, and greedy decoding with speculation (several rows a step)
would then drift away from decoding without (one row).
"""

import math

import torch
from torch import Tensor

from sparkdeploy_vllm.turboquant.format import SCALAR_BYTES, SlotFormat

FP8_DTYPE = torch.float8_e4m3fn
FP8_MAX = 448.0
LEAST_NORM = 1e-8
LEAST_VALUE_SCALE = 1e-8
LEAST_SQUARED_NORM = 1e-16
BYTE_BITS = 8


def rotate(vectors: Tensor) -> Tensor:
    """`vectors` [..., D] times Sylvester's Hadamard matrix over sqrt(D), in their dtype.

    D is a power of two. The rotation is its own inverse.
    """
    head_dim = vectors.shape[-1]
    rotated, width = vectors.reshape(-1), head_dim
    while width > 1:
        width //= 2
        first, second = rotated.view(-1, 2, width).unbind(1)
        rotated = torch.stack((first + second, first - second), dim=1)
    return rotated.view(vectors.shape) / math.sqrt(head_dim)


def midpoints(centroids: Tensor) -> Tensor:
    """Where one centroid's coordinates end and the next one's begin: [n] ascending to [n - 1]."""
    return (centroids[:-1] + centroids[1:]) / 2


def pack_slots(keys: Tensor, values: Tensor, layout: SlotFormat, centroids: Tensor) -> Tensor:
    """Code keys and values [..., D] of any floating dtype as uint8 [..., slot bytes].

    `centroids` FP32 [2 ** key_bits], ascending, of a unit vector's coordinates; formats with FP8
    keys read none. A byte of padding is zero.
    """
    parts = [_packed_keys(keys.float(), layout, centroids), _packed_values(values.float(), layout)]
    slots = torch.cat(parts, dim=-1)
    return torch.nn.functional.pad(slots, (0, layout.slot_bytes - slots.shape[-1]))


def unpack_keys(
    slots: Tensor, layout: SlotFormat, centroids: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The keys in slots uint8 [..., slot bytes]: `dtype` (FP32 or FP64) [..., D].

    Keys of centroids stay in the rotated space, to be met by `rotated_queries`; they have the
    length that their slot says, whatever the centroids' own.
    """
    codes = slots[..., : layout.key_code_bytes]
    if not layout.has_rotated_keys:
        return codes.contiguous().view(FP8_DTYPE).to(dtype)
    directions = centroids.to(dtype)[unpack_bits(codes, layout.key_bits).long()]
    squared = sum_by_halves(directions * directions) + LEAST_SQUARED_NORM
    norms = _scalar(slots, layout.key_code_bytes, dtype)
    return directions * (1.0 / squared.sqrt()).unsqueeze(-1) * norms.unsqueeze(-1)


def unpack_values(slots: Tensor, layout: SlotFormat, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values in slots uint8 [..., slot bytes]: `dtype` (FP32 or FP64) [..., D]."""
    codes = unpack_bits(slots[..., layout.value_offset : layout.scale_offset], layout.value_bits)
    scales = _scalar(slots, layout.scale_offset, dtype)
    zeros = _scalar(slots, layout.scale_offset + SCALAR_BYTES, dtype)
    return codes.to(dtype) * scales.unsqueeze(-1) + zeros.unsqueeze(-1)


def rotated_queries(queries: Tensor, layout: SlotFormat) -> Tensor:
    """Queries [..., D] as the format's keys are met: rotated, or untouched for FP8 keys."""
    return rotate(queries) if layout.has_rotated_keys else queries


def attend_slots(
    queries: Tensor, slots: Tensor, layout: SlotFormat, centroids: Tensor, scale: float
) -> Tensor:
    """`attend` over what slots uint8 [S, KV heads, slot bytes] hold, with queries as they come."""
    keys = unpack_keys(slots, layout, centroids, queries.dtype)
    values = unpack_values(slots, layout, queries.dtype)
    return attend(rotated_queries(queries, layout), keys, values, scale)


def attend(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Causal attention of one request's last T tokens over its S tokens; [T, heads, D].

    `queries` [T, heads, D], `keys` and `values` [S, KV heads, D], S >= T; all FP32 or all FP64, as
    is the result. A token's result depends on T and on the tokens after it in no bit. ValueError
    if there are more queries than tokens.
    """
    unseen = keys.shape[0] - queries.shape[0]
    if unseen < 0:
        raise ValueError(f"{queries.shape[0]} queries over {keys.shape[0]} tokens")
    output = torch.empty_like(queries)
    for token, query in enumerate(queries):
        seen = unseen + token + 1
        output[token] = _attend_token(query, keys[:seen], values[:seen], scale)
    return output


def _attend_token(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """[heads, D] over [S, KV heads, D]; queries of a group share a KV head."""
    groups = query.view(keys.shape[1], -1, query.shape[-1])
    # Element by element, [S, KV heads, heads of a group, D].
    scores = sum_by_halves(groups * keys.unsqueeze(2)).mul(scale)
    # Contiguous and of a shape that this token's place alone decides, as all below.
    weights = torch.softmax(scores.permute(1, 2, 0).contiguous(), dim=-1)
    return torch.matmul(weights, values.transpose(0, 1).contiguous()).view(query.shape)


def sum_by_halves(terms: Tensor) -> Tensor:
    """The sum over the last dimension, a power of two: [..., D] to [...], in the terms' dtype."""
    while terms.shape[-1] > 1:
        first, second = terms.chunk(2, dim=-1)
        terms = first + second
    return terms.squeeze(-1)


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Codes [..., D] below 2 ** bits as uint8 [..., D * bits / 8]; the first in the lowest bits."""
    eights = codes.to(torch.int64).unflatten(-1, (-1, BYTE_BITS))
    shifts = torch.arange(0, BYTE_BITS * bits, bits, device=codes.device)
    words = (eights << shifts).sum(dim=-1, keepdim=True)
    places = torch.arange(0, BYTE_BITS * bits, BYTE_BITS, device=codes.device)
    return ((words >> places) & 0xFF).to(torch.uint8).flatten(-2)


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """Undo `pack_bits`: uint8 [..., D * bits / 8] to uint8 [..., D]."""
    groups = packed.to(torch.int64).unflatten(-1, (-1, bits))
    places = torch.arange(0, BYTE_BITS * bits, BYTE_BITS, device=packed.device)
    words = (groups << places).sum(dim=-1, keepdim=True)
    shifts = torch.arange(0, BYTE_BITS * bits, bits, device=packed.device)
    return ((words >> shifts) & (2**bits - 1)).to(torch.uint8).flatten(-2)


def _packed_keys(keys: Tensor, layout: SlotFormat, centroids: Tensor) -> Tensor:
    if not layout.has_rotated_keys:
        # FP8 has no infinity: beyond its largest number NVIDIA's conversion stops there too.
        return keys.clamp(-FP8_MAX, FP8_MAX).to(FP8_DTYPE).view(torch.uint8)
    norms = sum_by_halves(keys * keys).sqrt().unsqueeze(-1)
    coordinates = rotate(keys / (norms + LEAST_NORM))
    # A coordinate on a midpoint goes to the higher centroid.
    codes = torch.bucketize(coordinates, midpoints(centroids), right=True)
    return torch.cat([pack_bits(codes, layout.key_bits), _as_bytes(norms)], dim=-1)


def _packed_values(values: Tensor, layout: SlotFormat) -> Tensor:
    """Codes by the exact scale and zero, whose FP16 roundings are what is stored beside them."""
    highest_code = 2**layout.value_bits - 1
    zeros = values.amin(dim=-1, keepdim=True)
    scales = (values.amax(dim=-1, keepdim=True) - zeros) / highest_code
    scales = scales.clamp_min(LEAST_VALUE_SCALE)
    codes = ((values - zeros) / scales + 0.5).to(torch.int32).clamp_(0, highest_code)
    return torch.cat(
        [pack_bits(codes, layout.value_bits), _as_bytes(scales), _as_bytes(zeros)], dim=-1
    )


def _as_bytes(scalars: Tensor) -> Tensor:
    """FP32 [..., 1] as the bytes of FP16, the lowest first: uint8 [..., 2]."""
    return scalars.to(torch.float16).view(torch.uint8)


def _scalar(slots: Tensor, offset: int, dtype: torch.dtype) -> Tensor:
    """The FP16 at a byte of each slot, as `dtype` [...]."""
    pair = slots[..., offset : offset + SCALAR_BYTES].contiguous()
    return pair.view(torch.float16).squeeze(-1).to(dtype)
