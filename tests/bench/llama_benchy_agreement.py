"""Do we and llama-benchy say the same of one load?

    python tests/bench/llama_benchy_agreement.py --url http://127.0.0.1:8000 --model qwen \
        --tokenizer FOLDER [--llama-benchy PROGRAM] [--runs 5]

llama-benchy's requests pass through a proxy that notes each arrival. Its figures and ours are
then of the very same streams, so that how the server varies from run to run does not count.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import requests

from sparkdeploy.bench.answers import Arrival, Exchange
from sparkdeploy.bench.figures import measure
from sparkdeploy.bench.suites import filler
from sparkdeploy.bench.tools import LLAMA_BENCHY, Load, read_report, tool_options


class Proxy(ThreadingHTTPServer):
    """Passes requests on and keeps what was streamed back."""

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        self.upstream = upstream
        self.exchanges: list[Exchange] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class ProxyHandler(BaseHTTPRequestHandler):
    server: Proxy

    def do_GET(self) -> None:
        answer = requests.get(self.server.upstream + self.path, timeout=60)
        self._head(answer)
        self.wfile.write(answer.content)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        sent_s = time.perf_counter()
        with requests.post(
            self.server.upstream + self.path,
            data=body,
            headers={"Content-Type": "application/json"},
            stream=True,
            timeout=600,
        ) as answer:
            self._head(answer)
            arrivals = []
            for data in answer.raw.stream(65536, decode_content=False):
                arrivals.append(Arrival(time.perf_counter(), data))
                self.wfile.write(data)
        if json.loads(body).get("stream"):
            exchange = Exchange(sent_s, time.perf_counter(), tuple(arrivals))
            self.server.exchanges.append(exchange)

    def _head(self, answer: requests.Response) -> None:
        self.send_response(answer.status_code)
        self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


class QuietFiles(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


def main() -> None:
    """Run llama-benchy once through the proxy and print both figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--llama-benchy", default="llama-benchy")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "book.txt").write_text(filler(20_000, seed=1))
        files = functools.partial(QuietFiles, directory=name)
        with ThreadingHTTPServer(("127.0.0.1", 0), files) as books, Proxy(options.url) as proxy:
            for server in (books, proxy):
                threading.Thread(target=server.serve_forever, daemon=True).start()
            arguments = tool_options(
                LLAMA_BENCHY,
                **asdict(Load(options.prompt_tokens, 128, options.runs)),
                base_url=proxy.url,
                model=options.model,
                tokenizer=options.tokenizer,
                book_url=f"http://127.0.0.1:{books.server_address[1]}/book.txt",
                result=str(folder / "report.json"),
            )
            environment = {**os.environ, "HOME": name, "no_proxy": "127.0.0.1"}
            subprocess.run(
                [options.llama_benchy, *arguments], check=True, env=environment, stdout=2
            )
        theirs = read_report(LLAMA_BENCHY, (folder / "report.json").read_text(), command=())
    last = proxy.exchanges[-options.runs :]
    samples = [measure(item, prompt="x", number=1, stream=0, began_s=0.0).sample for item in last]
    ours = statistics.fmean(item.decode_tok_s or 0.0 for item in samples)
    said = theirs.figures["decode_tok_s"]
    print(f"llama-benchy {theirs.version}: {said:.3f} tok/s over {options.runs} runs")
    print(f"ours, of the same streams: {ours:.3f} tok/s ({ours / said - 1:+.2%})")
    print(f"tokens we counted: {[item.completion_tokens for item in samples]}")


if __name__ == "__main__":
    main()
