"""A kernel for FP8 in blocks on any CPU, so that vLLM's own methods for GPUs can be checked."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from check_vllm_hooks import EXPERT, _one_rank
from sparkdeploy_vllm.weights.conversion import checkpoint_modules
from sparkdeploy_vllm.weights.fp8_linear import LedgerEntry
from sparkdeploy_vllm.weights.hybrid_config import SparkHybridConfig
from sparkdeploy_vllm.weights.reference import dequantize_blocks, linear_per_row
from vllm.config import get_current_vllm_config
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.kernels.linear.scaled_mm.BlockScaledMMLinearKernel import (
    Fp8BlockScaledMMLinearKernel,
)
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype

HIDDEN, INTERMEDIATE = 256, 384


class StandInKernel(Fp8BlockScaledMMLinearKernel):
    """FP8 times FP8 in blocks, by plain torch; FP32 scales or nothing, as CUTLASS."""

    @classmethod
    def is_supported(
        cls,
        compute_capability: int | None = None,  # noqa: ARG003 - vLLM's signature
    ) -> tuple[bool, str | None]:
        return True, None

    def apply_block_scaled_mm(
        self,
        A: torch.Tensor,  # noqa: N803 - vLLM's names
        B: torch.Tensor,  # noqa: N803
        As: torch.Tensor,  # noqa: N803
        Bs: torch.Tensor,  # noqa: N803
    ) -> torch.Tensor:
        assert A.dtype == B.dtype == torch.float8_e4m3fn
        assert As.dtype == Bs.dtype == torch.float32
        rows = A.float() * As.repeat_interleave(128, 1)[:, : A.shape[1]]
        return linear_per_row(rows, dequantize_blocks(B, Bs))


@contextlib.contextmanager
def kernel_in_place() -> Iterator[None]:
    """One rank with BF16 as its dtype and a kernel for FP8 in blocks, before vLLM's own."""
    known = kernels._POSSIBLE_FP8_BLOCK_KERNELS[current_platform._enum]
    known.insert(0, StandInKernel)
    try:
        with _one_rank(), set_default_torch_dtype(torch.bfloat16):
            model = SimpleNamespace(dtype=torch.bfloat16, model="")
            object.__setattr__(get_current_vllm_config(), "model_config", model)
            yield
    finally:
        known.remove(StandInKernel)


def served_by(config: SparkHybridConfig, make: Callable[[LedgerEntry], Any]) -> SparkHybridConfig:
    """The config with another maker of FP8 methods than the one for this platform."""

    def method(_mode: str, prefix: str) -> Any:
        modules = checkpoint_modules(prefix, config.packed_modules_mapping)
        return make(LedgerEntry(config.ledger, prefix, modules=modules))

    config._fp8_method = method
    return config


def shared_expert(config: SparkHybridConfig) -> tuple[Any, Any]:
    """Both layers, made as vLLM makes them: nothing is cast afterwards."""
    options = {"bias": False, "quant_config": config}
    gate_up = MergedColumnParallelLinear(
        HIDDEN, [INTERMEDIATE] * 2, prefix=f"{EXPERT}.gate_up_proj", **options
    )
    down = RowParallelLinear(INTERMEDIATE, HIDDEN, prefix=f"{EXPERT}.down_proj", **options)
    return gate_up, down


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are one, NaNs and signs of zeros included."""
    return first.dtype == second.dtype and torch.equal(
        first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8)
    )
