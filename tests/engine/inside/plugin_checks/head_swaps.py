"""A worker extension: gives the served model another LM head, one of them wrong on purpose.

For the test of `bench quality`; vLLM mixes the class into its worker (`--worker-extension-cls`).
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from sparkdeploy_vllm.weights.reference import INT8_MAX
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)

COARSE_MAX = 7.0
"""What four bits hold."""


class HeadSwaps:
    """Methods that `/collective_rpc` calls."""

    model_config: Any
    model_runner: Any
    loaded: tuple[torch.Tensor, torch.Tensor, Any]
    """The INT8 head as the plugin made it while loading: weight, scales, method."""

    def swap_head(self, kind: str) -> str:
        """Serve with `loaded`, `bf16`, `shifted` or `coarse` from now on; return its dtype."""
        head = next(m for m in self.model_runner.model.modules() if isinstance(m, ParallelLMHead))
        if not hasattr(self, "loaded"):
            self.loaded = (head.weight.data, head.weight_scale.data, head.quant_method)
        weight, scales, head.quant_method = self.loaded
        exact = self._bf16_rows(weight.shape[0])
        if kind == "bf16":
            head.weight.data = exact
            head.quant_method = UnquantizedEmbeddingMethod()
            head.quant_method.process_weights_after_loading(head)
            return str(head.weight.dtype)
        if kind == "shifted":  # each row with its neighbour's scale
            scales = scales.roll(1)
        if kind == "coarse":  # four bits instead of eight
            scales = scales * (INT8_MAX / COARSE_MAX)
            weight = (exact.float() / scales.unsqueeze(1)).round().to(torch.int8)
        head.weight.data, head.weight_scale.data = weight, scales
        return str(head.weight.dtype)

    def _bf16_rows(self, row_count: int) -> torch.Tensor:
        """The head as the checkpoint has it, padded with zeros as vLLM pads it."""
        for path in sorted(Path(self.model_config.model).glob("*.safetensors")):
            with safe_open(path, "pt") as tensors:
                if "lm_head.weight" in tensors.keys():  # noqa: SIM118 - it is no mapping
                    stored = tensors.get_tensor("lm_head.weight")
                    rows = stored.new_zeros(row_count, stored.shape[1])
                    rows[: stored.shape[0]] = stored
                    return rows
        raise FileNotFoundError("no file of the checkpoint holds lm_head.weight")
