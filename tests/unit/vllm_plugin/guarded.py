"""Starting the guard over a child of one's own, and reading what it said."""

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

PLUGIN_TREE = Path(__file__).resolve().parents[3] / "sparkdeploy" / "vllm_plugin"
GIB = 1 << 30

Start = Callable[..., subprocess.Popen[str]]


def start_guard(
    script: str,
    *options: str,
    before: str = "",
    stderr: int | IO[bytes] = subprocess.PIPE,
    **env: str,
) -> subprocess.Popen[str]:
    """Start the guard over a Python script; `before` runs in its process before it is executed."""
    argv = [sys.executable, "-m", "sparkdeploy_vllm.guard", *options, "--"]
    if before:
        become = "\nimport os, sys\nos.execv(sys.argv[1], sys.argv[1:])"
        argv = [sys.executable, "-c", textwrap.dedent(before) + become, *argv]
    return subprocess.Popen(
        [*argv, sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": str(PLUGIN_TREE), **env},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def set_available(path: Path, size_bytes: int) -> None:
    """Rewrite in place: the guard keeps the file open."""
    text = (
        f"MemTotal:       125829120 kB\nMemFree:  1024 kB\nMemAvailable: {size_bytes // 1024} kB\n"
    )
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(text.encode().ljust(200, b" "))


def finish(guard: subprocess.Popen[str], timeout_s: float = 30) -> tuple[int, str, str]:
    """Wait for its end: exit code, stdout, stderr."""
    stdout, stderr = guard.communicate(timeout=timeout_s)
    return guard.returncode, stdout, stderr


def events(stderr: str) -> list[dict[str, Any]]:
    """What the guard said, oldest first."""
    mark = "sparkdeploy-guard: "
    return [json.loads(line.removeprefix(mark)) for line in stderr.splitlines() if mark in line]


def wait_for(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether the process lives (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
