"""Wheels of a lock in a folder, fetched as docs/engines.md says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sparkdeploy.image.lock import index_variables
from sparkdeploy.settings import BuildNetwork
from tests.unit.conftest import REPOSITORY


def fetch_wheels(
    folder: Path,
    locks: Sequence[Path],
    network: BuildNetwork,
    *,
    architecture: str = "aarch64",
    python: str = "3.11",
) -> tuple[Path, ...]:
    """Run the page's own lines for these locks; return the wheels."""
    page = (REPOSITORY / "docs" / "engines.md").read_text()
    found = re.search(r"^pip download (?:[^\n]*\\\n)*[^\n]*", page, re.MULTILINE)
    assert found is not None
    typed, wanted = re.subn(r"-r \S+ -r \S+", " ".join(f"-r {path}" for path in locks), found[0])
    assert wanted == 1
    typed = typed.replace("pip download", f"{sys.executable} -m pip download", 1)
    typed = typed.replace("aarch64", architecture).replace("3.11", python)
    typed = typed.replace("-d DIR", f"-d {folder}")
    env = {**os.environ, **index_variables(network)}
    subprocess.run(["sh", "-e", "-c", typed], check=True, env=env)
    return tuple(folder.glob("*.whl"))
