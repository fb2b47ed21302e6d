"""Loads every library of vLLM beside a stand-in for the driver; prints what each one lacks as JSON.

Runs inside a CUDA engine's image, where no GPU and no driver is. The stand-in is the one that the
build made for its linker: it has the driver's name and a function for each of the driver's.
"""

import ctypes
import json
import sysconfig
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))
OF_THIS_PYTHON = sysconfig.get_config_var("EXT_SUFFIX")
DRIVER = SITE / "nvidia/cu13/lib/stubs/libcuda.so"

ctypes.CDLL(str(DRIVER), ctypes.RTLD_GLOBAL)

import torch  # noqa: E402

found = {"torch": f"{torch.__version__} {torch.version.cuda}"}
for path in sorted((SITE / "vllm").rglob("*.so")):
    # DeepGEMM's lie there for each Python.
    if ".cpython-" in path.name and not path.name.endswith(OF_THIS_PYTHON):
        continue
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        found[str(path.relative_to(SITE))] = str(error)
    else:
        found[str(path.relative_to(SITE))] = ""
print(json.dumps(found))
