"""Do we and `vllm bench serve` say the same of the same load?

    python -m tests.bench.load_agreement [--client-cores 2,3 --server-cores 6,7]
    python -m tests.bench.load_agreement --url http://127.0.0.1:8100 --model NAME --words 400
    python -m tests.bench.load_agreement --vllm "docker run ... vllm" --folder SHARED --tokenizer F

Both clients ask in turns (A B A B) with one seed, so that what differs between the clients stands
beside what differs between turns of one client. Without `--url` they ask load_stand.py's server,
which is a process of its own. A server at `--url` is warmed first by a turn that counts nowhere,
and its own figure of the time to the first token (/metrics of vLLM) stands beside what the clients
say. vLLM's client runs in a process that imports it once; with `--vllm` that program is started
anew for each turn. A turn that would end after `--limit` seconds is not begun. Both ask for
temperature 0 and for as many tokens as there may be, whatever the model would end.

vLLM's client needs pandas beside what vLLM's server needs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.request import urlopen

from sparkdeploy.bench.load.arrivals import Law
from sparkdeploy.bench.load.limits import parse_limits
from sparkdeploy.bench.load.measure import LoadMeasurement
from sparkdeploy.bench.load.plan import Coming, LoadPlan
from sparkdeploy.bench.load.prompts import read_prompts
from sparkdeploy.bench.measure import MeasuredServer
from sparkdeploy.bench.streams import Streams, Target
from sparkdeploy.bench.suites import Dialect, Route
from sparkdeploy.bench.watch import BenchWatch
from tests.bench.load_figures import (
    Turn,
    our_turn,
    over_server,
    table,
    their_turn,
    told_waits,
)
from tests.bench.load_stand import CHUNK_S, SERVICE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Serve = Callable[[list[str]], None]

OUR_LIMIT_MS = 400
WARM_UP_REQUESTS = 20
QUIET = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
WORDS = "river stone garden window paper winter morning letter silver road table field"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vllm", help="The program with what starts it, in place of the module.")
    parser.add_argument("--tokenizer", help="A folder; one word a token when left out.")
    parser.add_argument("--folder", help="Where both can write; a new one when left out.")
    parser.add_argument("--url", help="A server there is, in place of ours.")
    parser.add_argument("--model", default="qwen", help="The served name.")
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=24, help="Of an answer.")
    parser.add_argument("--words", type=int, default=8, help="Of a prompt.")
    parser.add_argument("--repeats", type=int, default=4, help="Turns of each client.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ttft-ms",
        type=int,
        help="The limit of the goodput; 400 of our server, else half more than the warm-up's p50.",
    )
    parser.add_argument("--within", type=float, default=2.0, help="Percent; what is over is named.")
    parser.add_argument("--limit", type=float, default=190.0, help="Seconds for everything.")
    parser.add_argument("--client-cores", help="Which both clients may use: 2,3.")
    parser.add_argument("--server-cores", help="Likewise, of our own server.")
    parser.add_argument("--like-ours", action="store_true", help="vLLM's asks for token ids too.")
    parser.add_argument("--json", help="A file for everything that was seen.")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    began_s = time.monotonic()
    with ExitStack() as stack:
        folder = Path(arguments.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        if arguments.tokenizer is None:
            arguments.tokenizer = str(made_tokenizer(folder))
        serve = stack.enter_context(vllm_client(arguments))
        url = arguments.url or stack.enter_context(stand(arguments.server_cores))
        if arguments.client_cores:
            os.sched_setaffinity(0, cores_of(arguments.client_cores))
        if arguments.ttft_ms is None:
            arguments.ttft_ms = OUR_LIMIT_MS if arguments.url is None else warmed(url, arguments)
        turns = taken(url, folder, serve, arguments, began_s)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(turn) for turn in turns]))
    print(setting(arguments, turns))
    print(table(turns, within=arguments.within / 100))


def warmed(url: str, arguments: argparse.Namespace) -> int:
    """Ask some requests that count nowhere; return a limit in ms that lies among few waits.

    Where many waits are, what the clients' clocks differ by would decide who held it.
    """
    few = argparse.Namespace(**{**vars(arguments), "requests": WARM_UP_REQUESTS, "ttft_ms": 1})
    with tempfile.TemporaryDirectory() as folder:
        prompts = written_prompts(Path(folder) / "prompts-warm-up.jsonl", few)
        turn = ours(url, prompts, lambda _words: None, few)
    return math.ceil(1.5 * turn.figures["TTFT p50, ms"])


def taken(
    url: str, folder: Path, serve: Serve, arguments: argparse.Namespace, began_s: float
) -> list[Turn]:
    turns: list[Turn] = []
    longest_s = arguments.requests / arguments.rate
    for repeat in range(arguments.repeats):
        for number, take in enumerate((ours, theirs)):
            if time.monotonic() - began_s + longest_s > arguments.limit:
                return turns
            turn_began_s = time.monotonic()
            prompts = written_prompts(folder / f"prompts-{2 * repeat + number}.jsonl", arguments)
            before = told_waits(url) if arguments.url else None
            turn = take(url, prompts, serve, arguments)
            turn.figures.update(over_server(turn, before, told_waits(url) if before else None))
            turns.append(turn)
            longest_s = max(longest_s, time.monotonic() - turn_began_s)
            print(f"{turns[-1].client}: {time.monotonic() - turn_began_s:.1f} s", file=sys.stderr)
    return turns


def ours(url: str, prompts: Path, _serve: Serve, arguments: argparse.Namespace) -> Turn:
    route = Route.COMPLETIONS
    coming = Coming(Law.POISSON, requests=arguments.requests, ramp_s=0, seed=arguments.seed)
    limits = parse_limits(f"ttft={arguments.ttft_ms}ms")
    body = {"ignore_eos": True}
    texts = read_prompts(prompts, route)
    plan = LoadPlan(coming, texts, None, (arguments.rate,), limits, route, body)
    with Streams(url, target=Target(route.path)) as streams, BenchWatch(None, None) as watch:
        server = MeasuredServer(streams, arguments.model, Dialect.FULL, route=route)
        cell = LoadMeasurement(plan, server, watch).run(lambda _rate, _cell: None).cells[0]
    return our_turn(cell, coming.at(arguments.rate).moments_s, served(url, arguments))


def theirs(url: str, prompts: Path, serve: Serve, arguments: argparse.Namespace) -> Turn:
    report = prompts.with_name(f"{prompts.stem}-theirs.json")
    body: dict[str, Any] = {"temperature": 0.0}
    if arguments.like_ours:
        body["return_token_ids"] = True
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    words = ["--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions"]
    words += ["--model", arguments.model, "--tokenizer", arguments.tokenizer]
    words += ["--dataset-name", "custom", "--dataset-path", str(prompts)]
    words += ["--skip-chat-template", "--disable-shuffle", "--ignore-eos"]
    words += ["--custom-output-len", str(arguments.tokens), "--extra-body", json.dumps(body)]
    words += ["--num-prompts", str(arguments.requests), "--request-rate", str(arguments.rate)]
    words += [
        "--seed",
        str(arguments.seed),
        "--goodput",
        f"ttft:{arguments.ttft_ms}",
        "--disable-tqdm",
    ]
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99"]
    words += ["--save-result", "--save-detailed", "--result-dir", str(report.parent)]
    serve([*words, "--result-filename", report.name])
    coming = Coming(Law.POISSON, requests=arguments.requests, ramp_s=0, seed=arguments.seed)
    moments_s = coming.at(arguments.rate).moments_s
    return their_turn(json.loads(report.read_text()), moments_s, served(url, arguments))


def served(url: str, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """What our own server saw of the turn, in the order in which requests came."""
    if arguments.url is not None:
        return []
    with urlopen(f"{url}/served") as answer:
        seen: list[dict[str, float]] = json.load(answer)
    # The first request of both clients asks only whether the server answers.
    return sorted(seen, key=lambda item: item["received_s"])[-arguments.requests :]


@contextmanager
def stand(cores: str | None) -> Iterator[str]:
    words = ["--cores", cores] if cores else []
    command = [sys.executable, "-m", "tests.bench.load_stand", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextmanager
def vllm_client(arguments: argparse.Namespace) -> Iterator[Serve]:
    if arguments.vllm:
        command = [*shlex.split(arguments.vllm), "bench", "serve"]
        yield lambda words: check(command, words)
        return
    cores = ["--cores", arguments.client_cores] if arguments.client_cores else []
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(
        [sys.executable, "-m", "tests.bench.load_theirs", *cores],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        env={**os.environ, **QUIET},
    ) as process:  # fmt: skip
        words_in, answers = process.stdin, process.stdout
        assert words_in is not None
        assert answers is not None
        require(answers.readline(), "ready", log)

        def serve(words: list[str]) -> None:
            words_in.write(json.dumps(words) + "\n")
            words_in.flush()
            require(answers.readline(), "done", log)

        try:
            yield serve
        finally:
            process.terminate()


def made_tokenizer(folder: Path) -> Path:
    """Write a tokenizer of one word a token: vLLM's client wants one, if only to count prompts."""
    path = folder / "tokenizer"
    path.mkdir(exist_ok=True)
    vocabulary = {word: number for number, word in enumerate(["<unk>", "w", *WORDS.split()])}
    content: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps(content))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (path / "tokenizer_config.json").write_text(json.dumps(named))
    return path


