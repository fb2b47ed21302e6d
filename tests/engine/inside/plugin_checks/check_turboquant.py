"""TurboQuant's back end: what its builder claims and keeps, and what attends to which tokens."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from said import refusal
from sparkdeploy_vllm import register
from sparkdeploy_vllm.registration import TURBOQUANT_PATH
from sparkdeploy_vllm.turboquant import backend
from sparkdeploy_vllm.turboquant.backend import (
    SparkTurboQuantBackend,
    SparkTurboQuantBuilder,
    SparkTurboQuantImpl,
    decode_rows,
    one_row_a_token,
    shortcut_hides_a_cache,
)
from vllm.config import VllmConfig, get_current_vllm_config, set_current_vllm_config
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends import turboquant_attn
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionImpl, TurboQuantMetadata

REJECTED = 2
"""How far the host's lengths may be beyond the device's."""
DRAFTS = 2
HEADS, HEAD_DIM = 4, 128
FLASH, ASKED = "vllm.vllm_flash_attn.flash_attn_interface", "is_fa_version_supported"


def _batch(queries: list[int], cached: list[int], padding: int = 0) -> CommonAttentionMetadata:
    """Requests with so many new and cached tokens; those that decode first, as the runner sorts."""
    starts = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    lengths = torch.tensor([q + c for q, c in zip(queries, cached, strict=True)]).to(torch.int32)
    tokens = int(starts[-1]) + padding
    host = lengths + REJECTED * (torch.tensor(queries) <= 1 + DRAFTS).int()
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts.clone(),
        seq_lens=lengths,
        num_reqs=len(queries),
        num_actual_tokens=tokens,
        max_query_len=max(queries),
        max_seq_len=int(host.max()),
        block_table_tensor=torch.arange(len(queries) * 4, dtype=torch.int32).view(-1, 4),
        slot_mapping=torch.arange(tokens),
        seq_lens_cpu_upper_bound=host,
    )


def _builder(drafts: int = DRAFTS, *, in_parallel: bool = False) -> SparkTurboQuantBuilder:
    speculative = SimpleNamespace(num_speculative_tokens=drafts, parallel_drafting=in_parallel)
    config = SimpleNamespace(
        speculative_config=speculative if drafts else None,
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        cache_config=SimpleNamespace(cache_dtype="turboquant_4bit_nc"),
        use_v2_model_runner=False,
    )
    return SparkTurboQuantBuilder(SimpleNamespace(head_size=HEAD_DIM), [], config, None)


def _metadata(queries: list[int], cached: list[int], padding: int = 0) -> TurboQuantMetadata:
    """What our builder makes of such requests."""
    return _builder().build(0, _batch(queries, cached, padding))


def _claimed(version: str, *, drafts: bool) -> str:
    config = SimpleNamespace(speculative_config=object() if drafts else None)
    table = frozenset({(0, 25, 1)})
    with (
        mock.patch.object(backend, "installed_version", return_value=version),
        mock.patch.object(backend, "TURBOQUANT_FULL_GRAPHS", table),
    ):
        return SparkTurboQuantBuilder.get_cudagraph_support(config, None).name


def check_full_graphs_are_claimed_where_they_were_proven() -> None:
    register()
    assert AttentionBackendEnum.TURBOQUANT.get_path() == TURBOQUANT_PATH
    assert SparkTurboQuantBackend.get_builder_cls() is SparkTurboQuantBuilder
    assert SparkTurboQuantBackend.get_impl_cls() is SparkTurboQuantImpl
    for version in ("0.25.1", "0.25.1+cpu", "0.32.0", "unknown"):
        assert _claimed(version, drafts=False) == "UNIFORM_BATCH", version
    for version in ("0.25.1", "0.25.1+cpu"):
        assert _claimed(version, drafts=True) == "UNIFORM_BATCH", version
    for version in ("0.24.0", "0.32.0", "unknown"):
        assert _claimed(version, drafts=True) == "UNIFORM_SINGLE_TOKEN_DECODE", version


def check_the_builder_keeps_requests_and_says_what_is_a_prefill() -> None:
    for queries, decodes in (
        ([3, 3], 2),
        ([3, 1, 2], 3),
        ([1, 1], 2),
        ([3, 1, 40], 2),
        ([30, 50], 0),
    ):
        batch = _batch(queries, [10] * len(queries))
        made = _builder().build(0, batch)
        assert made.is_prefill == (decodes < len(queries)), queries
        assert made.num_decodes == decodes
        assert made.num_decode_tokens == sum(queries[:decodes])
        assert made.max_query_len == max(queries)
        # The device's own tensors, which a captured graph reads again at every replay.
        assert made.seq_lens is batch.seq_lens
        assert made.query_start_loc is batch.query_start_loc
        assert made.block_table is batch.block_table_tensor


def check_a_graph_is_captured_over_the_runner_s_own_lengths() -> None:
    batch = _batch([3, 3], [10, 20])
    made = _builder().build_for_cudagraph_capture(batch)
    assert not made.is_prefill
    assert made.seq_lens is batch.seq_lens


def _expected_rows(queries: list[int], cached: list[int]) -> list[tuple[int, int]]:
    return [
        (request, cached[request] + position + 1)
        for request, query in enumerate(queries)
        for position in range(query)
    ]


def check_every_verified_token_sees_itself_and_what_came_before() -> None:
    chosen = random.Random(7)
    for _ in range(200):
        # Requests of no token are among them: graphs pad batches with such.
        queries = [chosen.randint(0, 5) for _ in range(chosen.randint(1, 6))]
        cached = [chosen.randint(0, 90) for _ in queries]
        batch = _batch(queries, cached)
        row, length = decode_rows(batch.seq_lens, batch.query_start_loc, sum(queries))
        found = list(zip(row.tolist(), length.tolist(), strict=True))
        assert found == _expected_rows(queries, cached)
        assert length.dtype == torch.int32


def check_a_verification_has_a_row_for_each_token_by_the_device_s_lengths() -> None:
    whole = _metadata([3, 3], [10, 20])
    rows = one_row_a_token(whole, 6)
    assert rows.seq_lens.tolist() == [11, 12, 13, 21, 22, 23]
    assert rows.block_table[:, 0].tolist() == [0, 0, 0, 4, 4, 4]
    # Another replay of the same graph has other lengths in the same place.
    whole.seq_lens += 5
    assert one_row_a_token(whole, 6).seq_lens.tolist() == [16, 17, 18, 26, 27, 28]


def check_the_shortcut_for_fresh_prompts_is_not_taken_over_a_cache() -> None:
    fresh = replace(_metadata([30, 50], [0, 0]), max_seq_len=50)
    beside = replace(_metadata([30, 50], [9, 0]), max_seq_len=50)
    assert not shortcut_hides_a_cache(fresh)
    assert shortcut_hides_a_cache(beside)


def _made(**wanted: Any) -> SparkTurboQuantImpl:
    with set_current_vllm_config(VllmConfig()):
        current = get_current_vllm_config()
        current.scheduler_config.max_num_seqs = 4
        object.__setattr__(current, "model_config", SimpleNamespace(max_model_len=64))
        speculative = SimpleNamespace(num_speculative_tokens=DRAFTS)
        object.__setattr__(current, "speculative_config", speculative)
        # To ask for it vLLM loads ROCm's platform, and that a second build of vLLM's CPU library: a
        # processor with AVX-512 and without its BF16 has another one already, and PyTorch aborts.
        with mock.patch.object(turboquant_attn, "is_flydsl_available", return_value=False):
            return SparkTurboQuantImpl(
                HEADS, HEAD_DIM, 0.1, 2, kv_cache_dtype="turboquant_4bit_nc", **wanted
            )


def check_prompts_take_the_flash_attention_that_the_card_has() -> None:
    for capability, has_three, version in (
        ((9, 0), True, 3),
        ((9, 0), False, 2),
        ((12, 1), True, 2),
    ):
        with (
            mock.patch.object(torch.cuda, "get_device_capability", return_value=capability),
            mock.patch.dict(sys.modules, {FLASH: SimpleNamespace(**{ASKED: {3: has_three}.get})}),
        ):
            assert backend.prompts_version() == version, capability


def check_what_turboquant_would_ignore_is_refused() -> None:
    assert _made(sliding_window=None, logits_soft_cap=None).most_rows == 4
    assert _made(logits_soft_cap=0.0).most_rows == 4
    ignored = {"sliding_window": 128, "logits_soft_cap": 30.0, "sinks": torch.zeros(4)}
    for wanted in ({name: value} for name, value in ignored.items()):
        said = refusal(_made, **wanted)
        assert next(iter(wanted)) in said, said
        assert "kv_cache_dtype" in said, said


def check_a_layer_without_cuda_is_served_by_vllm_s_own_kernel() -> None:
    warned: list[str] = []
    with mock.patch.object(backend, "warn_once", warned.append):
        made = _made()
    assert made.kernel is None
    assert made.most_tokens == 1 + DRAFTS
    assert len(warned) == 1
    assert "decodes by vLLM's own kernel: " in warned[0]


class _Attended:
    """Notes what decodes and what is a prefill; the result says which by its sign."""

    def __init__(self) -> None:
        self.decoded: list[tuple[list[float], TurboQuantMetadata]] = []
        self.prefilled: list[tuple[list[float], TurboQuantMetadata]] = []

    def decode(
        self, query: torch.Tensor, _kv_cache: object, metadata: Any, *_: object
    ) -> torch.Tensor:
        self.decoded.append((query[:, 0, 0].tolist(), metadata))
        return query * 2

    def prefill(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        _kv_cache: object,
        metadata: Any,
        *_: object,
        **_named: object,
    ) -> torch.Tensor:
        assert key[:, 0, 0].tolist() == value[:, 0, 0].tolist() == query[:, 0, 0].tolist()
        self.prefilled.append((query[:, 0, 0].tolist(), metadata))
        return query * -1

    @contextmanager
    def in_place_of_vllm_s(self) -> Iterator[None]:
        decode, prefill = staticmethod(self.decode), staticmethod(self.prefill)
        with mock.patch.multiple(
            TurboQuantAttentionImpl, _decode_attention=decode, _prefill_attention=prefill
        ):
            yield


def _forward(made: SparkTurboQuantImpl, metadata: TurboQuantMetadata) -> tuple[_Attended, Any]:
    """VLLM's own forward over tokens whose queries, keys and values are their places."""
    tokens = metadata.num_actual_tokens
    places = torch.arange(tokens, dtype=torch.float32).view(-1, 1, 1)
    query = places.expand(-1, HEADS, HEAD_DIM).contiguous()
    key = places.expand(-1, 2, HEAD_DIM).contiguous()
    pages = torch.zeros(4, 2, 16, 8, dtype=torch.uint8)
    attended = _Attended()
    with attended.in_place_of_vllm_s():
        output = made.forward(
            torch.nn.Module(), query, key, key.clone(), pages, metadata, torch.zeros_like(query)
        )
    return attended, output[:, 0, 0].tolist()


