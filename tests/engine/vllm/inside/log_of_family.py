"""Run beside a vLLM, in a CPU engine's image or on a lent GPU: what it decides of a cache.

    python log_of_family.py CASES.json RESULTS.json

A case is {"name", "config", "arguments"}; the configuration's weights are vLLM's dummies. A result
has the lines that vLLM logged of its cache, and its groups.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import traceback
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import vllm

vllm.LLM  # noqa: B018 - it is imported late, and once is enough for all children
TOKENIZER = pathlib.Path(sys.argv[1]).parent / "tokenizer"
"""Files of a tokenizer and a processor, for the models that do not start without one."""
KEPT = (
    *("KV cache size", "Maximum concurrency", "attention block size", "Padding mamba", "layout"),
    *("Model loading took", "Available KV cache memory", "backend"),
)


def group_of(group: Any) -> dict[str, Any]:
    spec = group.kv_cache_spec
    each = getattr(spec, "kv_cache_specs", None)
    first = next(iter(each.values())) if each else spec
    return {
        "kind": type(spec).__name__,
        "layer_kind": type(first).__name__,
        "layers": len(group.layer_names),
        "block_tokens": spec.block_size,
        "page_bytes": spec.page_size_bytes,
        "window": getattr(first, "sliding_window", None),
    }


def decided(case: dict[str, Any], folder: str) -> dict[str, Any]:
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(case["config"]))
    for file in TOKENIZER.iterdir() if TOKENIZER.exists() else ():
        shutil.copy(file, folder)
    arguments = {
        "skip_tokenizer_init": "vision_config" not in case["config"],
        "load_format": "dummy",
        "enforce_eager": True,
        **case["arguments"],
    }
    engine = vllm.LLM(model=str(folder), **arguments).llm_engine
    core = engine.engine_core.engine_core
    cache = core.scheduler.kv_cache_config
    scheduler = core.vllm_config.scheduler_config
    return {
        "blocks": cache.num_blocks,
        "groups": [group_of(group) for group in cache.kv_cache_groups],
        "block_tokens": core.vllm_config.cache_config.block_size,
        "batched_tokens": scheduler.max_num_batched_tokens,
        "asynchronous": scheduler.async_scheduling,
        "prefix_caching": core.vllm_config.cache_config.enable_prefix_caching,
    }


def result_of(case: dict[str, Any]) -> dict[str, Any]:
    """Start one case in a child of its own: what breaks it breaks no other."""
    with tempfile.TemporaryDirectory() as folder:
        answer, log = pathlib.Path(folder) / "answer.json", pathlib.Path(folder) / "log"
        child = os.fork()
        if child == 0:
            os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY), 1)
            try:
                found = decided(case, folder)
            except BaseException as error:  # noqa: BLE001 - it is told, and the next case goes on
                traceback.print_exc()
                found = {"error": f"{type(error).__name__}: {error}"}
            answer.write_text(json.dumps(found))
            os._exit(0)
        os.waitpid(child, 0)
        found = json.loads(answer.read_text()) if answer.exists() else {"error": "it died"}
        lines = [line for line in log.read_text().splitlines() if any(it in line for it in KEPT)]
    said = [line.split("] ", 1)[-1] for line in lines]
    return {"name": case["name"], "arguments": case["arguments"], "log": said, **found}


def main() -> None:
    cases = json.loads(pathlib.Path(sys.argv[1]).read_text())
    results = []
    for case in cases:
        results.append({"vllm": vllm.__version__, **result_of(case)})
        print(f"{case['name']}: {results[-1].get('error', 'started')}", file=sys.stderr, flush=True)
    pathlib.Path(sys.argv[2]).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
