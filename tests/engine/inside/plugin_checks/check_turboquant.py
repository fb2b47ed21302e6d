"""TurboQuant under speculation: what the builder claims, and how it splits a verification."""

import random
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import torch
from sparkdeploy_vllm import register
from sparkdeploy_vllm.registration import TURBOQUANT_PATH
from sparkdeploy_vllm.turboquant_backend import (
    SparkTurboQuantBackend,
    SparkTurboQuantBuilder,
    SparkTurboQuantImpl,
    decode_rows,
    shortcut_hides_a_cache,
    verification_as_decoding,
)
from vllm.config import VllmConfig, get_current_vllm_config, set_current_vllm_config
from vllm.v1.attention.backends import turboquant_attn
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.backends.turboquant_attn import TurboQuantMetadata

REJECTED = 2
"""How far the host's lengths may be beyond the device's."""


def _metadata(queries: list[int], cached: list[int], short: int, padding: int = 0):  # type: ignore[no-untyped-def]  # noqa: ANN202
    """What vLLM's builder makes of requests with so many new and cached tokens."""
    starts = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    lengths = torch.tensor([q + c for q, c in zip(queries, cached, strict=True)]).to(torch.int32)
    tokens = int(starts[-1]) + padding
    decodes = sum(query <= short for query in queries)
    host = lengths.clone()
    host[:decodes] += REJECTED
    return TurboQuantMetadata(
        seq_lens=lengths,
        slot_mapping=torch.arange(tokens),
        block_table=torch.arange(len(queries) * 4, dtype=torch.int32).view(-1, 4),
        query_start_loc=starts,
        num_actual_tokens=tokens,
        max_query_len=max(queries),
        max_seq_len=int(host.max()),
        is_prefill=max(queries) > 1,
        num_decodes=decodes,
        num_decode_tokens=tokens if decodes == len(queries) else int(starts[decodes]),
        query_start_loc_cpu=starts.clone(),
        seq_lens_cpu=host,
    )


def check_turboquant_claims_no_full_graphs_under_speculation() -> None:
    register()
    assert AttentionBackendEnum.TURBOQUANT.get_path() == TURBOQUANT_PATH
    builder = SparkTurboQuantBackend.get_builder_cls()
    assert builder is SparkTurboQuantBuilder
    speculating = SimpleNamespace(speculative_config=object())
    plain = SimpleNamespace(speculative_config=None)
    assert builder.get_cudagraph_support(speculating, None).name == "UNIFORM_SINGLE_TOKEN_DECODE"
    assert builder.get_cudagraph_support(plain, None).name == "UNIFORM_BATCH"


def check_every_verified_token_sees_itself_and_what_came_before() -> None:
    chosen = random.Random(7)
    for _ in range(200):
        queries = [chosen.randint(1, 5) for _ in range(chosen.randint(1, 6))]
        cached = [chosen.randint(0, 90) for _ in queries]
        whole = _metadata(queries, cached, short=5)
        row, length = decode_rows(whole.seq_lens, whole.query_start_loc, sum(queries))
        expected = [
            (request, cached[request] + position + 1)
            for request, query in enumerate(queries)
            for position in range(query)
        ]
        assert list(zip(row.tolist(), length.tolist(), strict=True)) == expected
        assert length.dtype == torch.int32


def check_a_verification_becomes_decoding_by_the_device_s_lengths() -> None:
    split = verification_as_decoding(_metadata([3, 3], [10, 20], short=3))
    assert (split.is_prefill, split.num_decodes, split.num_decode_tokens) == (False, 6, 6)
    assert split.seq_lens.tolist() == [11, 12, 13, 21, 22, 23]
    assert split.block_table[:, 0].tolist() == [0, 0, 0, 4, 4, 4]
    assert split.max_query_len == 1