def written_prompts(path: Path, arguments: argparse.Namespace) -> Path:
    """Write prompts that begin as no other turn's do: no prefix cache helps the later client."""
    dice = random.Random(path.name)
    lines = []
    for number in range(arguments.requests):
        words = [f"{dice.getrandbits(32):08x}", *dice.choices(WORDS.split(), k=arguments.words - 2)]
        content = {"prompt": " ".join([*words, str(number)]), "max_tokens": arguments.tokens}
        lines.append(json.dumps(content))
    path.write_text("\n".join(lines) + "\n")
    return path


def setting(arguments: argparse.Namespace, turns: list[Turn]) -> str:
    server = arguments.url or (
        f"one after the other, {SERVICE_S * 1000:g} ms each, a token every {CHUNK_S * 1000:g} ms"
    )
    counted = {turn.client: sum(item.client == turn.client for item in turns) for turn in turns}
    return (
        f"Server: {server}. {arguments.requests} requests a turn, {arguments.rate:g} a second by "
        f"Poisson's law, {arguments.tokens} tokens each; a good one waits at most "
        f"{arguments.ttft_ms} ms for its first token; turns: {counted}; "
        f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores for the clients; "
        f"load of the machine {os.getloadavg()[0]:.1f}.\n"
    )


def cores_of(text: str) -> set[int]:
    return {int(core) for core in text.split(",")}


def require(line: str, wanted: str, log: TextIO) -> None:
    if line.strip() != wanted:
        log.seek(0)
        sys.exit(f"{log.read()[-3000:]}\nvLLM's client says {line.strip()!r}")


def check(command: list[str], words: list[str]) -> None:
    subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
