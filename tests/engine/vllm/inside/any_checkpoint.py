"""In the CPU engine's image: small models of other architectures, as published and converted.

`any_checkpoint.py`, with sparkdeploy and tests on PYTHONPATH. One engine serves each checkpoint
alone, and one what the plugin makes of it, with drafts; each is a fork of this process, which has
imported vLLM once. A line of JSON for each, `{"name", "ids", "accepted"}`, where `ids` are greedy
texts of three prompts, follows what vLLM and the plugin logged of it.
"""

# mypy: disable-error-code="import-not-found"

import gc
import importlib
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # vLLM reads it while it is imported.

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from vllm import LLM, SamplingParams
from vllm.model_executor.layers.fused_moe import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.fused_moe.oracle.fp8 import Fp8MoeBackend
from vllm.model_executor.layers.fused_moe.oracle.nvfp4 import NvFp4MoeBackend
from vllm.model_executor.layers.fused_moe.oracle.unquantized import select_unquantized_moe_backend
from vllm.model_executor.layers.quantization import fp8
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w4a4_nvfp4 as nvfp4,
)
from vllm.plugins import load_general_plugins

from tests.gpu.stand import formats

ROOT = Path("/tmp/m")
ARCHITECTURES = ("nvfp4", "next-fp8", "dense")
PROMPTS = [[(7 * n * n + n * turn) % 500 + 5 for n in range(8 + turn)] for turn in range(3)]
TOKENS = 24
DRAFTS = 2


def unpack_experts() -> None:
    """Let vLLM's kernel for 16 bits serve experts that it multiplies on GPUs alone.

    They are loaded by its own classes for NVFP4 and FP8, and unpacked after that.
    """
    nvfp4.select_nvfp4_moe_backend = choosing(NvFp4MoeBackend.EMULATION)
    fp8.select_fp8_moe_backend = choosing(Fp8MoeBackend.NONE)
    nvfp4.CompressedTensorsW4A4Nvfp4MoEMethod.process_weights_after_loading = unpacking(of_nvfp4)
    fp8.Fp8MoEMethod.process_weights_after_loading = unpacking(of_fp8)


def choosing(backend: Any) -> Callable[..., Any]:
    return lambda config, **_: (backend, select_unquantized_moe_backend(config)[1])


def unpacking(unpack: Callable[[Module, str], Tensor]) -> Callable[[Any, Module], None]:
    def process_weights_after_loading(method: Any, layer: Module) -> None:
        for part in ("w13", "w2"):
            weight = unpack(layer, part).bfloat16()
            layer.register_parameter(f"{part}_weight", Parameter(weight, requires_grad=False))
        plain = UnquantizedFusedMoEMethod(method.moe)
        plain.process_weights_after_loading(layer)
        method.moe_quant_config, method.moe_kernel = plain.moe_quant_config, plain.moe_kernel

    return process_weights_after_loading


def of_nvfp4(layer: Module, part: str) -> Tensor:
    packed = getattr(layer, f"{part}_weight_packed")
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()
    sizes = formats.FP4[codes & 7] * (1 - 2 * (codes >> 3))
    scales = getattr(layer, f"{part}_weight_scale").float().repeat_interleave(16, -1)
    wholes = getattr(layer, f"{part}_weight_global_scale").view(len(packed), -1)
    rows = packed.shape[1] // wholes.shape[1]
    return sizes * scales / wholes.repeat_interleave(rows, 1).unsqueeze(-1)


def of_fp8(layer: Module, part: str) -> Tensor:
    scales = getattr(layer, f"{part}_weight_scale_inv")
    blocks = scales.repeat_interleave(128, 1).repeat_interleave(128, 2)
    return getattr(layer, f"{part}_weight").float() * blocks


def ask(folder: Path, drafts: int) -> None:
    by_mtp = {"method": "mtp", "num_speculative_tokens": drafts}
    sees = "vision_config" in json.loads((folder / "config.json").read_text())
    engine = LLM(
        model=str(folder),
        max_model_len=512,
        max_num_seqs=4,
        enforce_eager=True,
        disable_log_stats=False,
        skip_tokenizer_init=True,
        num_gpu_blocks_override=64,
        # Its kernel for states needs Triton.
        enable_prefix_caching=False,
        **({"speculative_config": by_mtp} if drafts else {}),
        **({"limit_mm_per_prompt": {"image": 0, "video": 0}} if sees else {}),
    )
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    answers = engine.generate(prompts, greedy, use_tqdm=False)
    accepted = [it.value for it in engine.get_metrics() if it.name.endswith("accepted_tokens")]
    said = {
        "name": folder.name,
        "ids": [list(answer.outputs[0].token_ids) for answer in answers],
        "accepted": sum(accepted),
    }
    print(f"SAID {json.dumps(said)}", flush=True)
    os._exit(0)  # Without tidying, which takes longer than the answers.


def ask_in_a_fork(folder: Path, drafts: int) -> None:
    """An engine leaves much behind, in vLLM and in the plugin; its process ends with it."""
    process = multiprocessing.get_context("fork").Process(target=ask, args=(folder, drafts))
    process.start()
    process.join()
    assert process.exitcode == 0, f"{folder.name} ended with {process.exitcode}"


def import_once() -> None:
    """Import before the forks what each of them would: the plugin, the engine and the models."""
    load_general_plugins()
    for name in ("v1.worker.cpu_worker", "v1.engine.core", "model_executor.models.qwen3_5_mtp"):
        importlib.import_module(f"vllm.{name}")
    # An engine asks for it six times, and looks through all that was ever imported.
    gc.collect = lambda *_: 0


def main() -> None:
    import_once()
    unpack_experts()
    for architecture in ARCHITECTURES:
        formats.make(architecture, ROOT)
        ask_in_a_fork(ROOT / "twins" / architecture, 0)
        ask_in_a_fork(ROOT / "m" / "ck" / f"{architecture}-fast", DRAFTS)


if __name__ == "__main__":
    main()
