"""Measures what the gateway costs beside asking the server directly, in one run.

Run: python tests/bench/gateway_overhead.py. Clients ask a scripted server directly and through
the gateway in turns: the time to the first token of one request after another; processor time of
the gateway's process under 64 streams at once, each of 50 tokens a second; its memory over many
requests. Bars: 5 ms, one core, 10 %. Exit code 1 where one is missed.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import operator
import os
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from sparkdeploy.gateway.app import Gateway
from sparkdeploy.gateway.deployments import DeploymentLook, StackLook, Upstream
from sparkdeploy.gateway.scheduler import Sighting
from sparkdeploy.gateway.stack import ModelEntry
from tests.fakes.gateway import fit_of, stack_of

CHAT = "/v1/chat/completions"
STREAMS, TOKENS, TOKENS_PER_S = 64, 500, 50
PAIRS = 200
REQUESTS = int(os.environ.get("REQUESTS", "20000"))
TOKEN = b'data: {"choices": [{"delta": {"content": " token"}}]}\n\n'


async def answer(request: Request) -> StreamingResponse:
    body = await request.json()

    async def tokens() -> AsyncIterator[bytes]:
        begun_s = time.monotonic()
        for number in range(body["n"]):
            if body.get("pace"):
                await asyncio.sleep(max(begun_s + number / TOKENS_PER_S - time.monotonic(), 0))
            yield TOKEN
        yield b"data: [DONE]\n\n"

    return StreamingResponse(tokens(), media_type="text/event-stream")


class Running:
    """A deployment that is always there."""

    def __init__(self, port: int) -> None:
        self._look = DeploymentLook(Sighting.HEALTHY, Upstream(f"http://127.0.0.1:{port}", "a"))

    def look(self, *, with_figures: bool = False) -> StackLook:
        return StackLook({"a": self._look})

    def start(self, model: ModelEntry) -> Upstream:
        raise NotImplementedError

    def stop(self, model: ModelEntry) -> None:
        raise NotImplementedError


def serve_model(listener: socket.socket) -> None:
    app = Starlette(routes=[Route(CHAT, answer, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, http="h11", log_level="critical")).run([listener])


def serve_gateway(listener: socket.socket, port: int) -> None:
    stack = stack_of()
    Gateway(stack, fit_of(stack), Running(port)).server().run([listener])


def processor_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    words = Path(f"/proc/{pid}/statm").read_text().split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def first_token_s(client: httpx2.AsyncClient, url: str) -> float:
    body = {"model": "a", "stream": True, "n": 1}
    begun_s = time.perf_counter()
    first_s = 0.0
    async with client.stream("POST", f"{url}{CHAT}", json=body) as it:
        async for _ in it.aiter_raw():
            first_s = first_s or time.perf_counter() - begun_s
    return first_s


async def stream(client: httpx2.AsyncClient, url: str) -> int:
    body = {"model": "a", "stream": True, "n": TOKENS, "pace": True}
    async with client.stream("POST", f"{url}{CHAT}", json=body) as it:
        return sum([piece.count(b"token") async for piece in it.aiter_raw()])


async def load(client: httpx2.AsyncClient, url: str, count: int) -> None:
    async def ask_on() -> None:
        for _ in range(count // 16):
            await client.post(f"{url}{CHAT}", json={"model": "a", "stream": True, "n": 1})

    await asyncio.gather(*(ask_on() for _ in range(16)))


async def measure(direct: str, through: str, pid: int) -> int:
    limits = httpx2.Limits(max_connections=None, keepalive_expiry=30)
    async with httpx2.AsyncClient(timeout=60, trust_env=False, limits=limits) as client:
        while True:
            try:
                if (await client.get(f"{through}/health")).is_success:
                    break
            except httpx2.ConnectError:
                await asyncio.sleep(0.05)
        times: dict[str, list[float]] = {direct: [], through: []}
        for turn in range(PAIRS + 5):
            for url in (direct, through):
                taken_s = await first_token_s(client, url)
                if turn >= 5:
                    times[url].append(taken_s)
        for name, pick in (("median", statistics.median), ("best", min)):
            taken = [pick(times[it]) * 1000 for it in (direct, through)]
            print(f"first token, {name}: {taken[0]:.2f} ms directly, {taken[1]:.2f} ms through")
        later_ms = statistics.median(map(operator.sub, times[through], times[direct])) * 1000
        print(f"median of the differences: {later_ms:.2f} ms")
        begun_s, before_s = time.monotonic(), processor_s(pid)
        counts = await asyncio.gather(*(stream(client, through) for _ in range(STREAMS)))
        took_s, used_s = time.monotonic() - begun_s, processor_s(pid) - before_s
        assert set(counts) == {TOKENS}, "tokens were lost"
        cores = used_s / took_s
        print(f"{STREAMS} streams of {TOKENS_PER_S} tok/s: {cores:.2f} cores in {took_s:.1f} s")
        await load(client, through, REQUESTS // 10)
        first_mib = memory_mib(pid)
        await load(client, through, REQUESTS)
        last_mib = memory_mib(pid)
        print(f"memory: {first_mib:.1f} MiB, {last_mib:.1f} after {REQUESTS} more requests")
    is_met = later_ms <= 5 and cores < 1 and last_mib <= 1.1 * first_mib
    print("holds" if is_met else "MISSED")
    return int(not is_met)


def main() -> int:
    """Print the figures; return 0 when all bars hold."""
    listeners = [socket.create_server(("127.0.0.1", 0), backlog=256) for _ in range(2)]
    for listener in listeners:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ports = [it.getsockname()[1] for it in listeners]
    fork = multiprocessing.get_context("fork")
    model = fork.Process(target=serve_model, args=(listeners[0],), daemon=True)
    gateway = fork.Process(target=serve_gateway, args=(listeners[1], ports[0]), daemon=True)
    for process in (model, gateway):
        process.start()
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    assert gateway.pid is not None
    try:
        return asyncio.run(measure(urls[0], urls[1], gateway.pid))
    finally:
        for process in (model, gateway):
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