def check_a_pure_verification_decodes_by_vllm_s_kernel_token_by_token() -> None:
    made = _made()
    made.most_rows = 8
    attended, output = _forward(made, _metadata([3, 2], [10, 20]))
    ((places, metadata),) = attended.decoded
    assert places == [0, 1, 2, 3, 4]
    assert metadata.seq_lens.tolist() == [11, 12, 13, 21, 22]
    assert attended.prefilled == []
    assert output == [0, 2, 4, 6, 8]


def check_in_a_mixed_batch_each_way_to_attend_gets_its_part() -> None:
    made = _made()
    attended, output = _forward(made, _metadata([3, 1, 5, 4], [10, 20, 8, 0]))
    ((places, metadata),) = attended.decoded
    assert places == [0, 1, 2, 3]
    assert metadata.seq_lens.tolist() == [11, 12, 13, 21]
    assert metadata.block_table[:, 0].tolist() == [0, 0, 0, 4]
    ((places, metadata),) = attended.prefilled
    assert places == list(range(4, 13))
    assert metadata.seq_lens.tolist() == metadata.seq_lens_cpu.tolist() == [13, 4]
    assert metadata.query_start_loc.tolist() == [0, 5, 9]
    assert metadata.block_table[:, 0].tolist() == [8, 12]
    assert output == [0, 2, 4, 6, *(-place for place in range(4, 13))]


