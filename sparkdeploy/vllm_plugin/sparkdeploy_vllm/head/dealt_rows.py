"""The frequent rows of an LM head, dealt evenly over the tensor-parallel ranks.

vLLM shards a head by token number, and frequent tokens have low numbers: by that order one rank
would compute nearly all of them while the others wait for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad
from vllm.distributed import get_tp_group, tensor_model_parallel_all_gather

from sparkdeploy_vllm.head.int4_reference import gather_rows
from sparkdeploy_vllm.weights.reference import CHUNK_ELEMENTS, quantize_rows

NEVER = float("-inf")
"""The logit of a token that is not drafted."""


@dataclass(frozen=True, slots=True)
class Deal:
    """Who computes which token: token i of the ascending list is row i // ranks of rank i % ranks.

    Shares differ by at most one row. All are stored as long as the longest, so that every rank
    runs the same kernel and sends as much as the others; a row that fills up is zero.
    """

    tokens: Tensor
    """int64 [F], ascending."""
    rank: int
    ranks: int

    @property
    def width(self) -> int:
        return -(-len(self.tokens) // self.ranks)

    @property
    def count(self) -> int:
        """Tokens of this rank: `width`, or one less."""
        return len(range(self.rank, len(self.tokens), self.ranks))

    def share(self) -> Tensor:
        """This rank's tokens, ascending: int64 [width]; the row that fills up names the last."""
        own = self.tokens[self.rank :: self.ranks]
        return torch.cat((own, self.tokens[-1:].expand(self.width - self.count)))

    def columns(self) -> Tensor:
        """Where the tokens' logits stand once all ranks' [width] are joined: int64 [F]."""
        index = torch.arange(len(self.tokens), device=self.tokens.device)
        return index % self.ranks * self.width + index // self.ranks

    def mine(self, chunk: slice) -> tuple[slice, slice]:
        """This rank's tokens of a chunk of `tokens`: where in the chunk, and where in its share."""
        offset = (self.rank - chunk.start) % self.ranks
        first = (chunk.start + offset) // self.ranks
        count = len(range(chunk.start + offset, chunk.stop, self.ranks))
        return slice(offset, None, self.ranks), slice(first, first + count)


