"""Makes shard, overlay and standalone checkpoint of a pair: `worker.py STEP ROOT INT4 FP8`.

FP8 is a folder, or ENDPOINT#REPO. Prints one JSON line. Tests kill it; figures measure it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from sparkdeploy.checkpoint.contents import model_sizes, read_config
from sparkdeploy.checkpoint.fp8_shard import Order, fetch_shard
from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.ranges import FolderRanges, HubRanges, RangeSource
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.checkpoint.standalone import build_standalone
from sparkdeploy.checkpoint.treatment import Treatment
from sparkdeploy.checkpoint.verify import verify_headers

ORIGIN = "lab"


def main(step: str, root: Path, int4: Path, fp8: str) -> dict[str, float]:
    """Do one step, or `all`, and say how long it took and how much memory the process had."""
    started_s = time.monotonic()
    {"shard": shard, "overlay": overlay, "standalone": standalone, "verify": verify, "all": every}[
        step
    ](root, int4, fp8)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"wall_s": time.monotonic() - started_s, "peak_bytes": peak_bytes}


def shard(root: Path, int4: Path, fp8: str) -> None:
    """Fetch the FP8 tensors, or find them."""
    made(root, int4, fp8)


def made(root: Path, int4: Path, fp8: str):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """The shard."""
    sizes = model_sizes(read_config(int4))
    # The bytes of a pair are random: no weight is like its FP8 one.
    return fetch_shard(ranges(fp8), Order(sizes, ORIGIN), root / "fp8", lambda _done, _total: None)


def ranges(fp8: str) -> RangeSource:
    """The FP8 repository."""
    endpoint, _, repo = fp8.partition("#")
    if not repo:
        return FolderRanges(Path(fp8))
    hub = Hub(endpoint, Path("/nonexistent"), sleep=lambda seconds: time.sleep(seconds / 50))
    return HubRanges(hub, hub.describe(repo, "main"))


def overlay(root: Path, int4: Path, fp8: str) -> None:
    """The overlay with the shard in it."""
    treatment = Treatment("prebuilt", lm_head="int8", mtp="required", fp8_origin=ORIGIN)
    target = root / "m" / "ck" / "hybrid"
    build_overlay(open_folder(int4), treatment, target, made(root, int4, fp8))


def standalone(root: Path, int4: Path, fp8: str) -> None:
    """The complete checkpoint."""
    build_standalone(
        open_folder(int4),
        made(root, int4, fp8),
        root / "standalone",
        replaces=lambda _out: False,
        on_progress=lambda _done, _total: None,
    )


def verify(_root: Path, int4: Path, _fp8: str) -> None:
    """The headers of a checkpoint."""
    verify_headers(int4)


def every(root: Path, int4: Path, fp8: str) -> None:
    """All three, one after the other."""
    overlay(root, int4, fp8)
    standalone(root, int4, fp8)


if __name__ == "__main__":
    answer = main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
    sys.stdout.write(json.dumps(answer) + "\n")
