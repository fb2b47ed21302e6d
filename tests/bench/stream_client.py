"""Is the client the bottleneck? 64 streams of 200 tokens/s each: lost tokens, processor, lateness.

    python tests/bench/stream_client.py [--streams 64] [--rate 200] [--seconds 10] [--httpx2]

With `--httpx2` that library's client reads the same streams in the place of ours. A server process
writes one token a chunk on schedule and stamps each chunk with the moment it was written (the
machine's monotonic clock, which the client reads too). The server's own lateness is shown apart: on
a busy machine it is the larger part.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import time
from itertools import pairwise
from multiprocessing.connection import Connection

import httpx2

from sparkdeploy.bench.answers import Arrival, Exchange, read_answer
from sparkdeploy.bench.figures import quantiles
from sparkdeploy.bench.streams import Streams
from sparkdeploy.server.streaming import DONE, event_data

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(at_s: float, total: int) -> bytes:
    """Return one HTTP chunk with one token, of vLLM's size, stamped in its id."""
    data = {
        "id": f"{at_s:.6f}",
        "object": "chat.completion.chunk",
        "created": 1763712000,
        "model": "qwen",
        "choices": [
            {
                "index": 0,
                "delta": {"content": " word"},
                "logprobs": None,
                "finish_reason": None,
                "token_ids": [1234],
            }
        ],
        "usage": {"prompt_tokens": 40, "total_tokens": 40 + total, "completion_tokens": total},
    }
    text = b"data: " + json.dumps(data).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(text), text)


async def stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, rate: float, tokens: int
) -> None:
    """Write every token when it is due."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(HEAD)
    began_s = time.perf_counter()
    for number in range(1, tokens + 1):
        left_s = began_s + number / rate - time.perf_counter()
        if left_s > 0:
            await asyncio.sleep(left_s)
        writer.write(chunk(time.perf_counter(), number))
    writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    await writer.drain()
    writer.close()


def serve(port: Connection, rate: float, tokens: int) -> None:
    """Serve until killed; tell the port first."""

    async def run() -> None:
        server = await asyncio.start_server(
            lambda reader, writer: stream(reader, writer, rate=rate, tokens=tokens),
            "127.0.0.1",
            0,
            family=socket.AF_INET,
        )
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def by_httpx2(url: str, streams: int) -> list[Exchange]:
    """Read as many answers at once, each chunk with the moment at which httpx2 hands it out."""

    async def one(client: httpx2.AsyncClient) -> Exchange:
        began_s = time.perf_counter()
        async with client.stream("POST", f"{url}/v1/chat/completions", json={}) as answer:
            pieces = [Arrival(time.perf_counter(), data) async for data in answer.aiter_raw()]
        return Exchange(began_s, time.perf_counter(), tuple(pieces))

    async def every() -> list[Exchange]:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:
            return await asyncio.gather(*(one(client) for _ in range(streams)))

    return asyncio.run(every())


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--httpx2", action="store_true")
    options = parser.parse_args()
    tokens = int(options.rate * options.seconds)
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there, options.rate, tokens), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{here.recv()}"
        with Streams(url) as client:
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            if options.httpx2:
                exchanges = by_httpx2(url, options.streams)
            else:
                exchanges = list(client.round([{}] * options.streams))
            wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
            reading_s = time.process_time()
            answers = [read_answer(exchange) for exchange in exchanges]
            reading_s = time.process_time() - reading_s
    finally:
        server.kill()
    counted = sum(answer.completion_tokens for answer in answers)
    asked = options.streams * tokens
    events = [list(event_data((it.at_s, it.data) for it in one.arrivals)) for one in exchanges]
    late = quantiles(
        at_s - float(json.loads(text)["id"]) for one in events for at_s, text in one if text != DONE
    )
    gaps = quantiles(
        after_s - before_s
        for one in events
        for (before_s, _), (after_s, text) in pairwise(one)
        if text != DONE
    )
    print(f"{options.streams} streams of {options.rate:g} tokens/s for {options.seconds:g} s")
    print(f"  tokens: {counted} of {asked}, {asked - counted} lost")
    print(
        f"  processor while measuring: {cpu_s / wall_s:.2f} cores ({cpu_s:.2f} s of {wall_s:.2f})"
    )
    print(f"  reading afterwards: {reading_s:.2f} s")
    print(f"  the server's own delay: {wall_s - options.seconds:.2f} s over all")
    if late is not None:
        print(
            f"  written to read: p50 {late.p50 * 1e3:.2f} ms, p95 {late.p95 * 1e3:.2f} ms, "
            f"p99 {late.p99 * 1e3:.2f} ms"
        )
    if gaps is not None:
        print(f"  between tokens: p50 {gaps.p50 * 1e3:.2f} ms, p99 {gaps.p99 * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
