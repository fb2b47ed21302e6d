"""Where few rows take our one launch for routing: whose choice is compared, and who decides.

The kernel itself needs a GPU (tests/gpu/stand/routing.py); here plain torch stands for it.
"""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from check_vllm_hooks import _config, _vllm_log
from sparkdeploy_vllm import announce
from sparkdeploy_vllm.weights import hybrid_config, routing
from torch import Tensor
from torch.nn import Module
from vllm.model_executor.layers.fused_moe.experts import marlin_moe
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import FusedTopKRouter

EXPERTS, TOP = 32, 4
PLAIN = FusedTopKRouter._compute_routing


def _router(**options: Any) -> FusedTopKRouter:
    return FusedTopKRouter(top_k=TOP, global_num_experts=EXPERTS, **options)


def _chosen(router: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
    weights, ids = logits.float().softmax(1).topk(router.top_k, 1)
    return weights / weights.sum(1, keepdim=True), ids.int()


def _aligned(ids: Tensor, block_size: int, *_: object, **__: object) -> tuple[Tensor, ...]:
    pairs = ids.flatten().tolist()
    used = sorted(set(pairs))
    rows = [[n for n, it in enumerate(pairs) if it == expert] for expert in used]
    filled = [row + [len(pairs)] * (block_size - len(row)) for row in rows]
    return torch.tensor(filled).flatten(), torch.tensor(used), torch.tensor([8 * len(used)])


def _ours(router: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
    weights, ids = _chosen(router, logits)
    sorted_ids, expert_ids, padded = _aligned(ids, 8)
    # Within a block the order is free.
    blocks = mock.Mock(
        sorted_ids=sorted_ids.view(-1, 8).flip(1).flatten(), expert_ids=expert_ids, padded=padded
    )
    ids.sparkdeploy_blocks = blocks  # type: ignore[attr-defined]
    return weights, ids


def _vllms(self: Any, _: Tensor, logits: Tensor, __: Any) -> tuple[Tensor, Tensor]:
    return _chosen(self, logits)


def _otherwise(change: Any) -> Any:
    def fused(router: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
        weights, ids = _ours(router, logits)
        change(weights, ids)
        return weights, ids

    return fused


def _wrong_weights(weights: Tensor, _: Tensor) -> None:
    weights[0, 0] *= 1.01


def _wrong_experts(_: Tensor, ids: Tensor) -> None:
    ids[0, 0] = (ids[0, 0] + 1) % EXPERTS


def _wrong_blocks(_: Tensor, ids: Any) -> None:
    ids.sparkdeploy_blocks.expert_ids[0] += 1


def _wrong_places(_: Tensor, ids: Any) -> None:
    ids.sparkdeploy_blocks.sorted_ids[-1] = 0


def check_another_choice_than_vllm_s_is_not_used() -> None:
    like = torch.zeros((1, EXPERTS))
    announce.announce_once.cache_clear()
    announce.warn_once.cache_clear()
    with _vllm_log() as log:
        for change in (_wrong_weights, _wrong_experts, _wrong_blocks, _wrong_places):
            with mock.patch.object(routing, "fused", _otherwise(change)):
                assert not routing.agrees_with(_router(), like, _vllms, _aligned), change
        assert "stays vLLM's own" in log.getvalue()
        with mock.patch.object(routing, "fused", _ours):
            assert routing.agrees_with(_router(), like.bfloat16(), _vllms, _aligned)
        assert "in one launch" in log.getvalue()


def check_few_rows_of_a_softmax_on_a_gpu_are_ours() -> None:
    def logits(rows: int = 3, **facts: Any) -> Any:
        shaped = {"shape": (rows, EXPERTS), "is_cuda": True, "is_contiguous.return_value": True}
        return mock.Mock(**{**shaped, **facts})

    assert routing.fits(_router(), logits(), None)
    assert routing.fits(_router(), logits(8), torch.int32)
    assert not routing.fits(_router(), logits(9), None)
    assert not routing.fits(_router(), logits(0), None)
    assert not routing.fits(_router(), logits(), torch.int64)
    assert not routing.fits(_router(), logits(is_cuda=False), None)
    assert not routing.fits(_router(scoring_func="sigmoid"), logits(), None)


@contextmanager
def _installed(align: Any) -> Iterator[None]:
    with (
        mock.patch.object(marlin_moe, "moe_align_block_size", align),
        mock.patch.object(FusedTopKRouter, "_compute_routing", PLAIN),
    ):
        routing.install()
        routing.install()
        yield


def check_marlin_finds_the_blocks_of_the_choice_that_it_is_given() -> None:
    align = mock.Mock(return_value="vLLM's", __name__="align")
    ids: Any = torch.zeros((3, TOP), dtype=torch.int32)
    with _installed(align):
        sort = marlin_moe.moe_align_block_size
        assert sort(ids, 8, EXPERTS, None, ignore_invalid_experts=True) == "vLLM's"
        ids.sparkdeploy_blocks = "ours"
        assert sort(ids, 8, EXPERTS, None, ignore_invalid_experts=True) == "ours"
        assert sort(ids, 16, EXPERTS, None) == "vLLM's"
        # A rank that has some of the experts asks for those alone.
        assert sort(ids, 8, EXPERTS, torch.zeros(EXPERTS)) == "vLLM's"
        assert sort(ids, 8, EXPERTS, expert_map=torch.zeros(EXPERTS)) == "vLLM's"


def check_a_cpu_keeps_vllm_s() -> None:
    logits = torch.randn((3, EXPERTS))
    assert FusedTopKRouter._compute_routing is PLAIN
    assert not routing.fits(_router(), logits, None)


def check_an_engine_installs_it_whose_configuration_comes_from_another_process() -> None:
    for way, times in (("fused", 1), ("vllm", 0)):
        config = pickle.loads(pickle.dumps(_config(lm_head="bf16", routing=way)))
        with (
            mock.patch.object(hybrid_config, "fuse_routing") as fuse,
            mock.patch.object(
                hybrid_config, "current_platform", mock.Mock(**{"is_cpu.return_value": False})
            ),
        ):
            config.get_quant_method(Module(), "model.layers.0.mlp.gate")
        assert fuse.call_count == times, way


def check_marlin_s_workspace_is_made_once_but_not_within_a_graph() -> None:
    made = mock.Mock(side_effect=lambda *_: torch.zeros(4), __name__="make")
    workspace, device = routing.kept_workspace(made), torch.device("cpu")
    with mock.patch.object(torch.cuda, "is_current_stream_capturing") as capturing:
        capturing.return_value = True
        assert workspace(device, 4) is not workspace(device, 4)
        capturing.return_value = False
        kept = workspace(device, 4)
        assert workspace(device, 2) is not kept
        capturing.return_value = True
        assert workspace(device, 4) is kept
    assert made.call_count == 4
