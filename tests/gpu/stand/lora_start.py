"""Serve a tiny Llama of made-up weights with a LoRA adapter, the plugin in the process.

`lora_start.py`: exit 0 when a request with the adapter, which changes the LM head too, answers and
says something else than one without. LoRA wraps the logits processor of every model.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

HIDDEN, VOCABULARY, RANK = 128, 512, 8
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": HIDDEN, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
ADAPTER = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "r": RANK, "lora_alpha": 16,
    "target_modules": ["lm_head"],
}  # fmt: skip


def main() -> int:
    """Say what was answered; 0 when the adapter was heard."""
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(MODEL))
    engine = LLM(
        model=str(folder), load_format="dummy", skip_tokenizer_init=True, enforce_eager=True,
        enable_lora=True, max_lora_rank=RANK, max_model_len=256, dtype="bfloat16",
        gpu_memory_utilization=0.05,
    )  # fmt: skip
    plain, adapted = (
        _answer(engine, request) for request in (None, LoRARequest("a", 1, str(_adapter(folder))))
    )
    sys.stdout.write(f"plain {plain}\nwith the adapter {adapted}\n")
    return 0 if plain != adapted else 1


def _answer(engine: LLM, adapter: LoRARequest | None) -> list[int]:
    sampling = SamplingParams(max_tokens=8, temperature=0, detokenize=False)
    outputs = engine.generate([{"prompt_token_ids": [1, 2, 3]}], sampling, lora_request=adapter)
    return list(outputs[0].outputs[0].token_ids)


def _adapter(folder: Path) -> Path:
    place = folder / "adapter"
    place.mkdir()
    (place / "adapter_config.json").write_text(json.dumps(ADAPTER))
    drawn = torch.Generator().manual_seed(1)
    name = "base_model.model.lm_head"
    save_file(
        {
            f"{name}.lora_A.weight": torch.randn(RANK, HIDDEN, generator=drawn).bfloat16(),
            f"{name}.lora_B.weight": torch.randn(VOCABULARY, RANK, generator=drawn).bfloat16(),
        },
        str(place / "adapter_model.safetensors"),
    )
    return place


if __name__ == "__main__":
    raise SystemExit(main())
