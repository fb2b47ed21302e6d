"""Pulls a repository: `checkpoint_puller.py ENDPOINT ROOT STEP`, and dies right before a step.

With a STEP that never comes it pulls to the end. Prints how many steps there were.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.pull import WantedRepository, plan_download, pull, resolve
from tests.engine.checkpoint.checkpoint_killer import watched

REPO = "lab/model"


def main(endpoint: str, root: Path, step: int) -> int:
    """Pull as `checkpoint pull` does."""
    seen: list[int] = []

    def on_step(number: int) -> None:
        seen.append(number)
        if number == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        hub, lock = Hub(endpoint, root / "hub"), HubLock(root / "state")
        facts = resolve(hub, lock, WantedRepository(REPO), anew=False)
        download = plan_download(hub, lock, facts, free_bytes=1 << 40)
        pull(hub, lock, download, lambda _done, _total: None)

    watched(work, on_step)
    return len(seen)


if __name__ == "__main__":
    sys.stdout.write(f"{main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))}\n")
