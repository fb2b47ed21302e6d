"""A container's log that can be closed while it is followed."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Any

import docker.errors

from sparkdeploy.errors import NodeError
from sparkdeploy.node.connection import SDK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterator

_BROKEN_STREAM = (
    *SDK_ERRORS,
    OSError,
    struct.error,  # the connection ended inside a frame's header
)


class LogStream:
    """A log that is read in one thread and may be closed from another."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401 - the SDK's own stream
        """Wrap what the SDK returned."""
        self._stream = stream
        self._is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield chunks until the container ends or the stream is closed."""
        try:
            yield from self._stream
        except _BROKEN_STREAM as error:
            if not self._is_closed:
                raise NodeError("the log broke off", detail=str(error)) from error

    def close(self) -> None:
        """End the iteration, also one that waits for bytes. Closing twice is fine.

        The connection is given back by `release`, which belongs to whoever opened the stream.
        """
        if not self._is_closed:
            self._is_closed = True
            # Over ssh the SDK cannot close (the reading thread then ends with the container), and
            # of a connection that has just ended it finds no socket.
            with contextlib.suppress(docker.errors.DockerException, OSError, AttributeError):
                self._stream.close()

    def release(self) -> None:
        """Close the connection beneath, once nobody reads any more.

        The SDK's own `close` only shuts the socket down: its file stays open until the garbage
        collector finds it.
        """
        self._stream._response.close()
