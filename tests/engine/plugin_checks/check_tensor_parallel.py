"""Two ranks hold half of each layer and say together what one rank says alone."""

import os
import tempfile
from pathlib import Path

import torch
from check_vllm_hooks import EXPERT, _config, _head, _mlp, _process
from sparkdeploy_vllm.fp8_blocks import refuse_broken_blocks
from torch.nn import functional
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers.logits_processor import LogitsProcessor

VOCABULARY, HIDDEN, INTERMEDIATE = 500, 128, 256


def _serve(rank: int, ranks: int, folder: str) -> None:
    """One rank: FP8 shared expert and INT8 head from the whole checkpoint's tensors."""
    os.environ["VLLM_DIST_IDENT"] = "sparkdeploy-checks"  # vLLM's own launcher names its ranks
    with set_current_vllm_config(VllmConfig()):
        store = f"file://{folder}/store-{ranks}"
        parallel_state.init_distributed_environment(ranks, rank, store, rank, backend="gloo")
        parallel_state.initialize_model_parallel(ranks, 1)
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
        gated, raised = gate_up(x)[0].chunk(2, dim=-1)
        expert = down(functional.silu(gated) * raised)[0]
        logits = LogitsProcessor(VOCABULARY)(head, x)
        if rank == 0:
            torch.save((expert, logits), Path(folder) / f"said-{ranks}")


def check_two_ranks_say_what_one_says() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2):
            torch.multiprocessing.spawn(_serve, (ranks, folder), nprocs=ranks)
        (expert, logits), (parted_expert, parted_logits) = (
            torch.load(Path(folder) / f"said-{ranks}") for ranks in (1, 2)
        )
    assert torch.equal(logits, parted_logits), "each rank has whole rows of the head"
    error = (expert.double() - parted_expert.double()).norm() / expert.double().norm()
    assert error < 0.01, error  # two BF16 sums instead of one


def check_ranks_that_break_a_block_are_refused_by_name() -> None:
    refuse_broken_blocks("a", rows=[128, 256], columns=128, is_parted=True)
    refuse_broken_blocks("a", rows=[100], columns=64, is_parted=False)
    for rows, columns in (([64, 64], 128), ([128], 64)):
        said = ""
        try:
            refuse_broken_blocks(EXPERT, rows=rows, columns=columns, is_parted=True)
        except ValueError as error:
            said = str(error)
        assert EXPERT in said, said
        assert "tensor-parallel" in said
