"""One real vLLM at a time, whichever worker or run of this user's starts it: memory is shared."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def vllm_turn() -> Iterator[None]:
    """Wait until no other test has a real vLLM; keep it so to the end of the block."""
    path = Path(tempfile.gettempdir()) / f"sparkdeploy-tests-vllm-{os.getuid()}.lock"
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
