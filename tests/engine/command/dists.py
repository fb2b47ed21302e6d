"""The wheel and the sdist of this checkout, built by the tools of the test environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
UV = Path(sys.executable).with_name("uv")


def build_dists(folder: Path, *options: str) -> None:
    """Build the sdist and, out of it, the wheel; `options` are of `uv build`."""
    argv: list[str | Path] = [UV, "build", *options, "--no-build-isolation"]
    argv += ["--python", sys.executable, "--out-dir", folder, CHECKOUT]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def the_only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found