def deal_of(layer: Module, tokens: Tensor) -> Deal:
    """Return the deal of ascending `tokens` for vLLM's head `layer` on this rank."""
    shard = layer.shard_indices
    return Deal(tokens, shard.padded_org_vocab_start_index // _shard_rows(layer), layer.tp_size)


def take_rows(layer: Module, deal: Deal) -> tuple[Tensor, Tensor]:
    """Return this rank's rows of the head: int8 [width, K] and their FP32 scales [width].

    Every rank calls it, with `weight` of its shard at 16 bits, INT8 or INT4. Rows are quantised
    where they were loaded and sent chunk by chunk, so that no rank ever holds more than its share
    and a chunk.
    """
    device, width = _refuse_packed(layer), layer.embedding_dim
    rows = torch.zeros((deal.width, width), dtype=torch.int8, device=device)
    scales = torch.ones(deal.width, dtype=torch.float32, device=device)
    step = max(1, CHUNK_ELEMENTS // width)
    for owner, chunk in _chunks(deal, _shard_rows(layer), step):
        local = deal.tokens[chunk].to(device) - owner * _shard_rows(layer)
        sent, sent_scales = _send(layer, local, owner, deal)
        there, here = deal.mine(chunk)
        rows[here], scales[here] = sent[there], sent_scales[there]
    return rows, scales


def _shard_rows(layer: Module) -> int:
    return int(layer.shard_indices.num_org_elements_padded)


def _chunks(deal: Deal, shard_rows: int, step: int) -> Iterator[tuple[int, slice]]:
    """Slices of `deal.tokens` of at most `step`, each within the shard of one rank, its owner."""
    bounds = torch.arange(deal.ranks + 1, device=deal.tokens.device) * shard_rows
    edges = torch.searchsorted(deal.tokens, bounds).tolist()
    for owner in range(deal.ranks):
        for start in range(edges[owner], edges[owner + 1], step):
            yield owner, slice(start, min(start + step, edges[owner + 1]))


def _refuse_packed(layer: Module) -> torch.device:
    """Return where a head lies; ValueError for one that the checkpoint itself quantises."""
    weight = getattr(layer, "weight", None)
    is_read = weight is not None and (
        weight.dtype in (torch.int8, torch.uint8) or weight.dtype.itemsize > 1
    )
    if weight is None or not is_read:
        raise ValueError(
            "sparkdeploy: no draft head can be cut from an LM head that the checkpoint quantises "
            f"itself ({type(layer.quant_method).__name__}); remove checkpoint.draft_lm_head"
        )
    return weight.device


def _int8_rows(layer: Module, local: Tensor) -> tuple[Tensor, Tensor]:
    """Rows `local` [C] of a head's shard: int8 [C, K] and FP32 [C]; as they are if INT8."""
    weight = layer.weight.data
    if weight.dtype == torch.int8:
        return weight[local], layer.weight_scale.data[local]
    if weight.dtype == torch.uint8:
        rows = gather_rows(local, weight, layer.weight_scale.data, layer.params_dtype)
        return quantize_rows(rows)
    return quantize_rows(weight[local])


def _send(layer: Module, local: Tensor, owner: int, deal: Deal) -> tuple[Tensor, Tensor]:
    """Rows `local` [C] of the owner's shard, on every rank: int8 [C, K] and FP32 [C]."""
    if owner == deal.rank:
        rows, scales = _int8_rows(layer, local)
    else:
        shape, device = (len(local), layer.embedding_dim), local.device
        rows = torch.empty(shape, dtype=torch.int8, device=device)
        scales = torch.empty(len(local), dtype=torch.float32, device=device)
    group = get_tp_group()
    return group.broadcast(rows, owner), group.broadcast(scales, owner)


def spread(share: Tensor, layer: Module, vocabulary: int) -> Tensor:
    """Make logits [..., vocabulary] of every rank's `share` [..., width]; the same on all ranks."""
    joined = tensor_model_parallel_all_gather(share)
    logits = joined.new_full((*share.shape[:-1], vocabulary), NEVER)
    return logits.index_copy_(-1, layer.rows, joined[..., layer.columns])


def best_of_share(share: Tensor, layer: Module, k: int) -> tuple[Tensor, Tensor]:
    """The greatest logits of `share` [M, width] and their tokens: FP32 and int64, each [M, n].

    n is k, or width where that is less.
    """
    if k == 1:
        # Unlike topk it names the first of equals.
        values, places = share.max(dim=-1, keepdim=True)
    else:
        values, places = share.topk(min(k, share.shape[-1]), dim=-1)
    return values.float(), layer.share[places]


def best_over_ranks(values: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Of every rank's candidates [M, n] the k greatest, of equals the lowest token: [M, k] each.

    Sends 8 bytes a candidate, where all logits would be two a drafted token. Tokens travel as
    FP32, exact below 2 ** 24, as vLLM's own do.
    """
    candidates = values.shape[-1]
    pairs = tensor_model_parallel_all_gather(torch.cat((values, tokens.float()), dim=-1))
    parted = pairs.view(len(values), -1, 2, candidates)
    all_values, all_tokens = parted[:, :, 0].flatten(1), parted[:, :, 1].flatten(1)
    ascending, order = all_tokens.sort(dim=-1)
    best, places = all_values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return best[:, :k], ascending.gather(-1, places)[:, :k].long()


def without_filling(share: Tensor, layer: Module) -> Tensor:
    """`share` [..., width] with the row that fills up, if there is one, never chosen."""
    filling = share.shape[-1] - layer.drafted
    return pad(share[..., : layer.drafted], (0, filling), value=NEVER) if filling else share
