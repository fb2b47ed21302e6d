"""Work by threads that nobody has to wait for: an error or Ctrl-C ends it at once."""

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_seconds

PATIENCE_S = 2.0
"""How long threads are waited for that shall stop; a read of a socket may take longer."""
QUIET_S = 2.0
_LOOK_EVERY_S = 1.0
T = TypeVar("T")
Ended = queue.SimpleQueue[BaseException | None]


def work_through(
    items: Sequence[T],
    work: Callable[[T], None],
    *,
    threads: int,
    stop: threading.Event,
    watch: Callable[[], None],
) -> None:
    """Call `work` for each item, on so many threads; raise the first error of any of them."""
    waiting, ended = queue.SimpleQueue[T](), Ended()
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
            while not _has_ended(ended, _LOOK_EVERY_S):
                watch()
    finally:
        stop.set()
        until_s = time.monotonic() + PATIENCE_S
        for thread in crew:
            thread.join(max(0.0, until_s - time.monotonic()))


def run_within(limit_s: float | None, work: Callable[[], T], title: str | None = None) -> T:
    """Return what `work` returns, in a thread that nobody waits for after `limit_s`."""
    results: list[T] = []
    ended = Ended()

    def run() -> None:
        ended.put(_outcome(lambda _: results.append(work()), None))

    until_s = math.inf if limit_s is None else time.monotonic() + limit_s
    threading.Thread(target=run, daemon=True).start()
    if title is None:
        _wait(ended, until_s, lambda: None)
    elif not _has_ended(ended, QUIET_S if limit_s is None else min(QUIET_S, limit_s)):
        text = (
            f"no answer yet, given up after {format_seconds(limit_s)}"
            if limit_s
            else "no answer yet"
        )
        with console.step(title) as step:
            _wait(ended, until_s, lambda: step.say(text))
    return results[0]


def _wait(ended: Ended, until_s: float, tell: Callable[[], None]) -> None:
    while (left_s := until_s - time.monotonic()) > 0:
        if _has_ended(ended, min(left_s, _LOOK_EVERY_S)):
            return
        tell()
    raise TimeoutError


def _has_ended(ended: Ended, wait_s: float) -> bool:
    """Whether a piece of work ends within that time; raises what it ended in."""
    try:
        error = ended.get(timeout=wait_s)
    except queue.Empty:
        return False
    if error is not None:
        raise error
    return True


def _outcome(work: Callable[[T], None], item: T) -> BaseException | None:
    try:
        work(item)
    except BaseException as error:  # noqa: BLE001 - it is raised where the work was asked for
        return error
    return None
