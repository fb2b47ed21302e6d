"""Makes the plugin's source tree importable; it is not a dependency of the tool."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.vllm_plugin import guarded
from tests.unit.vllm_plugin.guarded import GIB, Start, set_available, start_guard

PLUGIN_TREE = guarded.PLUGIN_TREE
sys.path.insert(0, str(PLUGIN_TREE))


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the guard over a Python script; whatever is left over is killed afterwards."""
    guards: list[subprocess.Popen[str]] = []

    def run(script: str, *options: str, **settings: Any) -> subprocess.Popen[str]:
        guards.append(start_guard(script, *options, **settings))
        return guards[-1]

    yield run
    for guard in guards:
        guard.kill()
        guard.communicate()


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    set_available(path, 64 * GIB)
    return path
