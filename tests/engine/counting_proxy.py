"""A proxy before a Docker Engine's socket that notes every request."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_ID = re.compile("[0-9a-f]{64}")


@dataclass
class Requests:
    """The requests so far, as `METHOD path` without the API's version and without a query."""

    noted: list[str] = field(default_factory=list)

    def count(self) -> int:
        """Count them all, but for the looks at a start that is waited for."""
        created = [n for n, it in enumerate(self.noted) if it.endswith("/start")]
        waiting = self.noted[created[-1] :] if created else []
        return len(self.noted) - sum(map(_is_look_by_id, waiting))

    def listings(self) -> int:
        """Count the lists of containers."""
        return self.noted.count("GET /containers/json")


def _is_look_by_id(request: str) -> bool:
    method, path = request.split(" ")
    *_, reference, last = path.split("/")
    return method == "GET" and last == "json" and _ID.fullmatch(reference) is not None


@contextlib.contextmanager
def counting_proxy(target: str, path: Path) -> Iterator[Requests]:
    """Serve a Docker Engine's socket at another path inside the block."""
    requests = Requests()

    class Connection(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as engine:
                engine.connect(target)
                answers = threading.Thread(target=self._answer, args=(engine,), daemon=True)
                answers.start()
                while self._pass_on(engine):
                    pass
                with contextlib.suppress(OSError):
                    engine.shutdown(socket.SHUT_WR)
                answers.join()

        def _pass_on(self, engine: socket.socket) -> bool:
            """Pass one request on; say whether there was one."""
            head = [self.rfile.readline()]
            while head[-1] not in {b"\r\n", b""}:
                head.append(self.rfile.readline())
            if head[-1] == b"":
                return False
            method, url, _ = head[0].decode().split(" ", 2)
            url = re.sub(r"^/v[\d.]+(?=/)", "", url.partition("?")[0])
            requests.noted.append(f"{method} {url}")
            length = next(
                (line for line in head if line.lower().startswith(b"content-length:")), b":0"
            )
            engine.sendall(b"".join(head) + self.rfile.read(int(length.partition(b":")[2])))
            return True

        def _answer(self, engine: socket.socket) -> None:
            with contextlib.suppress(OSError), engine.makefile("rb", buffering=0) as answers:
                shutil.copyfileobj(answers, self.wfile)
                self.connection.shutdown(socket.SHUT_WR)

    with socketserver.ThreadingUnixStreamServer(str(path), Connection) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield requests
        finally:
            server.shutdown()
