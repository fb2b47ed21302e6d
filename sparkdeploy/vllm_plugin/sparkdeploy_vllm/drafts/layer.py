"""A draft layer whose weights shrink while they are loaded: which method its layers get.

Its experts become INT4, its dense matrices FP8; router, gates and norms stay as they are. Every
weight is converted as the rank has it, so that each rank's groups and blocks are its own.
"""

from typing import Any

from torch.nn import Module
from vllm.model_executor.layers.linear import LinearBase
from vllm.platforms import current_platform

from sparkdeploy_vllm.announce import announce
from sparkdeploy_vllm.weights.conversion import (
    FP8_BLOCK,
    INT4_GROUP,
    checkpoint_modules,
    is_draft_dense,
    refuse_broken_groups,
)
from sparkdeploy_vllm.weights.fp8_linear import LedgerEntry, fp8_linear_method
from sparkdeploy_vllm.weights.ledger import DraftLedger
from sparkdeploy_vllm.weights.reference import NOT_LOADED


class DraftEntry(LedgerEntry):
    def check_parts(
        self,
        input_size_per_partition: int,
        output_partition_sizes: list[int],  # noqa: ARG002 - vLLM passes it by its name
        input_size: int,
        *_: Any,
        **__: Any,
    ) -> None:
        """Its blocks are made of what the rank holds, so only a group of inputs has to be whole."""
        if input_size_per_partition != input_size:
            refuse_broken_groups(self.name, input_size_per_partition, FP8_BLOCK)


class ExpertsEntry:
    def __init__(self, ledger: DraftLedger, name: str) -> None:
        self.ledger = ledger
        self.name = name

    def created(self, layer: Module) -> None:
        """Enter experts whose 16-bit parameters are there and not loaded yet."""
        for weight in (layer.w13_weight, layer.w2_weight):
            refuse_broken_groups(self.name, weight.shape[-1], INT4_GROUP)
            weight.data.fill_(NOT_LOADED)
        self.ledger.layer_created(self.name)

    def converted(self) -> None:
        self.ledger.int4_converted(self.name, announce=announce)


def draft_layer_method(ledger: DraftLedger, layer: Module, prefix: str, packed: Any) -> Any:
    """Return the method of a draft layer's matrix or experts; None for what stays as it is."""
    if isinstance(layer, LinearBase):
        if not is_draft_dense(prefix):
            return None
        modules = checkpoint_modules(prefix, packed)
        return fp8_linear_method(DraftEntry(ledger, prefix, modules=modules))
    if (moe_config := getattr(layer, "moe_config", None)) is None:
        return None
    try:
        # Here, for older releases have these classes elsewhere and serve without them.
        from sparkdeploy_vllm.drafts import experts
    except ImportError as error:
        raise ValueError(
            "sparkdeploy: this vLLM has no INT4 experts that the plugin knows (they came with "
            "0.25.1); use a newer engine, or set checkpoint.mtp_weights to bf16"
        ) from error
    # On CPUs the values at 16 bits, as vLLM's kernel for them needs AMX.
    is_cpu = current_platform.is_cpu()
    method = experts.RoundedExpertsMethod if is_cpu else experts.Int4ExpertsMethod
    return method(moe_config, ExpertsEntry(ledger, prefix))
