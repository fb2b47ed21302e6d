"""Do we and `vllm bench serve` say the same of the same load?

    python -m tests.bench.load_agreement --vllm "vllm" --tokenizer FOLDER [--folder SHARED]
        [--url http://127.0.0.1:8000 --model NAME] [--repeats N]

Without `--url` both ask a server that takes one request after the other, so that waiting hangs on
nothing but when requests come: the arrivals of one seed must be the same, and latencies and goodput
with them. The two take turns, N times: what two runs of one client are apart says how far two
clients may be.
`--vllm` may be a container that shares the host's network and the folders.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.load.arrivals import Law
from sparkdeploy.bench.load.limits import parse_limits
from sparkdeploy.bench.load.measure import LoadMeasurement
from sparkdeploy.bench.load.plan import Coming, LoadPlan
from sparkdeploy.bench.load.prompts import read_prompts
from sparkdeploy.bench.measure import MeasuredServer
from sparkdeploy.bench.streams import Streams, Target
from sparkdeploy.bench.suites import Dialect, Route
from sparkdeploy.bench.watch import BenchWatch
from tests.unit.bench.fake_engine import FakeEngine, Handler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.bench.record import Cell

SERVICE_S = 0.3
CHUNK_S = 0.01
TOKENS = 24
LIMIT_MS = 600


class OneAfterTheOther(Handler):
    """Holds each request until those before it were served; then streams it slowly."""

    def _answer(self, body: dict[str, Any], prompt_tokens: int) -> Iterator[bytes]:  # type: ignore[override]
        # The first event holds no token: vLLM's client would take it for the first one.
        for data in super()._answer(body, prompt_tokens)[1:]:
            time.sleep(CHUNK_S)
            yield data


def main() -> None:
    arguments = parsed()
    folder = Path(arguments.folder or tempfile.mkdtemp())
    prompts = folder / "prompts.jsonl"
    lines = (
        json.dumps({"prompt": f"Request {number}.", "max_tokens": TOKENS})
        for number in range(arguments.requests)
    )
    prompts.write_text("\n".join(lines) + "\n")
    if arguments.url is not None:
        take_turns(arguments.url, prompts, arguments)
        return
    turn = threading.Lock()

    def serve_alone(_body: dict[str, Any]) -> None:
        with turn:
            time.sleep(SERVICE_S)

    with FakeEngine() as engine:
        engine.RequestHandlerClass = OneAfterTheOther
        engine.before = serve_alone
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        take_turns(engine.url, prompts, arguments)
        engine.shutdown()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vllm", required=True, help="The program, with what starts it.")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--folder", help="Where both can write; a new one when left out.")
    parser.add_argument("--url", help="A server there is, in place of ours.")
    parser.add_argument("--model", default="qwen", help="The served name.")
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3, help="Turns of each client.")
    return parser.parse_args()


def our_cell(url: str, prompts: Path, arguments: argparse.Namespace) -> Cell:
    route = Route.COMPLETIONS
    coming = Coming(Law.POISSON, requests=arguments.requests, ramp_s=0, seed=arguments.seed)
    limits = parse_limits(f"ttft={LIMIT_MS}ms")
    texts = read_prompts(prompts, route)
    plan = LoadPlan(coming, texts, None, (arguments.rate,), limits, route)
    with Streams(url, target=Target(route.path)) as streams, BenchWatch(None, None) as watch:
        server = MeasuredServer(streams, arguments.model, Dialect.FULL, route=route)
        result = LoadMeasurement(plan, server, watch).run(lambda _rate, _cell: None)
    return result.cells[0]


def their_report(
    url: str, prompts: Path, folder: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    command = [
        *shlex.split(arguments.vllm),
        *("bench", "serve", "--backend", "openai", "--base-url", url),
        *(
            "--model",
            arguments.model,
            "--endpoint",
            "/v1/completions",
            "--tokenizer",
            arguments.tokenizer,
        ),
        *("--dataset-name", "custom", "--dataset-path", str(prompts), "--skip-chat-template"),
        *("--custom-output-len", str(TOKENS), "--disable-shuffle"),
        *("--num-prompts", str(arguments.requests), "--request-rate", str(arguments.rate)),
        *("--seed", str(arguments.seed), "--goodput", f"ttft:{LIMIT_MS}"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95,99"),
        *(
            "--save-result",
            "--save-detailed",
            "--result-dir",
            str(folder),
            "--result-filename",
            "theirs.json",
        ),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    report: dict[str, Any] = json.loads((folder / "theirs.json").read_text())
    return report


def take_turns(url: str, prompts: Path, arguments: argparse.Namespace) -> None:
    seen = []
    for _ in range(arguments.repeats):
        ours = our_cell(url, prompts, arguments)
        theirs = their_report(url, prompts, prompts.parent, arguments)
        seen.append(figures(ours, theirs))
        print_one_by_one(ours, theirs)
    print_medians(seen)


Figures = dict[str, tuple[float, float]]
"""By name: ours, theirs."""


def figures(cell: Cell, theirs: dict[str, Any]) -> Figures:
    load, waits = cell.load, cell.latency
    assert load is not None
    assert waits.ttft_s is not None
    assert waits.end_to_end_s is not None
    return {
        "requests": (load.requests - load.failures, theirs["completed"]),
        "duration, s": (load.window_s, theirs["duration"]),
        "requests a second": (load.completed_per_s, theirs["request_throughput"]),
        f"goodput, TTFT {LIMIT_MS} ms": (load.goodput_per_s or 0.0, theirs["request_goodput"]),
        "tokens a second": (load.completion_tok_s, theirs["output_throughput"]),
        "TTFT mean, ms": (waits.ttft_s.mean * 1000, theirs["mean_ttft_ms"]),
        "TTFT p50, ms": (waits.ttft_s.p50 * 1000, theirs["p50_ttft_ms"]),
        "TTFT p95, ms": (waits.ttft_s.p95 * 1000, theirs["p95_ttft_ms"]),
        "TTFT p99, ms": (waits.ttft_s.p99 * 1000, theirs["p99_ttft_ms"]),
        "end to end p95, ms": (waits.end_to_end_s.p95 * 1000, theirs["p95_e2el_ms"]),
    }


def print_medians(seen: list[Figures]) -> None:
    """The medians of both, how far they are apart, and how far each is from itself."""
    print("| | ours | vllm bench serve | apart | ours, least to most | theirs, least to most |")
    print("|---|---|---|---|---|---|")
    for name in seen[0]:
        ours, theirs = zip(*(one[name] for one in seen), strict=True)
        one, other = statistics.median(ours), statistics.median(theirs)
        spreads = " | ".join(f"{min(its):.3f} to {max(its):.3f}" for its in (ours, theirs))
        print(f"| {name} | {one:.3f} | {other:.3f} | {one / other - 1:+.2%} | {spreads} |")


def print_one_by_one(cell: Cell, theirs: dict[str, Any]) -> None:
    """Both asked in one order: what is apart is the moment of sending, or the wait after it."""
    began_s = theirs["start_times"][0] - (cell.samples[0].sent_s - cell.samples[0].connect_s)
    sent = [
        (one.sent_s - one.connect_s) - (other - began_s)
        for one, other in zip(cell.samples, theirs["start_times"], strict=True)
    ]
    waits = [
        (one.ttft_s or 0.0) - other
        for one, other in zip(cell.samples, theirs["ttfts"], strict=True)
    ]
    for name, apart in (("sent", sent), ("TTFT", waits)):
        sizes = sorted(abs(item) * 1000 for item in apart)
        middle, most = sizes[len(sizes) // 2], sizes[-1]
        print(
            f"{name}, request by request: {middle:.1f} ms apart at the median, {most:.1f} at most"
        )


if __name__ == "__main__":
    main()
