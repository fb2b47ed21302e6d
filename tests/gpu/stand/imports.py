"""On a machine without a GPU: import what the sitting's servers import, as if it had an H100.

`PYTHONPATH=SITE python3.12 imports.py SITE`: exit 0 when nothing is missing. libcuda is a stub
whose every function says that there is no device; only what modules ask for at import is made up.
A module that is missing here would cost a sitting there.
"""

# mypy: disable-error-code="import-not-found, attr-defined, no-untyped-def"

import importlib
import os
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace

MODULES = (
    "torchvision", "numba", "xgrammar", "llguidance", "fastsafetensors", "instanttensor",
    "vllm._moe_C_stable_libtorch", "vllm.vllm_flash_attn", "vllm._custom_ops",
    "vllm.v1.worker.gpu_worker", "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner", "vllm.v1.engine.core", "vllm.v1.spec_decode.dflash",
    "vllm.entrypoints.openai.api_server", "vllm.model_executor.models.qwen3_5",
    "vllm.model_executor.models.qwen3_5_mtp", "vllm.model_executor.models.qwen3_vl",
    "vllm.model_executor.models.qwen3_dflash", "vllm.model_executor.models.llama",
    "vllm.model_executor.layers.quantization.fp8", "vllm.model_executor.layers.quantization.inc",
    "vllm.model_executor.layers.quantization.auto_gptq",
    "vllm.model_executor.layers.fused_moe.experts.marlin_moe",
    "vllm.v1.attention.backends.flash_attn", "vllm.v1.attention.backends.triton_attn",
    "vllm.v1.attention.backends.turboquant_attn", "vllm.v1.attention.backends.gdn_attn",
    "vllm.v1.structured_output.backend_xgrammar", "vllm.v1.sample.sampler",
    "vllm.tool_parsers.qwen3_engine_tool_parser",
)  # fmt: skip
_DRIVER_CALL = re.compile(rb"\bcu[A-Z][A-Za-z0-9]+(?:_v\d+)?\b")
_OTHERS_CALL = re.compile(r"cu(da|blas|solver|sparse|fft|rand|File|dnn)[A-Z]")


def driver_stub(site: Path) -> Path:
    """A folder with a libcuda.so.1 that has every function the packed code could ask for."""
    texts = [site / "triton/backends/nvidia/driver.c", *(site / "vllm").rglob("*.so")]
    texts += (site / "instanttensor").glob("*.so")
    names = {name.decode() for text in texts for name in _DRIVER_CALL.findall(text.read_bytes())}
    calls = ['int cuGetErrorString(int e, const char **s) { *s = "no device"; return 0; }']
    calls += [f"int {name}(void) {{ return 100; }}" for name in sorted(names)
              if name != "cuGetErrorString" and not _OTHERS_CALL.match(name)]  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="driver-"))
    (folder / "cuda.c").write_text("\n".join(calls))
    made = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*made, "-o", folder / "libcuda.so.1", folder / "cuda.c"], check=True)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    return folder


def pretend_h100() -> None:
    import torch

    seen = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=80 << 30,
        multi_processor_count=132, shared_memory_per_block_optin=232_448, warp_size=32,
    )  # fmt: skip
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_capability = lambda *_: (seen.major, seen.minor)
    torch.cuda.get_device_name = lambda *_: seen.name
    torch.cuda.get_device_properties = lambda *_: seen
    import vllm.platforms
    from triton.backends.nvidia import driver
    from vllm.platforms import cuda

    vllm.platforms._current_platform = cuda.NonNvmlCudaPlatform()
    driver.CudaUtils().get_device_properties = lambda *_: {
        "max_shared_mem": seen.shared_memory_per_block_optin, "warpSize": 32,
        "multiprocessor_count": seen.multi_processor_count,
    }  # fmt: skip


def main() -> int:
    site = Path(sys.argv[1])
    if "STAND_DRIVER" not in os.environ:
        folder = driver_stub(site)
        wanted = {
            **os.environ, "STAND_DRIVER": str(folder), "LD_LIBRARY_PATH": str(folder),
            "TRITON_LIBCUDA_PATH": str(folder), "TRITON_CACHE_DIR": str(folder / "cache"),
            "PYTORCH_SKIP_CUDNN_COMPATIBILITY_CHECK": "1",
        }  # fmt: skip
        os.execve(sys.executable, [sys.executable, *sys.argv], wanted)
    pretend_h100()
    missing = 0
    for name in (*MODULES, *sys.argv[2:]):
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001 - whatever it is, the next module is to be tried too
            missing += 1
            sys.stdout.write(f"{name}:\n{traceback.format_exc(limit=-5)}\n")
    sys.stdout.write(f"{len(MODULES) - missing} of {len(MODULES)} modules are imported\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
