"""TurboQuant back ends that differ from the plugin's in one thing."""

from typing import Any

from sparkdeploy_vllm.turboquant.backend import (
    SparkTurboQuantBackend,
    SparkTurboQuantBuilder,
    SparkTurboQuantImpl,
)
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.turboquant_attn import (
    TurboQuantAttentionImpl,
    TurboQuantMetadata,
    TurboQuantMetadataBuilder,
)


class HostLengthsBuilder(TurboQuantMetadataBuilder):
    """vLLM's builder without its claim about CUDA graphs, and no more."""

    @classmethod
    def get_cudagraph_support(cls, *_: Any) -> Any:
        return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE


class HostLengths(SparkTurboQuantBackend):
    """The verification runs in vLLM's loop, over lengths that count rejected drafts."""

    @staticmethod
    def get_builder_cls() -> type[TurboQuantMetadataBuilder]:
        return HostLengthsBuilder

    @staticmethod
    def get_impl_cls() -> type[TurboQuantAttentionImpl]:
        return TurboQuantAttentionImpl


class ExactLengthsBuilder(HostLengthsBuilder):
    """The same loop over the lengths on the device: one synchronisation a step."""

    def build(self, *args: Any, **kwargs: Any) -> TurboQuantMetadata:
        metadata = super().build(*args, **kwargs)
        if metadata.is_prefill and metadata.seq_lens_cpu is not None:
            metadata.seq_lens_cpu = metadata.seq_lens.to("cpu")
        return metadata


class ExactLengths(HostLengths):
    """With ExactLengthsBuilder."""

    @staticmethod
    def get_builder_cls() -> type[TurboQuantMetadataBuilder]:
        return ExactLengthsBuilder


class ShapeOnly(HostLengths):
    """Nothing but the shape without which no TurboQuant engine starts."""

    @staticmethod
    def get_builder_cls() -> type[TurboQuantMetadataBuilder]:
        return TurboQuantMetadataBuilder


class VllmKernelImpl(SparkTurboQuantImpl):
    """Ours, but for the decode kernel: vLLM's own reads the pages."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kernel = None


class VllmKernel(SparkTurboQuantBackend):
    """With VllmKernelImpl."""

    @staticmethod
    def get_impl_cls() -> type[SparkTurboQuantImpl]:
        return VllmKernelImpl


class FullGraphsBuilder(SparkTurboQuantBuilder):
    """Ours, with vLLM's claim about CUDA graphs on a release where nobody has proven it."""

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> Any:
        return super(SparkTurboQuantBuilder, cls).get_cudagraph_support(vllm_config, kv_cache_spec)


class FullGraphs(SparkTurboQuantBackend):
    """With FullGraphsBuilder."""

    @staticmethod
    def get_builder_cls() -> type[TurboQuantMetadataBuilder]:
        return FullGraphsBuilder
