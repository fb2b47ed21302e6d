"""The quantisation config `spark-hybrid`: that of the checkpoint, with exceptions of our own.

FP8 for dense layers that the checkpoint leaves at 16 bits, FP8 or INT4 shared experts, a head of
integers, a head of frequent tokens for drafts, and a draft layer of INT4 and FP8.
"""

from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from torch.nn import Module
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import (
    QUANTIZATION_METHODS,
    get_quantization_config,
)
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.quantization.inc import INCConfig
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)
from vllm.platforms import current_platform

from sparkdeploy_vllm.check.releases import TARGETS_SINCE, installed_version, release_of
from sparkdeploy_vllm.drafts.layer import draft_layer_method
from sparkdeploy_vllm.head.draft_head import remember_head
from sparkdeploy_vllm.head.lm_head import HEAD_FORMS, IntegerLMHeadMethod, ReportingLMHeadMethod
from sparkdeploy_vllm.weights.conversion import (
    BLOCK_KEY,
    METHOD_NAME,
    PLAIN,
    HybridConversion,
    checkpoint_modules,
    is_fp8_layer,
    layer_key,
    modules_of,
)
from sparkdeploy_vllm.weights.fp8_checkpoint import checkpoint_linear_method
from sparkdeploy_vllm.weights.fp8_linear import (
    DenseFp8Method,
    LedgerEntry,
    fp8_linear_method,
    tell_when_weights_are_there,
)
from sparkdeploy_vllm.weights.int4_linear import Int4SharedExpertMethod
from sparkdeploy_vllm.weights.ledger import ConversionLedger, DraftLedger

NOTHING_PACKED = {
    "quant_method": "auto-round",
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "packing_format": "auto_round:auto_gptq",
}
"""What AutoRound's configuration is made with where the checkpoint has none, and for shared
experts, which the checkpoint's own leaves out."""
CONVERTED_FORMATS = (
    "sharded_state",
    "runai_streamer_sharded",
    "tensorizer",
    "bitsandbytes",
    "gguf",
)
"""What vLLM loads as another start left it after conversion, or converts by itself: copied over our
unconverted parameters, FP8 and INT8 would be taken for BF16 without their scales."""


