"""A draft head dealt over ranks: equal shares, and the drafts that one rank would propose."""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from check_tensor_parallel import _start_ranks
from check_vllm_hooks import _config, _head, _process
from said import one_of_ranks
from sparkdeploy_vllm import register
from sparkdeploy_vllm.head import dealt_rows
from sparkdeploy_vllm.head.dealt_rows import Deal
from torch.nn import functional
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.logits_processor import LogitsProcessor

VOCABULARY, HIDDEN = 500, 128
LOW = [*range(3, 120, 7), 200, 255]
"""All of them below 256, where the second of two ranks begins: 19 tokens, an odd number."""
HIGH = [3, 4, 255, 256, 300, 301, 302, 499]
EQUAL = (3, 10, 17, 24)
"""Tokens with the same row, for which ranks take turns."""
FILE = "draft_vocabulary.json"


def _serve(rank: int, ranks: int, folder: str, tokens: list[int]) -> None:
    """One rank: a draft head of `tokens` from the whole checkpoint's tensor, asked in every way."""
    with one_of_ranks(rank, ranks, folder, Path(folder).name):
        register()
        head, processor, x = _draft(folder, tokens)
        said = _asked(head, processor, x)
        said["weight"], said["scales"] = head.weight.data, head.weight_scale.data
        said["share"] = head.share[: head.drafted].clone()
        torch.save(said, Path(folder) / f"said-{ranks}-{rank}")


def _draft(folder: str, tokens: list[int]) -> tuple[Any, Any, torch.Tensor]:
    (Path(folder) / FILE).write_text(json.dumps({"tokens": tokens}))
    model = SimpleNamespace(model=folder, head_dtype=None, enable_sleep_mode=False)
    current = get_current_vllm_config()
    object.__setattr__(current, "model_config", model)
    wanted = {"rows": len(tokens), "dtype": "int8", "file": FILE}
    config = _config(draft_lm_head=wanted, fp8=None, expected_fp8_layers=0)
    object.__setattr__(current, "quant_config", config)
    target = _head(config, VOCABULARY)
    drawn = torch.Generator().manual_seed(7)
    rows = (torch.randn((VOCABULARY, HIDDEN), generator=drawn) * 0.05).bfloat16()
    rows[list(EQUAL)] = rows[EQUAL[0]].clone()
    target.weight.weight_loader(target.weight, rows)
    _process(target)
    # Several chunks to a rank.
    with mock.patch.object(dealt_rows, "CHUNK_ELEMENTS", 5 * HIDDEN):
        processor = LogitsProcessor(VOCABULARY)
    head = processor.own_head[0]
    x = torch.randn((6, HIDDEN), generator=drawn).bfloat16()
    x[0] = rows[EQUAL[0]] * 20
    x[1] = rows[tokens[-1]] * 20
    return head, processor, x


def _asked(head: Any, processor: Any, x: torch.Tensor) -> dict[str, torch.Tensor]:
    said = {"logits": processor(head, x), "top": processor.get_top_tokens(head, x)}
    if hasattr(LogitsProcessor, "get_top_k_tokens"):
        said["ids"], said["values"] = processor.get_top_k_tokens(head, x, 6)
        _, said["log_probs"] = processor.get_top_k_tokens(head, x, 2, return_log_probs=True)
    return said


def _said(tokens: list[int], ranks: int) -> list[dict[str, torch.Tensor]]:
    with tempfile.TemporaryDirectory(prefix="sparkdeploy-checks-") as folder:
        try:
            _start_ranks(_serve, (ranks, folder, tokens), ranks)
            return [torch.load(Path(folder) / f"said-{ranks}-{rank}") for rank in range(ranks)]
        finally:
            # vLLM leaves behind what ranks share, 8 of the 64 MiB that a container has.
            for left in Path("/dev/shm").glob(f"{Path(folder).name}-*"):
                left.unlink()


def check_two_ranks_draft_what_one_drafts_with_equal_shares() -> None:
    for tokens in (LOW, HIGH):
        (alone,) = _said(tokens, 1)
        parted = _said(tokens, 2)
        for rank, said in enumerate(parted):
            assert said["share"].tolist() == tokens[rank::2]
            assert len(said["weight"]) == -(-len(tokens) // 2)
            _assert_rows_are_those_of_one(said, alone, rank)
            _assert_the_same_drafts(said, alone)
        sizes = [len(said["share"]) for said in parted]
        assert max(sizes) - min(sizes) <= 1, sizes
        assert sum(sizes) == len(tokens)


def _assert_rows_are_those_of_one(said: Any, alone: Any, rank: int) -> None:
    """Bit for bit what one rank makes of the same rows; a row that fills up is zero."""
    count = len(said["share"])
    assert torch.equal(said["weight"][:count], alone["weight"][rank::2])
    assert torch.equal(said["scales"][:count], alone["scales"][rank::2])
    assert not said["weight"][count:].any()


def _assert_the_same_drafts(said: Any, alone: Any) -> None:
    assert torch.equal(said["logits"], alone["logits"])
    assert torch.equal(said["top"], alone["top"])
    assert torch.equal(said["top"], alone["logits"].argmax(dim=-1))
    if "values" in alone:
        assert torch.equal(said["values"], alone["values"])
        torch.testing.assert_close(said["log_probs"], alone["log_probs"])
        best = alone["logits"].gather(-1, said["ids"]).float()
        assert torch.equal(best, said["values"]), "each value belongs to its token"


def check_every_row_is_dealt_once_and_sent_from_where_it_is() -> None:
    for count in (1, 2, 3, 7, 8, 19):
        tokens = torch.arange(count) * 13
        for ranks in (1, 2, 3, 4, 8):
            deals = [Deal(tokens, rank, ranks) for rank in range(ranks)]
            assert max(deal.count for deal in deals) - min(deal.count for deal in deals) <= 1
            joined = torch.cat([deal.share() for deal in deals])
            assert torch.equal(joined[deals[0].columns()], tokens)
            for chunk in (slice(0, count), slice(count // 2, count)):
                _assert_a_chunk_is_shared_out(deals, chunk)


def _assert_a_chunk_is_shared_out(deals: list[Deal], chunk: slice) -> None:
    taken = []
    for deal in deals:
        there, here = deal.mine(chunk)
        tokens = deal.tokens[chunk][there]
        assert torch.equal(tokens, deal.share()[here])
        taken += tokens.tolist()
    assert sorted(taken) == deals[0].tokens[chunk].tolist()


def check_a_row_that_fills_up_is_never_the_best() -> None:
    head = torch.nn.Module()
    head.drafted = 2
    share = torch.tensor([[-3.0, -2.0, 0.0]])
    kept = dealt_rows.without_filling(share, head)
    assert torch.equal(kept, functional.pad(share[:, :2], (0, 1), value=float("-inf")))
    head.drafted = 3
    assert dealt_rows.without_filling(share, head) is share
