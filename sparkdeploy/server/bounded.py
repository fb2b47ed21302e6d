"""An HTTP answer that is read whole, up to a size and until a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sparkdeploy.errors import UnhealthyError

if TYPE_CHECKING:
    import requests

MAX_ANSWER_BYTES = 64 << 20
"""Far beyond any answer of vLLM: a list of metrics is about 100 KiB."""
_CHUNK_BYTES = 1 << 16


def read_whole(
    response: requests.Response,
    url: str,
    *,
    timeout_s: float,
) -> None:
    """Read the body of a streamed answer, so that `text` and `json` have it.

    Raises UnhealthyError, and closes the connection, for a body that is larger, or that has not
    come `timeout_s` after the first byte; requests' own errors where the connection breaks.
    """
    deadline_s = time.monotonic() + timeout_s
    content = bytearray()
    for chunk in response.iter_content(_CHUNK_BYTES):
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            response.close()
            raise UnhealthyError(f"{url} answered with more than {MAX_ANSWER_BYTES >> 20} MiB")
        if time.monotonic() > deadline_s:
            response.close()
            raise UnhealthyError(f"{url} did not end its answer within {timeout_s:g} s")
    response._content = bytes(content)
