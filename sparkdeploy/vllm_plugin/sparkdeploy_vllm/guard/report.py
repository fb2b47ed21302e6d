"""What the guard says: single marked JSON lines on stderr."""

import json
import os

MARK = "sparkdeploy-guard: "
STDERR = 2


def report(event: str, **facts: object) -> None:
    """Write `sparkdeploy-guard: {"event": ..., ...}`; a closed stderr is no reason to stop."""
    try:
        os.write(STDERR, line_of(event, **facts))
    except OSError:
        return


def line_of(event: str, **facts: object) -> bytes:
    """The line as it is written."""
    return f"{MARK}{json.dumps({'event': event, **facts})}\n".encode()