class SparkHybridConfig(QuantizationConfig):
    """The exceptions, before vLLM's own class for the checkpoint; see `config_class`."""

    conversion: HybridConversion
    ledger: ConversionLedger
    draft_ledger: DraftLedger | None = None
    fp8_keys: frozenset[str] = frozenset()
    """Of the modules that become FP8 by a list, the part of their names that engines keep."""
    targets: Any = None
    """Our SharedExpertTargets, where vLLM makes the FP8 layers. A user's own
    `--quantization-config` takes its place; then the plugin makes the layers as before 0.30."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SparkHybridConfig":
        rest = dict(config)
        block = rest.pop(BLOCK_KEY, None)
        if block is None:
            raise ValueError(f"quantization_config says {METHOD_NAME!r} but has no {BLOCK_KEY!r}")
        conversion = HybridConversion.from_block(block)
        if conversion.base_method == PLAIN:
            base, rest = INCConfig, dict(NOTHING_PACKED)
        else:
            # Models that ask for the checkpoint's method (gpt-oss) are to find it; this is theirs.
            rest["quant_method"] = config["quant_method"] = conversion.base_method
            base = base_class(rest, conversion.model_type)
        made = config_class(base).from_base(rest)
        made.conversion = conversion
        made.fp8_keys = frozenset(map(layer_key, conversion.fp8_modules))
        made.ledger = ConversionLedger(
            expected_fp8_modules=conversion.expected_fp8_layers,
            head_wanted=conversion.lm_head,
            expected_int4_modules=conversion.int4_shared_experts or 0,
        )
        if conversion.draft_layer is not None:
            made.draft_ledger = DraftLedger(*conversion.draft_layer)
        if conversion.fp8_mode == "online" and not made.fp8_keys and takes_targets():
            made.hand_over_fp8()
        return made

    @classmethod
    def from_base(cls, config: dict[str, Any]) -> "SparkHybridConfig":
        """Make what the checkpoint's class makes of its part; of this class, which derives it."""
        return super().from_config(config)  # type: ignore[safe-super,return-value]

    def __reduce__(self) -> Any:
        # A class that is made here is found by its base's name; state is set as pickle does.
        return _empty, (type(self).__mro__[2],), vars(self)

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg: Any, *_: Any, **__: Any) -> str | None:
        # From 0.20 on vLLM passes more than the user's own choice.
        if isinstance(hf_quant_cfg, dict) and BLOCK_KEY in hf_quant_cfg:
            return METHOD_NAME
        return None

    def maybe_update_config(self, *_: Any, **__: Any) -> None:
        """Nothing to add: everything is in config.json (the arguments differ between versions)."""

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        super().apply_vllm_mapper(hf_to_vllm_mapper)
        mapped = hf_to_vllm_mapper.apply_list(list(self.conversion.fp8_modules))
        self.fp8_keys |= frozenset(map(layer_key, mapped))

    def hand_over_fp8(self) -> None:
        # The module needs what vLLM before 0.30 does not have.
        from sparkdeploy_vllm.weights.fp8_native import SharedExpertTargets

        self.online_quantization_config = self.targets = SharedExpertTargets(self.ledger)

    def get_quant_method(self, layer: Module, prefix: str) -> Any:
        """Our exceptions first (AutoRound's list calls all of them plain), then the checkpoint's.

        What is made once the books are closed, or is called so, is a draft model's, which has books
        of its own, and whose short-lived head must not be counted.
        """
        if not current_platform.is_cpu():
            self._fuse()
        is_draft = self.ledger.closed or "mtp" in prefix.split(".")
        if is_draft:
            self.ledger.close_for_draft()
        if isinstance(layer, ParallelLMHead):
            return self._head_method(layer, prefix)
        if is_draft:
            return self._draft_method(layer, prefix) or self._base_method(layer, prefix)
        is_linear = isinstance(layer, LinearBase)
        method = self._converting_method(layer, prefix) if is_linear else None
        if method is not None:
            self._note_launch()
            return method
        method = self._base_method(layer, prefix)
        if is_linear and method is not None:
            self._note_launch()
            return tell_when_weights_are_there(method, self.ledger)
        return method

    def _fuse(self) -> None:
        """Install what few rows take: an engine gets this object pickled, without `from_config`."""
        if self.conversion.fp8_kernel == "fused":
            fuse_shared_experts()
        if self.conversion.routing == "fused":
            fuse_routing()

    def _draft_method(self, layer: Module, prefix: str) -> Any:
        if self.draft_ledger is None:
            return None
        self._note_launch()
        return draft_layer_method(self.draft_ledger, layer, prefix, self.packed_modules_mapping)

    def _converting_method(self, layer: Module, prefix: str) -> Any:
        if not self.fp8_keys:
            return self._shared_expert_method(layer, prefix) if is_fp8_layer(prefix) else None
        if not self._is_listed(prefix):
            return None
        base = self._base_method(layer, prefix)
        if base is not None and not isinstance(base, UnquantizedLinearMethod):
            return None
        return DenseFp8Method(self._entry(prefix))

    def _is_listed(self, prefix: str) -> bool:
        """Whether a module is one that becomes FP8: fused in vLLM, or in the checkpoint already."""
        parts = modules_of(prefix, self.packed_modules_mapping)
        return any(self.fp8_keys.issuperset(map(layer_key, it)) for it in (parts, (prefix,)))

    def _base_method(self, layer: Module, prefix: str) -> Any:
        if self.conversion.base_method != PLAIN:
            return super().get_quant_method(layer, prefix)
        if isinstance(layer, LinearBase):
            return UnquantizedLinearMethod()
        return plain_experts(layer)

    def _shared_expert_method(self, layer: Module, prefix: str) -> Any:
        if self.conversion.int4_shared_experts is not None:
            packed = INCConfig.from_config(NOTHING_PACKED).get_quant_method(layer, prefix)
            return Int4SharedExpertMethod(packed, self._entry(prefix))
        mode = self.conversion.fp8_mode
        if mode is None:
            return None
        return self._fp8_method(mode, prefix)

    def _fp8_method(self, mode: str, prefix: str) -> Any:
        if self.targets is not None and self.online_quantization_config is self.targets:
            # What vLLM's next question, to the targets, is allowed to replace.
            return UnquantizedLinearMethod()
        make = fp8_linear_method if mode == "online" else partial(checkpoint_linear_method, mode)
        return make(self._entry(prefix))

    def _entry(self, prefix: str) -> LedgerEntry:
        modules = checkpoint_modules(prefix, self.packed_modules_mapping)
        return LedgerEntry(self.ledger, prefix, modules=modules)

    def _head_method(self, layer: Module, prefix: str) -> Any:
        remember_head(layer)
        self._note_launch()
        if self.conversion.lm_head in HEAD_FORMS:
            return IntegerLMHeadMethod(self.conversion.lm_head, self.ledger, prefix)
        method = self._base_method(layer, prefix)
        plain = UnquantizedLinearMethod | UnquantizedEmbeddingMethod
        if method is None or isinstance(method, plain):
            return ReportingLMHeadMethod(self.ledger, prefix)
        return method

    def _note_launch(self) -> None:
        current = get_current_vllm_config()
        if current.load_config.load_format in CONVERTED_FORMATS:
            raise ValueError(
                f"sparkdeploy: load_format is {current.load_config.load_format}, whose weights are "
                f"no checkpoint that {METHOD_NAME} converts; leave load_format out, or use "
                "safetensors, fastsafetensors, instanttensor or runai_streamer"
            )
        parallel = current.parallel_config
        self.ledger.whole_model = getattr(parallel, "pipeline_parallel_size", 1) == 1


