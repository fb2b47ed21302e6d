"""A container's log, read in the background while something else waits."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from sparkdeploy.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.server.phases import PhaseTracker

END_TIMEOUT_S = 1.0


@contextlib.contextmanager
def followed(
    host: DockerHost, container_id: str, tracker: PhaseTracker, *, clock: Callable[[], float]
) -> Iterator[threading.Thread]:
    """Feed the log to the tracker until the block or the container ends.

    A log that cannot be read is no reason to fail: the container's state decides, not its words.
    """
    with host.open_log(container_id) as stream:

        def read() -> None:
            with contextlib.suppress(NodeError):
                for chunk in stream:
                    tracker.feed(chunk, clock())

        thread = threading.Thread(target=read, name=f"log-{container_id[:12]}", daemon=True)
        thread.start()
        try:
            yield thread
        finally:
            stream.close()
            thread.join(END_TIMEOUT_S)
