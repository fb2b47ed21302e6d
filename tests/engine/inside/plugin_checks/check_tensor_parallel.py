"""Two ranks hold half of each layer and say together what one rank says alone."""

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from check_vllm_hooks import EXPERT, _config, _head, _mlp, _process
from said import one_of_ranks, refusal
from sparkdeploy_vllm.weights.conversion import refuse_broken_blocks
from torch.multiprocessing import start_processes
from torch.nn import functional
from vllm.model_executor.layers.logits_processor import LogitsProcessor

VOCABULARY, HIDDEN, INTERMEDIATE = 500, 128, 256
IMPORTED_ONCE = ["sparkdeploy_vllm.registration", "vllm.distributed.parallel_state"]


def _serve(rank: int, ranks: int, folder: str) -> None:
    """One rank: FP8 shared expert and INT8 head from the whole checkpoint's tensors."""
    with one_of_ranks(rank, ranks, folder, "sparkdeploy-checks"):
        drawn = torch.Generator().manual_seed(5)
        config = _config()
        gate_up, down = _mlp(config, EXPERT)
        head = _head(config, VOCABULARY)
        shapes = ((INTERMEDIATE, HIDDEN), (INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))
        gate, up, out = ((torch.randn(s, generator=drawn) * 0.05).bfloat16() for s in shapes)
        rows = (torch.randn((VOCABULARY, HIDDEN), generator=drawn) * 0.05).bfloat16()
        x = torch.randn((6, HIDDEN), generator=drawn).bfloat16()
        gate_up.weight.weight_loader(gate_up.weight, gate, 0)
        gate_up.weight.weight_loader(gate_up.weight, up, 1)
        down.weight.weight_loader(down.weight, out)
        head.weight.weight_loader(head.weight, rows)
        _process(gate_up, down, head)
        assert gate_up.weight.shape[0] == 2 * INTERMEDIATE // ranks
        # The gathering puts the ranks' bytes side by side: they must agree.
        assert head.quant_method.apply(head, x).dtype == torch.float32
        gated, raised = gate_up(x)[0].chunk(2, dim=-1)
        expert = down(functional.silu(gated) * raised)[0]
        processor = LogitsProcessor(VOCABULARY)
        logits, top = processor(head, x), processor.get_top_tokens(head, x)
        if rank == 0:
            torch.save((expert, logits, top), Path(folder) / f"said-{ranks}")


def _start_ranks(serve: Callable[..., None], arguments: tuple[object, ...], ranks: int) -> None:
    """Fork them from a process that has imported vLLM and done nothing else.

    To import it in each takes longer than the check; to fork from here would hang in threads that
    torch has started.
    """
    multiprocessing.set_forkserver_preload(IMPORTED_ONCE)
    ready = (serve, *arguments)
    start_processes(_serve_ready, ready, nprocs=ranks, start_method="forkserver")


def _serve_ready(rank: int, serve: Callable[..., None], *arguments: object) -> None:
    """Ask the kernel for AMX first, as vLLM's CPU worker does: without it a tile is SIGILL."""
    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()
    serve(rank, *arguments)


def check_two_ranks_say_what_one_says() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2):
            _start_ranks(_serve, (ranks, folder), ranks)
        (expert, logits, top), (parted_expert, parted_logits, parted_top) = (
            torch.load(Path(folder) / f"said-{ranks}") for ranks in (1, 2)
        )
    assert torch.equal(logits, parted_logits), "each rank has whole rows of the head"
    assert logits.dtype == parted_logits.dtype == torch.float32
    assert torch.equal(top, logits.argmax(dim=-1))
    assert torch.equal(top, parted_top)
    error = (expert.double() - parted_expert.double()).norm() / expert.double().norm()
    assert error < 0.01, error  # two BF16 sums instead of one


def check_ranks_that_break_a_block_are_refused_by_name() -> None:
    refuse_broken_blocks("a", rows=[128, 256], columns=128, is_parted=True)
    refuse_broken_blocks("a", rows=[100], columns=64, is_parted=False)
    for rows, columns in (([64, 64], 128), ([128], 64)):
        given = {"rows": rows, "columns": columns, "is_parted": True}
        said = refusal(refuse_broken_blocks, EXPERT, **given)
        assert EXPERT in said, said
        assert "tensor-parallel" in said
