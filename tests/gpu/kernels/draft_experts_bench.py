"""Check and time a draft layer's experts on a GPU: INT4 by vLLM's kernel beside 16 bits.

`python tests/gpu/kernels/draft_experts_bench.py [--experts N] [--rounds N]` prints one line for
each number of rows. Needs vLLM 0.25.1 or newer, and a CUDA GPU with 14 GB free for 256 experts.
Exit code 1 when a result is further from FP64 over INT4's values than BF16 sums explain.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def"

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers import fused_moe
from vllm.v1.worker.workspace import init_workspace_manager

PLUGIN = Path(__file__).resolve().parents[3] / "sparkdeploy" / "vllm_plugin"
sys.path.insert(0, str(PLUGIN))
from sparkdeploy_vllm.hybrid_config import SparkHybridConfig  # noqa: E402
from sparkdeploy_vllm.int4_maths import dequantize_groups, quantize_groups  # noqa: E402

HIDDEN, INNER, CHOSEN = 3072, 1024, 8
"""The 122B's."""
ROWS = (1, 2, 3, 4, 12)
CHOICES = 16
"""Sets of experts that a replay goes through, so that the next are not in the cache already."""
LARGEST_ERROR = 0.02
BLOCK = {
    "version": 1,
    "base_method": "none",
    "fp8": None,
    "lm_head": "bf16",
    "draft_layer": {
        "experts": "int4",
        "group": 128,
        "dense": "fp8",
        "int4_layers": 1,
        "fp8_layers": 0,
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_default_dtype(torch.bfloat16)
    with set_current_vllm_config(VllmConfig()), tempfile.NamedTemporaryFile() as file:
        parallel_state.init_distributed_environment(1, 0, f"file://{file.name}", 0, backend="nccl")
        parallel_state.initialize_model_parallel(1, 1)
        # As a worker does; the experts' kernels take their memory from it.
        init_workspace_manager(torch.device("cuda", 0))
        try:
            with torch.device("cuda"):
                return compare(options.experts, options.rounds)
        finally:
            # NCCL's threads keep the process until somebody ends them.
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()


def compare(count: int, rounds: int) -> int:
    """Print memory, errors and times of both methods; 1 when INT4's results are wrong."""
    plain, int4 = experts(None, count), experts(config(), count)
    for layer in (plain, int4):
        for name in ("w13_weight", "w2_weight"):
            generator = torch.Generator("cuda").manual_seed(len(name))
            getattr(layer, name).data.normal_(0, 0.03, generator=generator)
    x = torch.randn(max(ROWS), HIDDEN)
    exact = reference(int4, x[:2], *choice(2, count, seed=0))
    for layer in (plain, int4):
        begin = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        layer.quant_method.process_weights_after_loading(layer)
        after, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        say(
            f"{type(layer.quant_method).__name__}: loading moved memory by "
            f"{(after - begin) / 2**20:+.0f} MiB, at the peak {(peak - begin) / 2**20:+.0f} MiB"
        )
    got = run(int4, x[:2], *choice(2, count, seed=0))
    error = float((got.double() - exact).norm() / exact.norm())
    say(f"{torch.cuda.get_device_name()}: INT4's error against FP64 over its values: {error:.4f}")
    for rows in ROWS:
        spent = [micros(layer, x[:rows], count, rounds) for layer in (plain, int4)]
        say(f"{rows:3} rows: BF16 {spent[0]:7.1f} us, INT4 {spent[1]:7.1f} us a pass")
    return int(error > LARGEST_ERROR)


def config() -> Any:
    return SparkHybridConfig.from_config({"quant_method": "spark-hybrid", "spark_hybrid": BLOCK})


def experts(quant_config: Any, count: int) -> Any:
    """A draft layer's routed experts with their 16-bit parameters."""
    # Renamed after 0.25.
    make = getattr(fused_moe, "FusedMoEFactory", None) or fused_moe.FusedMoE
    runner = make(
        num_experts=count,
        top_k=CHOSEN,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        params_dtype=torch.bfloat16,
        renormalize=True,
        quant_config=quant_config,
        prefix="mtp.layers.0.mlp.experts" if quant_config else "plain.experts",
    )
    return runner.routed_experts


def choice(rows: int, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights FP32 [rows, 8], and experts int32 [rows, 8]."""
    generator = torch.Generator("cuda").manual_seed(seed)
    scores = torch.rand(rows, count, dtype=torch.float32, generator=generator)
    weights, chosen = torch.softmax(scores, 1).topk(CHOSEN)
    return weights / weights.sum(1, keepdim=True), chosen.to(torch.int32)


def reference(
    layer: Any, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
) -> torch.Tensor:
    """What the experts say in FP64 with the values that INT4 will stand for."""
    out = torch.zeros(len(x), HIDDEN, dtype=torch.float64)
    for row, (ids, shares) in enumerate(zip(chosen.tolist(), weights, strict=True)):
        for expert, share in zip(ids, shares, strict=True):
            both, down = (
                dequantize_groups(*quantize_groups(weight[expert])).double()
                for weight in (layer.w13_weight.data, layer.w2_weight.data)
            )
            gate, up = (both @ x[row].double()).chunk(2)
            out[row] += share.double() * (down @ (torch.nn.functional.silu(gate) * up))
    return out


def run(layer: Any, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = layer.quant_method.apply(
        layer, x, weights, chosen, shared_experts=None, shared_experts_input=None
    )
    return out


def micros(layer: Any, x: torch.Tensor, count: int, rounds: int) -> float:
    """Microseconds of one pass, the median over replays of CHOICES passes in a CUDA graph."""
    choices = [choice(len(x), count, seed) for seed in range(CHOICES)]
    for one in choices[:2]:
        run(layer, x, *one)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in choices:
            run(layer, x, *one)
    spent = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        spent.append(begin.elapsed_time(end) * 1000 / CHOICES)
    return statistics.median(spent)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    raise SystemExit(main())
