"""Run in a CPU engine's image: what attention over TurboQuant's slots yields for each token.

    python turboquant_tokens.py MODEL CACHE_DTYPE

vLLM serves one prompt twice, without and with two drafted tokens a step. Printed is one JSON
object: how far each target layer's outputs are apart, token by token, how far they are from FP64
over the same slots, and, to know what a wrong token would look like, from the token before.
"""

import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch

PROMPT = list(range(40, 77))
NEW_TOKENS = 48
DRAFTED = 2


def main(model: str, cache_dtype: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain, drafting = (
            recorded(model, cache_dtype, drafted, Path(folder) / f"{drafted}.pt")
            for drafted in (0, DRAFTED)
        )
    tokens = range(len(PROMPT), len(PROMPT) + NEW_TOKENS - 1)
    layers = sorted({layer for layer, _ in plain["outputs"]})
    pairs = [
        (plain["outputs"][layer, token], drafting["outputs"][layer, token])
        for layer in layers
        for token in tokens
    ]
    apart = max(error(one, other) for one, other in pairs)
    shifted = [error(one, other) for (_, one), (other, _) in pairwise(pairs)]
    result = {
        "layers": layers,
        "same_text": plain["text"] == drafting["text"],
        "verified_together": drafting["most_tokens"],
        "apart": apart,
        "equal_bits": sum(torch.equal(*pair) for pair in pairs) / len(pairs),
        "from_fp64": max(plain["from_fp64"], drafting["from_fp64"]),
        "from_the_token_before": sorted(shifted)[len(shifted) // 2],
    }
    print(json.dumps(result))


def recorded(model: str, cache_dtype: str, drafted: int, file: Path) -> Any:
    command = [sys.executable, __file__, model, cache_dtype, str(drafted), str(file)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return torch.load(file)


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return ((got.double() - exact.double()).norm() / exact.double().norm()).item()


class Recorder:
    """Stands before the back end's `forward`, and keeps the last output of each position."""

    def __init__(self, forward: Any) -> None:
        self.forward = forward
        self.outputs: dict[tuple[str, int], torch.Tensor] = {}
        self.from_fp64 = 0.0
        self.most_tokens = 0

    def of(self, impl: Any, layer: Any, query: Any, *rest: Any, **named: Any) -> Any:
        output = self.forward(impl, layer, query, *rest, **named)
        metadata = named["attn_metadata"] if "attn_metadata" in named else rest[3]
        if metadata is None:
            return output
        count = int(metadata.query_start_loc[1])
        context = int(metadata.seq_lens[0])
        got = output.view(-1, impl.num_heads, impl.head_size)[:count].clone()
        if count < context:
            self.most_tokens = max(self.most_tokens, count)
            exact = self.exact(impl, query[:count], rest[2], metadata, context)
            self.from_fp64 = max(self.from_fp64, error(got, exact))
        for row in range(count):
            self.outputs[layer.layer_name, context - count + row] = got[row]
        return output

    def exact(self, impl: Any, query: Any, kv_cache: Any, metadata: Any, context: int) -> Any:
        from sparkdeploy_vllm import turboquant_maths as maths
        from sparkdeploy_vllm.turboquant_cpu import read_slots

        slots = read_slots(kv_cache, metadata.block_table[0], context)
        keys = maths.unpack_keys(slots, impl.layout, impl.centroids, torch.float64)
        if impl.layout.has_rotated_keys:
            keys = maths.rotate(keys)
        values = maths.unpack_values(slots, impl.layout, torch.float64)
        queries = query.view(-1, impl.num_heads, impl.head_size).double()
        return maths.attend(queries, keys, values, impl.scale)


def serve(model: str, cache_dtype: str, drafted: int, file: str) -> None:
    from sparkdeploy_vllm.turboquant_cpu import CpuTurboQuantImpl
    from vllm import LLM, SamplingParams

    recorder = Recorder(CpuTurboQuantImpl.forward)

    def forward(impl: Any, *rest: Any, **named: Any) -> Any:
        return recorder.of(impl, *rest, **named)

    CpuTurboQuantImpl.forward = forward
    speculative = {"method": "mtp", "num_speculative_tokens": drafted} if drafted else None
    engine = LLM(
        model=model,
        kv_cache_dtype=cache_dtype,
        speculative_config=speculative,
        enforce_eager=True,
        max_model_len=512,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=2**28,
        limit_mm_per_prompt={"image": 0, "video": 0},
    )
    asked = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    done = engine.generate({"prompt_token_ids": PROMPT}, asked)[0]
    kept = {
        "outputs": recorder.outputs,
        "from_fp64": recorder.from_fp64,
        "most_tokens": recorder.most_tokens,
        "text": list(done.outputs[0].token_ids),
    }
    torch.save(kept, file)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(*sys.argv[1:])
    else:
        serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
