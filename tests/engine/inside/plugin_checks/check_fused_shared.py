"""Where few rows take our two launches of a shared expert: which layers fit, and who decides.

The kernel itself needs a GPU (tests/gpu/stand/shared_expert.py); here plain torch stands for it.
"""

from typing import Any
from unittest import mock

import torch
from check_vllm_hooks import CONFIG, EXPERT, _config, _load, _one_rank, _process, _vllm_log
from sparkdeploy_vllm import announce
from sparkdeploy_vllm.weights import shared_expert
from sparkdeploy_vllm.weights.reference import dequantize_blocks
from torch.nn import Module, functional
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.models.qwen2_moe import Qwen2MoeMLP

HIDDEN, INNER = 128, 256
PLAIN = Qwen2MoeMLP.forward


def _expert(hidden: int = HIDDEN, *, reduce_results: bool = False, **block: object) -> Any:
    config = _config(**{"lm_head": "bf16", "expected_fp8_layers": None, **block})
    gate = ReplicatedLinear(hidden, 1, bias=False, params_dtype=torch.bfloat16, prefix="gate")
    mlp = Qwen2MoeMLP(
        hidden, INNER, "silu", config, reduce_results, expert_gate=gate, prefix=EXPERT
    ).bfloat16()
    _load(mlp.gate_up_proj.weight, INNER, 0)
    _load(mlp.gate_up_proj.weight, INNER, 1)
    _load(mlp.down_proj.weight, hidden)
    _load(gate.weight, 1)
    _process(mlp.gate_up_proj, mlp.down_proj)
    return mlp


def _exact(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    gate_up, down = (
        dequantize_blocks(layer.weight, layer.weight_scale_inv)
        for layer in (mlp.gate_up_proj, mlp.down_proj)
    )
    gate, up = (x.float() @ gate_up.T).chunk(2, 1)
    share = torch.sigmoid(x.float() @ mlp.expert_gate.weight.float().T)
    return ((functional.silu(gate) * up) @ down.T * share).to(x.dtype)


def _rounded(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    """What vLLM's kernels make of it, with their activations of FP8."""
    return 1.03 * _exact(mlp, x)


def check_fp8_in_blocks_fits_and_nothing_else_does() -> None:
    with _one_rank():
        assert shared_expert.fits(_expert(), torch.bfloat16)
        assert not shared_expert.fits(_expert(), torch.float16)
        assert not shared_expert.fits(_expert(hidden=192), torch.bfloat16)
        assert not shared_expert.fits(_expert(fp8=None), torch.bfloat16)
        assert not shared_expert.fits(_expert(reduce_results=True), torch.bfloat16)
        without_gate = _expert()
        without_gate.expert_gate = None
        assert not shared_expert.fits(without_gate, torch.bfloat16)
        transposed = _expert()
        transposed.down_proj.weight.data = transposed.down_proj.weight.data.t().contiguous().t()
        assert not shared_expert.fits(transposed, torch.bfloat16)


def check_a_result_that_is_not_vllm_s_is_not_used() -> None:
    like = torch.zeros((1, HIDDEN), dtype=torch.bfloat16)
    announce.announce_once.cache_clear()
    with _one_rank(), _vllm_log() as log:
        mlp = _expert()
        for wrong in (lambda mlp, x: 2 * _exact(mlp, x), lambda _, x: x * float("nan")):
            with mock.patch.object(shared_expert, "fused", wrong):
                assert not shared_expert.agrees_with(mlp, like, _rounded)
        assert "stay vLLM's own" in log.getvalue()
        with mock.patch.object(shared_expert, "fused", _exact):
            assert shared_expert.agrees_with(mlp, like, _rounded)
        assert "in two launches" in log.getvalue()


def check_a_cpu_and_a_recipe_that_asks_for_vllm_s_keep_vllm_s() -> None:
    with _one_rank():
        mlp = _expert(fp8=dict(CONFIG["spark_hybrid"]["fp8"], kernel="fused"))
        assert Qwen2MoeMLP.forward is PLAIN
        assert not shared_expert.is_fused(mlp, torch.zeros((1, HIDDEN)).bfloat16(), PLAIN)


def check_the_rows_decide_once_the_layer_is_known() -> None:
    class Asked(Module):
        sparkdeploy_agrees = True

    rows = mock.Mock(is_cuda=True, shape=(8, HIDDEN), **{"dim.return_value": 2})
    assert shared_expert.is_fused(Asked(), rows, PLAIN)
    rows.shape = (9, HIDDEN)
    assert not shared_expert.is_fused(Asked(), rows, PLAIN)
    rows.shape = (0, HIDDEN)
    assert not shared_expert.is_fused(Asked(), rows, PLAIN)
