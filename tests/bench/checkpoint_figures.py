"""Figures of the checkpoint room on a pair at a twentieth of the real size, printed side by side.

Run: python -m tests.bench.checkpoint_figures [FOLDER]. The FP8 repository is served by the hub
double over HTTP. Exit code 1 when a bar is missed. FOLDER (default: a temporary one) must be on
the disk that is to be measured, with 12 GB free.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from sparkdeploy.checkpoint.contents import model_sizes, read_config, read_tensors
from sparkdeploy.checkpoint.fp8 import expected_bytes, is_related
from sparkdeploy.checkpoint.safetensors import read_header
from tests.bench.checkpoint_pair import TWENTIETH, build_122b_headers, build_pair
from tests.hub.double import HubDouble, Repo, hub_double

REPOSITORY = Path(__file__).parents[2]
MB = 1e6
ROUNDS = 3


@dataclass(frozen=True)
class Figure:
    """One line: what was measured, the number, the bar it is held against."""

    name: str
    value: float
    bar: float
    unit: str

    @property
    def holds(self) -> bool:
        """Whether the number is within the bar."""
        return self.value <= self.bar

    def line(self) -> str:
        """The figure beside its bar."""
        word = "ok" if self.holds else "MISSED"
        return f"{word:<7} {self.name:<56} {self.value:>10.2f} <= {self.bar:>10.2f} {self.unit}"


def measure(folder: Path, double: HubDouble) -> list[Figure]:
    """Build everything once and return the figures."""
    int4, fp8 = build_pair(folder / "pair", TWENTIETH)
    double.repos["lab/fp8"] = Repo({"c" * 40: fp8}, {"main": "c" * 40})
    place = f"{double.endpoint}#lab/fp8"
    root = folder / "made"
    needed = expected_bytes(model_sizes(read_config(int4)))
    index = (fp8 / "model.safetensors.index.json").stat().st_size
    headers = sum(read_header(path).data_offset for path in fp8.glob("model-*.safetensors"))
    shard = _work("shard", root, int4, place)
    fetched = double.body_bytes
    _work("overlay", root, int4, place)
    written = _written(root)
    standalone, copies = _beside_copies(root, int4, place)
    _check_untouched(int4, root / "standalone")
    verified = _work("verify", root, root / "standalone", place)
    tensors = build_122b_headers(folder / "headers")
    real = _work("verify", root, folder / "headers", place)
    return [
        Figure(
            "fetched / (needed tensors + headers + index)",
            fetched / (needed + headers + index),
            1.05,
            "x",
        ),
        Figure("fetched", fetched / MB, 1.05 * (needed + headers + index) / MB, "MB"),
        Figure("written by prebuilt / FP8 tensors", written / needed, 1.05, "x"),
        Figure("peak memory of the fetch", shard["peak_bytes"] / MB, 200, "MB"),
        Figure("fetch, wall", shard["wall_s"], 60, "s"),
        Figure("peak memory of --standalone", standalone["peak_bytes"] / MB, 200, "MB"),
        Figure("--standalone, wall / cp and sync", standalone["wall_s"] / copies[1], 1.3, "x"),
        Figure("--standalone, wall / cp alone", standalone["wall_s"] / copies[0], 1.3, "x"),
        Figure("--standalone, wall", standalone["wall_s"], 1.3 * copies[1], "s"),
        Figure("verify (headers)", verified["wall_s"], 2, "s"),
        Figure(f"verify (headers), the 122B's {tensors} tensors", real["wall_s"], 2, "s"),
    ]


def _work(step: str, root: Path, int4: Path, fp8: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.checkpoint_worker", step, root, int4, fp8],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
        text=True,
    )
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def _beside_copies(
    root: Path, int4: Path, fp8: str
) -> tuple[dict[str, float], tuple[float, float]]:
    """The best of `ROUNDS` standalone builds and of as many copies, taken in turn.

    What else the machine does only ever makes one of them slower.
    """
    builds, copies = [], []
    for _ in range(ROUNDS):
        shutil.rmtree(root / "standalone", ignore_errors=True)
        os.sync()
        builds.append(_work("standalone", root, int4, fp8))
        copies.append(_copy_times(root / "standalone", root.parent))
    built = {
        "wall_s": min(build["wall_s"] for build in builds),
        "peak_bytes": max(build["peak_bytes"] for build in builds),
    }
    return built, (min(copy[0] for copy in copies), min(copy[1] for copy in copies))


def _written(root: Path) -> int:
    """Bytes on disk of everything made so far; a second name of a file costs nothing."""
    files = {
        path.stat().st_ino: path.stat().st_size
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink() and path.name != "model.safetensors.index.json"
    }
    return sum(files.values())


def _copy_times(folder: Path, work: Path) -> tuple[float, float]:
    """Seconds of `cp -r`, and of `cp -r` with a sync: the same bytes, the same disk."""
    os.sync()
    target = work / "copy"
    started_s = time.monotonic()
    subprocess.run(["cp", "-r", folder, target], check=True)
    copied_s = time.monotonic() - started_s
    subprocess.run(["sync", "-f", target], check=True)
    synced_s = time.monotonic() - started_s
    shutil.rmtree(target)
    return copied_s, synced_s


def _check_untouched(before: Path, after: Path) -> None:
    """Every tensor that is not FP8 has its old bytes, by sha256."""
    from sparkdeploy.checkpoint.durable import digest_of

    old, new = read_tensors(before), read_tensors(after)
    by_file: dict[str, list[str]] = {}
    for name, located in old.items():
        if not is_related(name):
            by_file.setdefault(located.file, []).append(name)
    for file, names in by_file.items():
        headers = read_header(before / file), read_header(after / file)
        with (before / file).open("rb") as left, (after / file).open("rb") as right:
            for name in names:
                assert new[name].file == file
                digests = [
                    digest_of(
                        content, header.data_offset + info.begin, header.data_offset + info.end
                    )
                    for content, header in zip((left, right), headers, strict=True)
                    for info in (header.tensors[name],)
                ]
                assert digests[0] == digests[1], name


def main(arguments: list[str]) -> int:
    """Measure, print, and say by the exit code whether every bar holds."""
    place = arguments[0] if arguments else None
    with tempfile.TemporaryDirectory(dir=place) as folder, hub_double() as double:
        figures = measure(Path(folder), double)
    for figure in figures:
        sys.stdout.write(figure.line() + "\n")
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
