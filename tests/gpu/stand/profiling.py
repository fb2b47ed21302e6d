"""GPU time of a decode step by kind of kernel, out of torch's profiler in a vLLM server."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

KINDS = (
    ("INT8 head", re.compile(r"^_gathered|^_streamed")),
    ("shared expert in two", re.compile(r"^_gate_up$|^_down$")),
    ("attention", re.compile(r"reshape_and_cache|^attend$|^join$")),
    ("FP8 linear", re.compile(r"blockwise|fp8|float_e4m3|per_token_group_quant", re.I)),
    ("INT4 experts", re.compile(r"marlin_moe", re.I)),
    ("INT4 dense", re.compile(r"marlin|machete", re.I)),
    ("routing", re.compile(r"^_route$|moe|topk|expert", re.I)),
    ("attention", re.compile(r"flash|fmha|attention|_tq_|stage2|reshape_and_cache", re.I)),
    ("linear attention", re.compile(r"delta|gdn|conv1d|chunk_|fused_sigmoid|gated", re.I)),
    ("BF16 matrices", re.compile(r"nvjet|gemm|gemv|cublas|splitk|cutlass", re.I)),
)
BUSY = "busy"


def flags(folder: Path) -> list[str]:
    """What a server needs to be profiled into `folder`."""
    wanted = {
        "profiler": "torch",
        "torch_profiler_dir": str(folder),
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,
    }
    return ["--profiler-config", json.dumps(wanted)]


def kernels(trace: Path) -> tuple[Counter, Counter]:
    """Microseconds on the GPU, and launches, by kernel (copies and fills included).

    Launches have one more entry, BUSY: microseconds in which anything ran. It is less than the sum
    of all kernels' where two streams run side by side, as routed and shared experts do.
    """
    opened = gzip.open if trace.suffix == ".gz" else open
    with opened(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    spent, launched = Counter(), Counter()
    ran = [it for it in events if it.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    until = 0.0
    for event in sorted(ran, key=lambda it: float(it["ts"])):
        spent[event["name"]] += event["dur"]
        launched[event["name"]] += 1
        end = float(event["ts"]) + event["dur"]
        launched[BUSY] += max(0.0, end - max(until, float(event["ts"])))
        until = max(until, end)
    return spent, launched


def step_by_kind(
    short: tuple[Counter, Counter], long: tuple[Counter, Counter], steps: float
) -> dict:
    """Microseconds and launches a step between two traces that are `steps` decode steps apart."""
    kinds_us, kinds_launched = Counter(), Counter()
    by_kernel = {name: (long[0][name] - short[0][name]) / steps for name in long[0]}
    for name, spent_us in by_kernel.items():
        kind = next((kind for kind, like in KINDS if like.search(name)), "other")
        kinds_us[kind] += spent_us
        kinds_launched[kind] += (long[1][name] - short[1][name]) / steps
    most = sorted(by_kernel.items(), key=lambda item: -item[1])[:30]
    return {
        "gpu_us": round(sum(by_kernel.values()), 1),
        "busy_us": round((long[1][BUSY] - short[1][BUSY]) / steps, 1),
        "launches": round(sum(kinds_launched.values()), 1),
        "kinds_us": {kind: round(spent_us, 1) for kind, spent_us in kinds_us.most_common()},
        "kinds_launches": {kind: round(count, 1) for kind, count in kinds_launched.most_common()},
        "kernels_us": {name[:140]: round(spent_us, 2) for name, spent_us in most},
    }
