"""How fast each of vLLM's loaders brings a checkpoint of several GB from a cold disk to the GPU.

`loaders.py make FOLDER` writes a Llama-like checkpoint of made-up weights; `loaders.py measure
FOLDER RESULT.json` starts a server for each loader, with the files put out of the page cache first,
and ends it when it says how long its weights took. RESULT.json is written after each.
"""

import ctypes
import json
import mmap
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD, VOCABULARY = 4096, 14_336, 16, 32, 8, 128, 32_768
LAYERS_A_FILE = 4
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
    "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
RUNS = (
    ("plain", "safetensors", "cold"), ("fastsafetensors", "fastsafetensors", "cold"),
    ("instanttensor", "instanttensor", "cold"), ("plain again", "safetensors", "warm"),
)  # fmt: skip
TOOK = re.compile(r"Loading weights took ([\d.]+) seconds|Model loading took .*?([\d.]+) seconds")
START_LIMIT_S = 110
PORT = 8600


def _tensors() -> list[dict[str, tuple[int, ...]]]:
    """The shapes of each file's tensors."""
    files: list[dict[str, tuple[int, ...]]] = [
        {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,),
         "lm_head.weight": (VOCABULARY, HIDDEN)}
    ]  # fmt: skip
    for layer in range(LAYERS):
        if layer % LAYERS_A_FILE == 0:
            files.append({})
        at = f"model.layers.{layer}"
        files[-1] |= {
            f"{at}.input_layernorm.weight": (HIDDEN,),
            f"{at}.post_attention_layernorm.weight": (HIDDEN,),
            f"{at}.self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
            f"{at}.self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{at}.self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{at}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
            f"{at}.mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{at}.mlp.up_proj.weight": (INNER, HIDDEN),
            f"{at}.mlp.down_proj.weight": (HIDDEN, INNER),
        }
    return files


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # Small numbers in BF16, no two pages alike: the low bytes are anything, the high ones 0x3a.
    block = bytearray(os.urandom(64 << 20))
    block[1::2] = b"\x3a" * (len(block) // 2)
    where: dict[str, str] = {}
    for number, tensors in enumerate(_tensors()):
        name = f"model-{number}.safetensors"
        where |= dict.fromkeys(tensors, name)
        _write(folder / name, tensors, bytes(block))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": where})
    )
    (folder / "config.json").write_text(json.dumps(MODEL))
    (folder / "made").touch()


def _write(path: Path, tensors: dict[str, tuple[int, ...]], block: bytes) -> None:
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for start in range(0, at, len(block)):
            file.write(block[: at - start])
        file.flush()
        os.fsync(file.fileno())


def weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def put_out(paths: list[Path]) -> None:
    """Out of the page cache."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_share(paths: list[Path]) -> float:
    """How much of the files is in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    there = pages = 0
    for path in paths:
        size = path.stat().st_size
        # Private and writable, since ctypes takes the address of nothing else; nothing is written.
        access = mmap.PROT_READ | mmap.PROT_WRITE
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, access) as mapped,
        ):
            count = -(-size // mmap.PAGESIZE)
            seen = (ctypes.c_ubyte * count)()
            at = ctypes.c_char.from_buffer(mapped)
            libc.mincore(ctypes.c_void_p(ctypes.addressof(at)), ctypes.c_size_t(size), seen)
            del at
            there += sum(page & 1 for page in bytes(seen))
            pages += count
    return round(there / pages, 3)


def measure(folder: Path, result: Path) -> None:
    paths = weights(folder)
    size = sum(path.stat().st_size for path in paths)
    told: dict = {"bytes": size, "files": len(paths), "runs": []}
    for name, loader, state in RUNS:
        if state == "cold":
            put_out(paths)
        run = {"name": name, "state": state, "cached_before": cached_share(paths)}
        told["runs"].append({**run, **_started(folder, loader, size)})
        result.write_text(json.dumps(told, indent=1))


def _started(folder: Path, loader: str, size: int) -> dict:
    log = Path(f"/tmp/logs/loader-{loader}.log")
    log.parent.mkdir(exist_ok=True)
    flags = ["--load-format", loader, "--enforce-eager", "--skip-tokenizer-init"]
    flags += ["--max-model-len", "1024", "--max-num-seqs", "4", "--gpu-memory-utilization", "0.05"]
    flags += ["--kv-cache-memory-bytes", str(256 << 20), "--port", str(PORT)]
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    process = subprocess.Popen(
        [*argv, *flags], stdout=log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True
    )
    seen: dict = {}
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None and "model_s" not in seen:
        time.sleep(0.5)
        for weights_s, model_s in TOOK.findall(log.read_text(errors="replace")):
            seen |= {"weights_s": float(weights_s)} if weights_s else {"model_s": float(model_s)}
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(2)
    if "weights_s" in seen:
        return {**seen, "gb_s": round(size / 1e9 / seen["weights_s"], 2)}
    return {**seen, "log_tail": log.read_text(errors="replace")[-2500:]}


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        measure(Path(sys.argv[2]), Path(sys.argv[3]))
