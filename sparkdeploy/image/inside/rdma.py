"""Says whether RDMA works in an engine's image: its libraries, and what it sees of adapters.

Runs inside the image with nothing but the standard library: `python -I -c THIS`. NCCL opens
libibverbs by its name, and libibverbs opens the provider of each adapter's driver, which is mlx5
for the ConnectX-7 of a Spark. No package of vLLM or torch brings them: without them NCCL has
sockets only.
"""

import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

MARK = "sparkdeploy-rdma: "
LIBRARY = "libibverbs.so.1"
PROVIDER = "libmlx5-rdmav*.so"
DEVICES = Path("/dev/infiniband")
DEVINFO = "ibv_devinfo"
DEVINFO_TIMEOUT_S = 10


def libraries() -> dict[str, str]:
    """Return why a library cannot be opened, by its name; empty where all can."""
    try:
        ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return {LIBRARY: str(error)}
    folder = _folder_of(LIBRARY) / "libibverbs"
    providers = sorted(folder.glob(PROVIDER))
    if not providers:
        return {PROVIDER: f"{folder} has none"}
    try:
        ctypes.CDLL(str(providers[-1]))
    except OSError as error:
        return {providers[-1].name: str(error)}
    return {}


def seen() -> dict[str, object]:
    """Return what a container sees of adapters, and what its user may do with them."""
    soft_bytes, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    nodes = sorted(DEVICES.glob("uverbs*")) if DEVICES.is_dir() else []
    return {
        "user": f"{os.getuid()}:{os.getgid()}",
        "memlock_bytes": None if soft_bytes == resource.RLIM_INFINITY else soft_bytes,
        "nodes": {str(node): _refusal(node) for node in nodes},
        "devinfo": _devinfo(),
    }


def _folder_of(library: str) -> Path:
    """Return where the dynamic loader found a library that is open."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.partition("/")[2]
        if Path(path).name.startswith(library):
            return Path(f"/{path}").parent
    return Path("/")


def _refusal(node: Path) -> str:
    """Return why a device may not be opened; empty when it may."""
    try:
        os.close(os.open(node, os.O_RDWR))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _devinfo() -> str | None:
    """Return what ibv_devinfo says; None where the image has none."""
    program = shutil.which(DEVINFO)
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-v"], capture_output=True, text=True, check=False, timeout=DEVINFO_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"{DEVINFO} did not end within {DEVINFO_TIMEOUT_S} s\n"
    return done.stdout + done.stderr


if __name__ == "__main__":
    told = {"missing": libraries(), **seen()}
    sys.stdout.write(f"{MARK}{json.dumps(told, sort_keys=True)}\n")
