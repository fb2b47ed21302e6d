"""What the test hubs' handlers share: HTTP/1.1 without waits and without words."""

import contextlib
from http.server import BaseHTTPRequestHandler


class QuietHandler(BaseHTTPRequestHandler):
    """Answers a client that may turn away in the middle; what it answers is its heirs' affair."""

    protocol_version = "HTTP/1.1"
    # Headers and body leave in two writes; without this each answer waits 40 ms for an ACK.
    disable_nagle_algorithm = True
    timeout = 30

    def handle(self) -> None:
        """A client that was killed or turns away is no fault of the hub's."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""
