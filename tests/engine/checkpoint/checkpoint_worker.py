"""Makes overlay and standalone checkpoint of a pair: `checkpoint_worker ROOT INT4 ENDPOINT#REPO`.

Prints `{}` at the end. Tests kill it, and run two of them at once.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from sparkdeploy.checkpoint.contents import model_sizes, read_config
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.checkpoint.fp8_shard import Fp8Shard, Order, fetch_shard
from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.ranges import HubRanges
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.checkpoint.standalone import build_standalone

ORIGIN = "lab"


def build(root: Path, int4: Path, fp8: str) -> None:
    """Make the overlay, then the standalone checkpoint; both need the FP8 tensors."""
    conversion = Conversion("prebuilt", lm_head="int8", mtp="required", fp8_origin=ORIGIN)
    overlay = root / "m" / "ck" / "hybrid"
    build_overlay(open_folder(int4), conversion, overlay, fetched(root, int4, fp8))
    build_standalone(
        open_folder(int4),
        fetched(root, int4, fp8),
        root / "standalone",
        overwrite=False,
        on_progress=lambda _done, _total: None,
    )


def fetched(root: Path, int4: Path, fp8: str) -> Fp8Shard:
    """Fetch the FP8 tensors, or find them."""
    endpoint, _, repo = fp8.partition("#")
    hub = Hub(endpoint, Path("/nonexistent"), sleep=lambda seconds: time.sleep(seconds / 50))
    # The bytes of a pair are random: no weight is like its FP8 one.
    order = Order(model_sizes(read_config(int4)), ORIGIN)
    source = HubRanges(hub, hub.describe(repo, "main"))
    return fetch_shard(source, order, root / "fp8", lambda _done, _total: None)


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    print("{}")
