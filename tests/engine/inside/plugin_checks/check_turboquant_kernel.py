"""What TurboQuant's decode kernel is told: layers, tables, shapes, arguments; nothing is launched.

The kernel itself needs a GPU.
"""

import ctypes
import random
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import sparkdeploy_vllm
import torch
from cuda_stand_in import MULTIPROCESSORS, STREAM, decode_module
from sparkdeploy_vllm.turboquant import backend
from sparkdeploy_vllm.turboquant.backend import DecodeKernel, most_query_tokens
from sparkdeploy_vllm.turboquant.format import BITS, slot_format
from sparkdeploy_vllm.turboquant.tiles import AttentionTile
from vllm.model_executor.layers.quantization.turboquant.centroids import get_centroids
from vllm.v1.worker.workspace import WorkspaceManager

SOURCE = Path(sparkdeploy_vllm.__file__).parent / "turboquant" / "decode.cu"
TILE = AttentionTile(16, 8, 2, 48, 1)
FACTORS = {3: 0.63033915, 4: 0.43339555}
"""Of the centroids of N(0, 1), as the kernel's table says; they cancel."""


def _attention(  # noqa: ANN202 - the module is imported anew
    module: ModuleType, heads: int = 32, kv_heads: int = 2, head_dim: int = 256
):  # type: ignore[no-untyped-def]
    slot = slot_format("turboquant_4bit_nc", head_dim)
    return module.AttentionLayer(slot, heads, kv_heads, 0.0625)


def _half(bits: int) -> float:
    return float(torch.tensor([bits], dtype=torch.uint16).view(torch.float16)[0])


def _entries(words: tuple[int, ...]) -> list[float]:
    """The eight FP16 that the kernel puts together from the bytes it looks up."""
    table = [byte for word in words for byte in word.to_bytes(4, "little")]
    return [_half(high << 8 | low) for high, low in zip(table[:8], table[8:], strict=True)]


def check_the_centroids_that_the_kernel_looks_up_are_vllm_s() -> None:
    with decode_module() as module:
        three, four = (_entries(module.centroid_bytes(bits)) for bits in (3, 4))
        assert module.centroid_bytes(8) == (0, 0, 0, 0)
    # An entry is a code of 3 bits, or the magnitude of one of 4; 8 and on are positive.
    found = {3: three, 4: [-entry for entry in reversed(four)] + four}
    for bits, factor in FACTORS.items():
        for head_dim in (64, 128, 256):
            exact = get_centroids(head_dim, bits).double() * head_dim**0.5 * factor
            error = torch.tensor(found[bits]).double() / exact - 1
            assert error.abs().max() < {3: 2.5e-5, 4: 7.4e-5}[bits], (bits, head_dim, error)


def check_every_multiprocessor_has_a_block_and_never_two_where_there_is_a_choice() -> None:
    chosen = random.Random(11)
    with decode_module() as module:
        for _ in range(500):
            heads = 2 * chosen.choice((1, 4, 8, 16))
            attention = _attention(module, heads)
            requests, tokens = chosen.randint(1, 300), chosen.randint(1, 8)
            processors = chosen.choice((1, 48, 132))
            tile = replace(TILE, rows=chosen.choice((16, 48)))
            each = module.blocks_of(attention, tile, tokens)
            splits = module.splits_of(requests, each, processors)
            blocks = requests * each
            assert 1 <= splits <= module.MOST_SPLITS
            assert splits * blocks <= max(processors, blocks)
            assert (splits + 1) * blocks > processors or splits == module.MOST_SPLITS
        assert module.blocks_of(_attention(module), TILE, 4) == 2 * 2
        assert module.splits_of(1, 1, 1000) == module.MOST_SPLITS
        assert module.splits_of(0, 1, 132) == 132


TYPES = {
    "i64": ctypes.c_longlong,
    "float": ctypes.c_float,
    "int": ctypes.c_int,
    "u32": ctypes.c_uint,
}


def _parameters(kernel: str) -> dict[str, Any]:
    """Name and ctypes type of each parameter of a kernel of the source, in order."""
    text = re.sub(r"\s+", " ", SOURCE.read_text())
    listed = re.search(rf'extern "C" __global__ [^{{}}]*?\b{kernel}\(([^)]*)\) {{', text)
    assert listed is not None, kernel
    found = {}
    for parameter in listed[1].split(", "):
        kind, _, name = parameter.rpartition(" ")
        plain = kind.removeprefix("const ").removesuffix(" __restrict__")
        found[name] = ctypes.c_void_p if plain.endswith("*") else TYPES[plain]
    return found


