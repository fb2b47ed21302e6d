"""Work on many items by threads that nobody has to wait for: an error or Ctrl-C ends it at once."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PATIENCE_S = 2.0
"""How long threads are waited for that were told to stop; a read of a socket may take longer."""
_LOOK_EVERY_S = 1.0
T = TypeVar("T")


def work_through(
    items: Sequence[T],
    work: Callable[[T], None],
    *,
    threads: int,
    stop: threading.Event,
    watch: Callable[[], None],
) -> None:
    """Call `work` for each item, on so many threads; raise the first error of any of them.

    `watch` is called about once a second, and may raise as well. Whatever ends the work sets
    `stop`, by which calls that go on learn of it.
    """
    waiting, ended = queue.SimpleQueue[T](), queue.SimpleQueue[BaseException | None]()
    for item in items:
        waiting.put(item)

    def run() -> None:
        with contextlib.suppress(queue.Empty):
            while not stop.is_set():
                ended.put(_outcome(work, waiting.get_nowait()))

    # No executor: Python joins its threads at the end, and they may hang in a dead connection.
    crew = [threading.Thread(target=run, daemon=True) for _ in range(min(threads, len(items)))]
    for thread in crew:
        thread.start()
    try:
        for _ in items:
            error = _next(ended, watch)
            if error is not None:
                raise error
    finally:
        stop.set()
        until_s = time.monotonic() + PATIENCE_S
        for thread in crew:
            thread.join(max(0.0, until_s - time.monotonic()))


def run_within(limit_s: float, work: Callable[[], T]) -> T:
    """Return what `work` returns, in a thread that nobody waits for after `limit_s`.

    Raises what it raises, and TimeoutError when it takes longer.
    """
    results: list[T] = []
    ended = queue.SimpleQueue[BaseException | None]()

    def run() -> None:
        ended.put(_outcome(lambda _: results.append(work()), None))

    threading.Thread(target=run, daemon=True).start()
    try:
        error = ended.get(timeout=limit_s)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return results[0]


def _outcome(work: Callable[[T], None], item: T) -> BaseException | None:
    try:
        work(item)
    except BaseException as error:  # noqa: BLE001 - it is raised where the work was asked for
        return error
    return None


def _next(
    ended: queue.SimpleQueue[BaseException | None], watch: Callable[[], None]
) -> BaseException | None:
    while True:
        try:
            return ended.get(timeout=_LOOK_EVERY_S)
        except queue.Empty:
            watch()
