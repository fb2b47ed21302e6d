"""Verified tokens as decoding requests of their own: metadata arithmetic in plain torch."""

from dataclasses import replace
from typing import Any

import torch


def decode_rows(
    seq_lens: torch.Tensor, query_start_loc: torch.Tensor, tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of the batch's first `tokens` tokens: its request [T] and its context's length [T].

    `seq_lens` [R] counts a request's tokens up to the last of this step, `query_start_loc` [R + 1]
    is where its tokens begin in the batch. A token sees itself and what comes before it. Tokens
    past the last request are padding; they get the last row and its length, at least one: more
    would lead the kernel to blocks that the row does not have.
    """
    token = torch.arange(tokens, device=seq_lens.device, dtype=query_start_loc.dtype)
    row = torch.searchsorted(query_start_loc[1:], token, right=True)
    row = row.clamp_(max=seq_lens.shape[0] - 1)
    behind = (query_start_loc[row + 1] - 1 - token).clamp_(min=0)
    return row, (seq_lens[row] - behind).clamp_(min=1).to(seq_lens.dtype)


def verification_as_decoding(metadata: Any) -> Any:
    """Split the short requests of `metadata` into requests of one token each.

    `metadata` is a TurboQuantMetadata whose first `num_decodes` requests are short ones. Every
    length is taken from the device: with asynchronous scheduling the host's lengths count drafts
    that were rejected. The rest of the batch (prefills, for which the host's are exact) is as it
    was.
    """
    requests, tokens = metadata.num_decodes, metadata.num_decode_tokens
    if metadata.max_query_len <= 1 or requests == 0:
        return metadata
    row, length = decode_rows(metadata.seq_lens[:requests], metadata.query_start_loc, tokens)
    starts = torch.arange(tokens, dtype=torch.int32)
    is_prefill = metadata.num_actual_tokens > tokens
    return replace(
        metadata,
        seq_lens=torch.cat([length, metadata.seq_lens[requests:]]),
        block_table=torch.cat([metadata.block_table[row], metadata.block_table[requests:]]),
        query_start_loc=torch.cat(
            [starts.to(metadata.query_start_loc.device), metadata.query_start_loc[requests:]]
        ),
        query_start_loc_cpu=_joined(starts, metadata.query_start_loc_cpu, requests),
        seq_lens_cpu=_joined(torch.ones_like(starts), metadata.seq_lens_cpu, requests),
        num_decodes=tokens,
        max_query_len=metadata.max_query_len if is_prefill else 1,
        is_prefill=is_prefill,
    )


def _joined(front: torch.Tensor, whole: torch.Tensor | None, requests: int) -> torch.Tensor | None:
    return None if whole is None else torch.cat([front.to(whole.dtype), whole[requests:]])
