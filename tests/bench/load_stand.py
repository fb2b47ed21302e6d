"""A server whose waiting hangs on nothing but when requests come; it says what it saw.

    python -m tests.bench.load_stand --cores 6,7        # prints its address, serves until it ends

It takes one request after the other. When a request is served is a sum of moments, and no sleep
that began late makes another one late: what a busy machine adds to one request it does not add to
those behind it. The connection stays open for the next request, as vLLM's does.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICE_S = 0.15
CHUNK_S = 0.01
PROMPT_TOKENS = 8
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: keep-alive\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Served:
    """Moments of the machine's monotonic clock, in seconds: both clients read the same one."""

    received_s: float
    """The request's last byte was read."""
    first_token_s: float
    """The first token had been given to the socket."""
    is_new_connection: bool


@dataclass(slots=True)
class Stand:
    served: list[Served] = field(default_factory=list)
    _free_s: float = 0.0
    """When the last request that came will have been served."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_new = True
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(_length(head))
                if head.startswith(b"POST"):
                    await self._answer(json.loads(body), writer, is_new_connection=is_new)
                else:
                    self._tell(head, writer)
                is_new = False
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(
        self, body: dict[str, Any], writer: asyncio.StreamWriter, *, is_new_connection: bool
    ) -> None:
        received_s = time.perf_counter()
        self._free_s = max(received_s, self._free_s) + SERVICE_S
        token_s = self._free_s
        writer.write(HEAD)
        first_s = 0.0
        for data in _events(body):
            await _wait_until(token_s)
            writer.write(_chunk(data))
            first_s = first_s or time.perf_counter()
            token_s += CHUNK_S
        writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        self.served.append(Served(received_s, first_s, is_new_connection))

    def _tell(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        """Tell, once, what was served since it was told last."""
        told: list[Served] = []
        if head.startswith(b"GET /served"):
            told, self.served = self.served, []
        data = json.dumps([asdict(item) for item in told]).encode()
        status = b"200 OK" if told else b"404 Not Found"
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)


def _events(body: dict[str, Any]) -> Iterator[bytes]:
    """One token an event, so that tokens and events are the same to both clients."""
    options = body.get("stream_options") or {}
    each = bool(options.get("continuous_usage_stats"))
    total = int(body["max_tokens"])
    for given in range(1, total + 1):
        choice: dict[str, Any] = {"index": 0, "text": "w ", "finish_reason": None}
        if body.get("return_token_ids"):
            choice["token_ids"] = [given]
        if given == total:
            choice["finish_reason"] = "length"
        content = {"choices": [choice]} | ({"usage": _usage(given)} if each else {})
        last = given == total and options.get("include_usage")
        yield _event(content) + (_event({"choices": [], "usage": _usage(total)}) if last else b"")


def _usage(given: int) -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": given}


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def _wait_until(moment_s: float) -> None:
    while (left_s := moment_s - time.perf_counter()) > 0:
        await asyncio.sleep(left_s)


async def _serve() -> None:
    stand = Stand()
    server = await asyncio.start_server(stand.talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", help="Which it may use: 6,7.")
    cores = parser.parse_args().cores
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    gc.disable()
    asyncio.run(_serve())


if __name__ == "__main__":
    main()
