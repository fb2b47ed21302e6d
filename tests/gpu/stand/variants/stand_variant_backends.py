"""TurboQuant back ends that differ from the plugin's in one thing."""

from dataclasses import replace
from typing import Any

import torch
from sparkdeploy_vllm.turboquant_backend import SparkTurboQuantBackend, SparkTurboQuantBuilder
from vllm.v1.attention.backends.turboquant_attn import (
    TurboQuantAttentionImpl,
    TurboQuantMetadata,
    TurboQuantMetadataBuilder,
)


class HostLengthsBuilder(TurboQuantMetadataBuilder):
    """vLLM's builder with our claim about CUDA graphs, and no more."""

    get_cudagraph_support = SparkTurboQuantBuilder.get_cudagraph_support


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


class FullGraphsBuilder(SparkTurboQuantBuilder):
    """Ours with full CUDA graphs: what is split stands where a graph finds it again."""

    lengths: torch.Tensor | None = None
    tables: torch.Tensor | None = None

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> Any:
        return TurboQuantMetadataBuilder.get_cudagraph_support(vllm_config, kv_cache_spec)

    def build(self, *args: Any, **kwargs: Any) -> TurboQuantMetadata:
        metadata = super().build(*args, **kwargs)
        rows = metadata.num_decode_tokens
        if metadata.is_prefill or metadata.num_decodes < 1:
            return metadata
        if self.lengths is None or self.tables is None:
            most = self.vllm_config.scheduler_config.max_num_seqs * self.reorder_batch_threshold
            table = metadata.block_table
            self.lengths = metadata.seq_lens.new_zeros(most)
            self.tables = table.new_zeros((most, table.shape[1]))
        self.lengths[:rows].copy_(metadata.seq_lens[:rows])
        self.tables[:rows].copy_(metadata.block_table[:rows])
        return replace(metadata, seq_lens=self.lengths[:rows], block_table=self.tables[:rows])


class FullGraphs(SparkTurboQuantBackend):
    """With FullGraphsBuilder."""

    @staticmethod
    def get_builder_cls() -> type[FullGraphsBuilder]:
        return FullGraphsBuilder


class ShapeOnly(HostLengths):
    """Nothing but the shape without which no TurboQuant engine starts."""

    @staticmethod
    def get_builder_cls() -> type[TurboQuantMetadataBuilder]:
        return TurboQuantMetadataBuilder