def _launched(module: ModuleType, tokens: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What both launches of two requests get, and the tensors' facts by the parameters' names."""
    attention = _attention(module)
    # As slices of wider tensors, so that no stride is another's.
    query = torch.zeros(5, 40, 256, dtype=torch.bfloat16)[:, :32]
    out = torch.zeros(5, 36, 256, dtype=torch.bfloat16)[:, :32]
    pages = torch.zeros(9, 16, 2, attention.slot.slot_bytes, dtype=torch.uint8)
    lengths = torch.tensor([40, 17], dtype=torch.int32)
    starts = torch.tensor([0, tokens, 5], dtype=torch.int32)
    table = torch.zeros(2, 7, dtype=torch.int32)
    parts, sums = (
        torch.zeros(shape) for shape in module.scratch_shapes(attention, query.shape[0], 6)
    )
    calls: dict[str, Any] = {}

    def launch(sizes: Any, architecture: str, kernel: str, how: Any, arguments: Any) -> None:
        calls[kernel] = SimpleNamespace(
            sizes=sizes, architecture=architecture, how=how, arguments=arguments
        )

    with mock.patch.object(module, "launch", launch):
        requests = module.Requests(lengths, starts, table, tokens)
        scratch = module.Scratch(parts, sums)
        given = (query, pages, requests, out, scratch, replace(TILE, rows=16))
        assert module.decode_attention(attention, *given) is out
    words = module.centroid_bytes(4)
    facts = {
        "query_token": query.stride(0), "query_head": query.stride(1),
        "page_stride": pages.stride(0), "table_stride": table.stride(0),
        "out_token": out.stride(0), "out_head": out.stride(1),
        "splits": 6, "score": 0.0625 * module.LOG2_E,
        **dict(zip(("high_0", "high_1", "low_0", "low_1"), words, strict=True)),
        **{
            name: tensor.data_ptr()
            for name, tensor in {
                "query": query, "pages": pages, "table": table, "lengths": lengths,
                "starts": starts, "parts": parts, "sums": sums, "out": out,
            }.items()
        },
    }  # fmt: skip
    return calls, facts


def check_the_kernels_get_the_arguments_that_their_source_names() -> None:
    with decode_module() as module:
        calls, facts = _launched(module, tokens=3)
    for kernel in ("attend", "join"):
        parameters = _parameters(kernel)
        values, types = zip(*calls[kernel].arguments, strict=True)
        assert list(types) == list(parameters.values()), kernel
        assert list(values) == [facts[name] for name in parameters], kernel
        assert calls[kernel].architecture == "sm_90"
        assert calls[kernel].how.stream == STREAM


def check_grids_depend_on_shapes_alone() -> None:
    """A captured graph keeps them."""
    with decode_module() as module:
        calls, _ = _launched(module, tokens=3)
        # Three tokens of 16 query heads a KV head, 16 rows and one of two KV heads a block.
        assert calls["attend"].how.grid == (2, 3 * 2, 6)
        assert calls["join"].how.grid == (2, 3 * 32, 256 // 64)
        assert (calls["attend"].how.is_early, calls["join"].how.is_early) == (False, True)
        sizes = dict(calls["attend"].sizes)
        assert calls["attend"].how.threads == 32 * sizes["warps"]
        wanted = {"group": 16, "kv_heads": 2, "page": 16, "query_bf16": 1, "rows": 16}
        assert wanted.items() <= sizes.items()
        assert calls["join"].sizes == calls["attend"].sizes


def check_the_scratch_memory_reserved_holds_whatever_a_step_needs() -> None:
    """VLLM locks its size before the first request."""
    chosen = random.Random(5)
    for cache_dtype in BITS:
        speculative = SimpleNamespace(num_speculative_tokens=chosen.randint(0, 3))
        config = SimpleNamespace(
            cache_config=SimpleNamespace(cache_dtype=cache_dtype),
            model_config=SimpleNamespace(get_num_attention_heads=lambda _parallel: 4),
            parallel_config=None,
            scheduler_config=SimpleNamespace(max_num_seqs=chosen.choice((1, 40, 200))),
            speculative_config=speculative,
        )
        _hold_against(config, chosen)


def _hold_against(config: Any, chosen: random.Random) -> None:
    most_tokens, most = most_query_tokens(config), config.scheduler_config.max_num_seqs
    lent: list[Any] = []
    manager = WorkspaceManager(torch.device("cpu"))
    with (
        decode_module() as module,
        mock.patch.object(torch.accelerator, "empty_cache"),
        mock.patch.multiple(
            backend,
            is_workspace_manager_initialized=lambda: True,
            current_workspace_manager=lambda: manager,
            _multiprocessors=lambda: MULTIPROCESSORS,
        ),
        mock.patch.object(module, "decode_attention", lambda *given: lent.append(given[5])),
    ):
        backend._reserve_scratch(config, SimpleNamespace(head_size=64))
        manager.lock()
        kernel = DecodeKernel(_attention(module, 4, 2, 64), TILE)
        for requests in {1, most, *(chosen.randint(1, most) for _ in range(8))}:
            tokens = chosen.randint(1, most_tokens)
            rows = requests * tokens
            metadata = SimpleNamespace(
                seq_lens=torch.ones(requests, dtype=torch.int32),
                query_start_loc=torch.arange(requests + 1, dtype=torch.int32) * tokens,
                block_table=torch.zeros(requests, 1, dtype=torch.int32),
            )
            kernel.decode(torch.zeros(rows, 4, 64), torch.zeros(0), metadata, tokens)
            assert lent[-1].parts.shape == (*lent[-1].sums.shape, 64)
            assert lent[-1].sums.shape[:2] == (rows, 4)
