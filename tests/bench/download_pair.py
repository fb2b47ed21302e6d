"""Measures `checkpoint pull` beside the hub's own `snapshot_download`, from a hub on this machine.

Run: python -m tests.bench.download_pair [ROUNDS] [--quick]. The hub gives each connection 8 and
then 30 MB/s, over HTTP and as files of the Xet store (which come by GET: hf_xet's own servers are
not at hand). The two programs alternate, each in a process of its own with a fresh cache. Ours
hashes every file, the other none. The bar: at most 1.1 times its time. Exit code 1 above it. With
--quick files are so small that Python's start counts most, and nothing is held against the bar.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import Process, Queue
from pathlib import Path

from tests.hub.double import HubDouble, Repo, hub_double
from tests.hub.xet import IN_PROCESSES

ROOT = Path(__file__).parents[2]
REPO, COMMIT = "lab/model", "e" * 40
FILES, FILE_BYTES = 12, 40_000_000
QUICK_FILES, QUICK_FILE_BYTES = 8, 10_000_000
RATES = (8e6, 30e6)
BAR = 1.1
LIBRARY = "from huggingface_hub import snapshot_download; snapshot_download('lab/model')"
COMMANDS = {
    "snapshot_download": [sys.executable, "-c", LIBRARY],
    "checkpoint pull": [sys.executable, "-m", "sparkdeploy", "checkpoint", "pull", REPO],
}


def main() -> int:
    """Print the table; return 0 when the bar holds everywhere."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--quick", action="store_true", help="small files, and no bar")
    options = parser.parse_args()
    rounds = options.rounds
    files, size_bytes = (QUICK_FILES, QUICK_FILE_BYTES) if options.quick else (FILES, FILE_BYTES)
    print(f"{files} files of {size_bytes / 1e6:.0f} MB; medians of {rounds} rounds, in seconds")
    print(f"{'transfer':<9} {'MB/s each':>9} {'library':>9} {'ours':>9} {'ratio':>6}")
    worst = 0.0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        _make(folder / "model", files, size_bytes)
        for is_xet, rate in itertools.product((False, True), RATES):
            seconds = measure(folder, rounds, rate, is_xet=is_xet)
            library_s, ours_s = (statistics.median(seconds[name]) for name in COMMANDS)
            worst = max(worst, ours_s / library_s)
            kind = "Xet" if is_xet else "HTTP"
            print(
                f"{kind:<9} {rate / 1e6:>9.0f} {library_s:>9.2f} {ours_s:>9.2f} "
                f"{ours_s / library_s:>6.2f}",
                flush=True,
            )
    if options.quick:
        return 0
    print(f"worst ratio {worst:.2f}, bar {BAR:.2f}: {'holds' if worst <= BAR else 'MISSED'}")
    return int(worst > BAR)


def measure(folder: Path, rounds: int, rate: float, *, is_xet: bool) -> dict[str, list[float]]:
    """Return the seconds of each round per command; a first one of each warms the page cache."""
    told: Queue[str] = Queue()
    hub = Process(target=_serve, args=(folder / "model", rate, is_xet, told), daemon=True)
    hub.start()
    endpoint = told.get()
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(rounds + 1):
        for name, command in COMMANDS.items():
            taken_s = _time_one(command, folder / "home", endpoint)
            if turn > 0:
                seconds[name].append(taken_s)
    hub.terminate()
    hub.join()
    return seconds


def _make(model: Path, files: int, size_bytes: int) -> None:
    model.mkdir()
    dice = random.Random(1)
    (model / "config.json").write_text("{}")
    for number in range(files):
        (model / f"model-{number:05d}.safetensors").write_bytes(dice.randbytes(size_bytes))


def _serve(model: Path, rate: float, is_xet: bool, told: Queue[str]) -> None:
    with hub_double() as double:
        double.bytes_per_s = rate
        double.repos[REPO] = Repo({COMMIT: model}, {"main": COMMIT}, is_xet=is_xet)
        _warm(double)
        told.put(double.endpoint)
        time.sleep(3600)


def _warm(double: HubDouble) -> None:
    """Let the hub hash its files once, before anybody waits for it."""
    import requests

    requests.get(f"{double.endpoint}/api/models/{REPO}/revision/main", timeout=600)


def _time_one(command: list[str], home: Path, endpoint: str) -> float:
    shutil.rmtree(home, ignore_errors=True)
    os.sync()
    folders = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("STATE", "DATA", "CACHE")}
    env = {
        **os.environ,
        **folders,
        "HF_HOME": str(home / "hf"),
        "HF_ENDPOINT": endpoint,
        "PYTHONPATH": f"{IN_PROCESSES}:{ROOT}",
    }
    started_s = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=env)
    return time.perf_counter() - started_s


if __name__ == "__main__":
    sys.exit(main())