@cache
def config_class(base: type[QuantizationConfig]) -> type[SparkHybridConfig]:
    """Return the exceptions before `base`, an instance of which models and kernels take it for."""
    # A model's own name for 16 bits is ours; of what is quantised, models ask whose it is.
    own_name = {"get_name": classmethod(lambda _: METHOD_NAME)} if base is INCConfig else {}
    return type(f"SparkHybrid{base.__name__}", (SparkHybridConfig, base), own_name)


def _empty(base: type[QuantizationConfig]) -> SparkHybridConfig:
    return object.__new__(config_class(base))


def base_class(config: dict[str, Any], model_type: str) -> type[QuantizationConfig]:
    """Return vLLM's class for a checkpoint's own configuration, asked as vLLM itself asks."""
    hf_config = SimpleNamespace(model_type=model_type)
    for name in QUANTIZATION_METHODS:
        if name == METHOD_NAME:
            continue
        found = get_quantization_config(name)
        chosen = found.override_quantization_method(config, None, hf_config=hf_config)
        if chosen is not None:
            return get_quantization_config(chosen)
    return get_quantization_config(config["quant_method"])


def plain_experts(layer: Module) -> Any:
    """Return vLLM's own method for experts of 16 bits; None for what is no layer of experts."""
    try:
        from vllm.model_executor.layers.fused_moe import UnquantizedFusedMoEMethod
    except ImportError:
        return None
    config = getattr(layer, "moe_config", None)
    return UnquantizedFusedMoEMethod(config) if config is not None else None


def fuse_shared_experts() -> None:
    """The module needs vLLM's class of them, which models without any never load."""
    from sparkdeploy_vllm.weights.shared_expert import install

    install()


def fuse_routing() -> None:
    """As above: the module needs vLLM's router and Marlin's experts."""
    from sparkdeploy_vllm.weights.routing import install

    install()


def takes_targets() -> bool:
    """Whether this vLLM can be told which layers to make FP8, and has kernels for them here.

    Its kernels for CPUs need AMX and leave the activations BF16 (`CPUFp8BlockScaledMMKernel`):
    none on most machines, and another result than a GPU's.
    """
    return not current_platform.is_cpu() and release_of(installed_version()) >= TARGETS_SINCE
