"""Layers whose checkpoint is FP8 already, under the layer's own names: nothing to convert."""

from typing import Any

import torch
from torch.nn import Module
from vllm.model_executor.layers.linear import LinearMethodBase
from vllm.platforms import current_platform

from sparkdeploy_vllm.fp8_books import LedgerEntry
from sparkdeploy_vllm.fp8_checkpoint import (
    SCALE,
    WEIGHT,
    CheckpointKernelMethod,
    add_fp8_parameters,
)
from sparkdeploy_vllm.fp8_linear import ReferenceFp8LinearMethod, replace_parameter
from sparkdeploy_vllm.ledger import ConversionMismatchError


class FinishedReferenceMethod(ReferenceFp8LinearMethod):
    """The plain torch path for a weight that is loaded as FP8."""

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        """Create the FP8 weight and its scales; there never is a BF16 one."""
        add_fp8_parameters(layer, (WEIGHT, SCALE), *weight_args, **extra_weight_attrs)
        self.entry.created()

    def process_weights_after_loading(self, layer: Module) -> None:
        """Check that both came, and keep them as plain parameters."""
        check_loaded(layer, self.entry)
        for name in (WEIGHT, SCALE):
            replace_parameter(layer, name, getattr(layer, name).data)
        self.entry.converted(layer)


class FinishedKernelMethod(CheckpointKernelMethod):
    """vLLM's own method, with nothing of ours but the look at what was loaded."""

    def process_weights_after_loading(self, layer: Module) -> None:
        """Check that both came; then what vLLM does with them."""
        check_loaded(layer, self.entry)
        self.entry.converted(layer)
        super().process_weights_after_loading(layer)


def finished_linear_method(entry: LedgerEntry) -> LinearMethodBase:
    """Return the method for this platform."""
    if current_platform.is_cpu():
        return FinishedReferenceMethod(entry)
    return FinishedKernelMethod(entry)


def check_loaded(layer: Module, entry: LedgerEntry) -> None:
    """Raise ConversionMismatchError unless every weight is a number and every scale positive.

    Parameters begin as what no checkpoint holds, so this also finds what was never loaded.
    """
    if not entry.checks_weights():
        return
    scales = getattr(layer, SCALE).data.float()
    weight_is_nan = torch.isnan(getattr(layer, WEIGHT).data.float()).any()
    if weight_is_nan or not bool((torch.isfinite(scales) & (scales > 0)).all()):
        raise ConversionMismatchError(
            f"sparkdeploy: {entry.name} has no sound FP8 weight and scales: the checkpoint lacks "
            "them, or they are damaged"
        )
