"""vLLM's own FP8 per block on chosen layers of a quantised checkpoint: from 0.30 on, on GPUs.

vLLM asks the checkpoint's configuration for a layer's method first, and then the one for online
quantisation that hangs on it (`resolve_quant_method`). Import this only where both exist.
"""

from torch.nn import Module
from vllm.config.quantization import QuantizationConfigArgs
from vllm.model_executor.layers.linear import LinearMethodBase
from vllm.model_executor.layers.quantization.online.base import OnlineQuantizationConfig

from sparkdeploy_vllm.weights.conversion import FP8_LAYER, FP8_SCHEME, checkpoint_modules
from sparkdeploy_vllm.weights.fp8_linear import LedgerEntry, keep_books
from sparkdeploy_vllm.weights.ledger import ConversionLedger


class SharedExpertTargets(OnlineQuantizationConfig):
    """The shared experts as targets of vLLM's, in our books; at module level, for pickle."""

    def __init__(self, ledger: ConversionLedger) -> None:
        super().__init__(QuantizationConfigArgs(targets={f"re:{FP8_LAYER}": FP8_SCHEME}))
        self.ledger = ledger

    def get_quant_method(self, layer: Module, prefix: str) -> LinearMethodBase:
        # It is asked for targets only.
        modules = checkpoint_modules(prefix, self.packed_modules_mapping)
        entry = LedgerEntry(self.ledger, prefix, modules=modules)
        return keep_books(super().get_quant_method(layer, prefix), entry)