class _Kernel:
    """In the place of ours: notes what it is given."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[float], list[int], list[int], int]] = []

    def serves(self, query: torch.Tensor, kv_cache: torch.Tensor, tokens: int) -> bool:
        return query.shape[2] == HEAD_DIM and kv_cache.dtype == torch.uint8

    def decode(
        self, query: torch.Tensor, _kv_cache: object, metadata: Any, tokens: int
    ) -> torch.Tensor:
        lengths, starts = metadata.seq_lens.tolist(), metadata.query_start_loc.tolist()
        self.asked.append((query[:, 0, 0].tolist(), lengths, starts, tokens))
        return query * 3


def check_the_kernel_gets_requests_and_the_most_tokens_that_one_has() -> None:
    made = _made()
    made.kernel = _Kernel()
    attended, output = _forward(made, _metadata([2, 1], [10, 20]))
    assert made.kernel.asked.pop() == ([0, 1, 2], [12, 21], [0, 2, 3], 2)
    assert output == [0, 3, 6]
    attended, output = _forward(made, _metadata([2, 1, 5], [10, 20, 8]))
    # Of a batch's decoding part vLLM says one token a request: any number may be meant.
    assert made.kernel.asked.pop() == ([0, 1, 2], [12, 21], [0, 2, 3], 1 + DRAFTS)
    assert output == [0, 3, 6, -3, -4, -5, -6, -7]
    assert attended.decoded == []


def check_more_rows_than_scratch_memory_are_taken_in_parts() -> None:
    attended, output = _forward(_made(), _metadata([3, 3], [10, 20]))
    parts = [(places, metadata.seq_lens.tolist()) for places, metadata in attended.decoded]
    assert parts == [([0, 1, 2, 3], [11, 12, 13, 21]), ([4, 5], [22, 23])]
    assert output == [0, 2, 4, 6, 8, 10]
