"""What the guard says: single marked JSON lines on stderr.

Everything beneath the guard has the same stderr and may write such a line too. Why a container
ended is told by its exit code; a line only says more about it.
"""

import json
import os
import select
import time

MARK = "sparkdeploy-guard: "
STDERR = 2
PATIENCE_S = 0.2
_RETRY_S = 0.005


class _Stderr:
    """Writes whole lines and waits for no reader: a hung Docker daemon leaves the pipe full."""

    def __init__(self) -> None:
        self.dropped_lines = 0

    def say(self, event: str, facts: dict[str, object]) -> None:
        if self.dropped_lines:
            facts["dropped_lines"] = self.dropped_lines
        is_written = _written_in_time(line_of(event, **facts))
        self.dropped_lines = 0 if is_written else self.dropped_lines + 1


_stderr = _Stderr()


def report(event: str, **facts: object) -> None:
    """Write `sparkdeploy-guard: {"event": ..., ...}`; it is given up after PATIENCE_S."""
    _stderr.say(event, facts)


def line_of(event: str, **facts: object) -> bytes:
    r"""The line as it is written: begun anew, and short enough to be one piece in a pipe.

    The child shares our stderr and may have died in the midst of a progress bar, hence the first
    `\n`. Texts are cut until all of it fits into PIPE_BUF.
    """
    cut = select.PIPE_BUF
    while True:
        short = {key: it[:cut] if isinstance(it, str) else it for key, it in facts.items()}
        line = f"\n{MARK}{json.dumps({'event': event, **short})}\n".encode()
        if len(line) <= select.PIPE_BUF or cut == 0:
            return line
        cut //= 2


def write_at_once(line: bytes) -> bool:
    """Write where there is room at this moment; False where there is none. OSError: none ever."""
    try:
        # Non-blocking for this call alone: O_NONBLOCK would change the child's stderr too, and
        # between a poll and a write another process may take the room that was seen.
        os.pwritev(STDERR, (line,), -1, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        # Files, terminals and pipes before Linux 6.4 know no such write.
        return _write_after_asking(line)
    return True


def _write_after_asking(line: bytes) -> bool:
    poll = select.poll()
    poll.register(STDERR, select.POLLOUT)
    has_room = any(events & select.POLLOUT for _, events in poll.poll(0))
    return has_room and os.write(STDERR, line) >= 0


def _written_in_time(line: bytes) -> bool:
    """A pipe that is full because the child has just said a lot is soon read."""
    deadline_s = time.monotonic() + PATIENCE_S
    try:
        while not write_at_once(line):
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_RETRY_S)
    except OSError:
        return False  # A closed stderr is no reason to stop.
    return True