def check_prefills_beside_a_verification_stay_as_they_were() -> None:
    whole = _metadata([3, 1, 40], [10, 20, 8], short=3)
    split = verification_as_decoding(whole)
    assert (split.is_prefill, split.num_decodes, split.num_decode_tokens) == (True, 4, 4)
    assert split.seq_lens.tolist() == [11, 12, 13, 21, 48]
    # What vLLM's forward hands to its prefill.
    assert split.seq_lens_cpu[split.num_decodes :].tolist() == [48]
    assert split.block_table[split.num_decodes :].tolist() == whole.block_table[2:].tolist()
    for starts in (split.query_start_loc, split.query_start_loc_cpu):
        assert (starts[split.num_decodes :] - split.num_decode_tokens).tolist() == [0, 40]
    assert split.max_query_len == 40


def check_plain_decoding_and_plain_prefills_are_not_touched() -> None:
    for whole in (_metadata([1, 1], [5, 9], short=3), _metadata([30, 50], [0, 4], short=3)):
        assert verification_as_decoding(whole) is whole


def check_padding_reads_no_further_than_the_last_request() -> None:
    split = verification_as_decoding(_metadata([3, 3], [10, 20], short=3, padding=2))
    assert split.seq_lens.tolist()[3:] == [21, 22, 23, 23, 23]


def check_padding_reads_one_token_of_the_last_row() -> None:
    whole = _metadata([3, 3], [10, 20], short=3, padding=2)
    padded = replace(
        whole,
        seq_lens=torch.cat([whole.seq_lens, torch.zeros(1, dtype=torch.int32)]),
        query_start_loc=torch.tensor([0, 3, 6, 6], dtype=torch.int32),
        block_table=torch.cat([whole.block_table, torch.zeros(1, 4, dtype=torch.int32)]),
        num_decodes=3,
    )
    split = verification_as_decoding(padded)
    assert split.seq_lens.tolist()[6:] == [1, 1]
    assert split.block_table[6:].sum() == 0


def check_the_shortcut_for_fresh_prompts_is_not_taken_over_a_cache() -> None:
    fresh = replace(_metadata([30, 50], [0, 0], short=3), max_seq_len=50)
    beside = replace(_metadata([30, 50], [9, 0], short=3), max_seq_len=50)
    assert not shortcut_hides_a_cache(fresh)
    assert shortcut_hides_a_cache(beside)


def _made(**wanted):  # type: ignore[no-untyped-def]  # noqa: ANN003, ANN202
    with set_current_vllm_config(VllmConfig()):
        current = get_current_vllm_config()
        current.scheduler_config.max_num_seqs = 4
        object.__setattr__(current, "model_config", SimpleNamespace(max_model_len=64))
        # To ask for it vLLM loads ROCm's platform, and that a second build of vLLM's CPU library: a
        # processor with AVX-512 and without its BF16 has another one already, and PyTorch aborts.
        with mock.patch.object(turboquant_attn, "is_flydsl_available", return_value=False):
            return SparkTurboQuantImpl(
                4, 128, 0.1, 2, kv_cache_dtype="turboquant_4bit_nc", **wanted
            )


def check_what_turboquant_would_ignore_is_refused() -> None:
    assert _made(sliding_window=None, logits_soft_cap=None).most_rows == 4
    assert _made(logits_soft_cap=0.0).most_rows == 4
    ignored = {"sliding_window": 128, "logits_soft_cap": 30.0, "sinks": torch.zeros(4)}
    for wanted in ({name: value} for name, value in ignored.items()):
        said = "nothing"
        try:
            _made(**wanted)
        except ValueError as error:
            said = str(error)
        assert next(iter(wanted)) in said, said
        assert "kv_cache_dtype" in said, said


def check_more_rows_than_scratch_memory_are_taken_in_parts() -> None:
    seen = []

    def decode(_self, query, _kv_cache, metadata):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        seen.append((query.shape[0], metadata.seq_lens.tolist()))
        return query * 2

    parent = SparkTurboQuantImpl.__mro__[1]
    original, parent._decode_attention = parent._decode_attention, decode
    made = object.__new__(SparkTurboQuantImpl)
    made.most_rows = 4
    query = torch.randn(6, 2, 8)
    try:
        split = verification_as_decoding(_metadata([3, 3], [10, 20], short=3))
        output = made._decode_attention(query, None, split)
    finally:
        parent._decode_attention = original
    assert seen == [(4, [11, 12, 13, 21]), (2, [22, 23])]
    assert torch.equal(output, query * 2)
