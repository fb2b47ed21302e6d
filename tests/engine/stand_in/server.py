"""A small stand-in for vLLM: replays a log, then answers over HTTP. Standard library only.

Runs inside the test image; nothing of sparkdeploy is importable there.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LOGS = Path(__file__).parent / "logs"
MODELS = Path("/m/hub")
"""Where a model's folder is mounted, through which a test may speak to a running server."""


def main(argv: list[str] | None = None) -> None:
    """Live the life that the arguments describe."""
    orders = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if orders.ignore_sigterm else _stop)
    if orders.say:
        print(orders.say, file=sys.stderr, flush=True)
    ballast = _allocate(orders.allocate_mib)
    if orders.hog_after_s is not None:
        threading.Thread(target=_hog, args=(orders.hog_after_s,), daemon=True).start()
    if orders.die_after_s == 0:
        _die(orders)  # before anything else is said: the recording must not be torn
    if orders.die_after_s is not None:
        threading.Thread(target=_die, args=(orders,), daemon=True).start()
    _replay(orders.log, orders.lines_per_s, orders.pause_at, orders.wait_for)
    if orders.model_log and (log := _model_file(orders.model_log)):
        print(log.read_text(), file=sys.stderr, flush=True)
    while orders.never_healthy or (orders.wait_for and not _model_file(orders.wait_for)):
        time.sleep(0.02)
    server = _Server(orders)
    print("INFO:     Application startup complete.", file=sys.stderr, flush=True)
    server.serve_forever(0.05)
    del ballast


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", nargs="+", default=["stand-in"])
    parser.add_argument("--only-names", action="store_true", help="know no other model, as vLLM")
    parser.add_argument("--text", default=" Paris", help="what every answer says")
    parser.add_argument("--say", help="a line of the log")
    parser.add_argument("--log", help="recorded log that is replayed before the API starts")
    parser.add_argument("--model-log", help="a file in the model's folder that is said too")
    parser.add_argument("--wait-for", help="start the API when the model's folder has this file")
    parser.add_argument("--pause-at", help="say this of the log, and wait for the file already")
    parser.add_argument("--lines-per-s", type=float, default=2000.0)
    parser.add_argument("--die-after-s", type=float)
    parser.add_argument("--exit-code", type=int, default=1)
    parser.add_argument("--crash-log", help="recorded log that is written before dying")
    parser.add_argument("--never-healthy", action="store_true")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--allocate-mib", type=int, default=0)
    parser.add_argument("--hog-after-s", type=float, help="then take 1 GiB a second, up to 1.5")
    parser.add_argument("--answer-status", type=int, default=200)
    parser.add_argument("--drafted", default="", help="DRAFTS,TOKENS,ACCEPTED in its metrics")
    parser.add_argument("--load", type=float, default=0.0, help="tokens a second, as if asked for")
    parser.add_argument("--thought", default="", help="what a streamed answer thinks first")
    parser.add_argument("--pieces-per-s", type=float, default=200.0, help="of a streamed answer")
    parser.add_argument("--die-of-request", action="store_true", help="once the guard saw health")
    return parser


def _model_file(name: str) -> Path | None:
    return next(MODELS.glob(f"*/{name}"), None)


def _stop(*_: object) -> None:
    os._exit(0)


def _allocate(size_mib: int) -> bytearray:
    ballast = bytearray(size_mib << 20)
    for position in range(0, len(ballast), 4096):
        ballast[position] = 1
    return ballast


def _hog(after_s: float) -> None:
    time.sleep(after_s)
    held: list[bytes] = []
    started_s = time.monotonic()
    while len(held) < 48:
        held.append(b"x" * (32 << 20))
        time.sleep(max(started_s + len(held) / 32 - time.monotonic(), 0))
    while held:
        time.sleep(1)


def _die(orders: argparse.Namespace) -> None:
    time.sleep(orders.die_after_s)
    if orders.crash_log:
        _replay(orders.crash_log, float("inf"))
    os._exit(orders.exit_code)


def _replay(
    name: str | None, lines_per_s: float, pause_at: str | None = None, wait_for: str = ""
) -> None:
    if not name:
        return
    output = sys.stderr.buffer
    for piece in re.split(rb"(?<=[\r\n])", (LOGS / f"{name}.log").read_bytes()):
        output.write(piece)
        output.flush()
        while pause_at and pause_at.encode() in piece and not _model_file(wait_for):
            time.sleep(0.02)
        time.sleep(1 / lines_per_s)


def _sleeps_of_the_guard() -> int:
    """How often the container's first process has gone to sleep so far."""
    status = Path("/proc/1/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def _figures_under(load: float, started_s: float) -> tuple[int, str]:
    """What vLLM would count by now of users who take `load` tokens a second, in its own format.

    Two requests run; each second one ends whose first token took 0.1 to 0.25 s. Of drafts of two
    tokens both are accepted, and each gap is of 25 to 50 ms.
    """
    seconds = time.time() - started_s
    generated = int(load * seconds)
    drafts, ended = generated // 3, int(seconds)
    labels = 'engine="0",model_name="stand-in"'
    counted = {
        "num_requests_running": 2,
        "num_requests_waiting": 1,
        "kv_cache_usage_perc": 0.25,
        "prefix_cache_queries_total": 100 * ended,
        "prefix_cache_hits_total": 40 * ended,
        "num_preemptions_total": 3,
        "prompt_tokens_total": 100 * ended,
        "spec_decode_num_drafts_total": drafts,
        "spec_decode_num_draft_tokens_total": 2 * drafts,
        "spec_decode_num_accepted_tokens_total": 2 * drafts,
    }
    lines = [f"process_start_time_seconds {started_s}"]
    lines += [f"vllm:{name}{{{labels}}} {value}" for name, value in counted.items()]
    lines += [f'vllm:request_success_total{{{labels},finished_reason="stop"}} {ended}']
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{it}"}} {drafts}'
        for it in range(2)
    ]
    for name, edges, count in (
        ("time_to_first_token_seconds", {"0.1": 0, "0.25": 1, "+Inf": 1}, ended),
        ("inter_token_latency_seconds", {"0.025": 0, "0.05": 1, "+Inf": 1}, drafts),
    ):
        lines += [
            f'vllm:{name}_bucket{{{labels},le="{le}"}} {it * count}' for le, it in edges.items()
        ]
    return generated, "\n".join(lines) + "\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, orders: argparse.Namespace) -> None:
        super().__init__(("127.0.0.1", orders.port), _Handler)
        self.orders = orders
        self.generated_tokens = 0
        self.started_s = time.time()
        self.given_up = 0
        """Streamed answers whose reader went away."""
        self.guard_answers = 0


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, "")
            self._count_the_guard()
        elif self.path == "/v1/models":
            names = self.server.orders.served_model_name
            self._answer(200, {"data": [{"id": name} for name in names]})
        elif self.path == "/metrics":
            generated = self.server.generated_tokens
            figures = ""
            if self.server.orders.load:
                generated, figures = _figures_under(self.server.orders.load, self.server.started_s)
            figures += f"vllm:generation_tokens_total {generated}\n"
            figures += f"stand_in:given_up {self.server.given_up}\n"
            if self.server.orders.drafted:
                names = ("drafts", "draft_tokens", "accepted_tokens")
                counted = zip(names, self.server.orders.drafted.split(","), strict=True)
                figures += "".join(f"vllm:spec_decode_num_{it}_total {n}\n" for it, n in counted)
            self._answer(200, f"{figures}stand_in:guard_answers {self.server.guard_answers}\n")
        else:
            self._answer(404, "no such route")

    def do_POST(self) -> None:
        orders = self.server.orders
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        tokens = int(asked.get("max_tokens") or 1)
        if orders.die_of_request:
            while not self.server.guard_answers:
                time.sleep(0.02)
            os._exit(orders.exit_code)
        if orders.only_names and asked.get("model") not in orders.served_model_name:
            self._answer(404, {"error": {"message": f"no model {asked.get('model')}"}})
            return
        if orders.answer_status != 200:
            self._answer(orders.answer_status, "the stand-in was told to refuse")
            return
        if asked.get("stream"):
            self._stream(asked)
            return
        self.server.generated_tokens += tokens
        choice = {"finish_reason": "length", "text": orders.text}
        if self.path == "/v1/chat/completions":
            choice = {"finish_reason": "length", "message": {"content": orders.text}}
        usage = {"prompt_tokens": 5, "completion_tokens": tokens}
        model = orders.served_model_name[0]
        self._answer(200, {"model": model, "choices": [choice], "usage": usage})

    def _stream(self, asked: dict[str, object]) -> None:
        """Answer word by word, as vLLM does; at the end what it took."""
        orders = self.server.orders
        words = [{"reasoning": it} for it in re.findall(r"\s*\S+", orders.thought)]
        words += [{"content": it} for it in re.findall(r"\s*\S+\s*$|\s*\S+", orders.text)]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        usage = {"prompt_tokens": 5, "completion_tokens": len(words)}
        events: list[object] = [{"choices": [{"delta": delta}]} for delta in words]
        events.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        if asked.get("stream_options"):
            events.append({"choices": [], "usage": usage})
        try:
            for event in events:
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.server.generated_tokens += 1
                time.sleep(1 / orders.pieces_per_s)
            self.wfile.write(b"data: [DONE]\n\n")
        except ConnectionError:
            self.server.given_up += 1

    def _count_the_guard(self) -> None:
        """The guard, which gives no name, has read its answer when it closes the connection.

        It has taken note of it when it has slept twice more: the first sleep may have begun before.
        """
        if not self.headers.get("User-Agent"):
            with contextlib.suppress(ConnectionError):  # it leaves the rest unread
                self.rfile.read(1)
            noted = _sleeps_of_the_guard() + 2
            while _sleeps_of_the_guard() < noted:
                time.sleep(0.02)
            self.server.guard_answers += 1

    def _answer(self, status: int, content: object) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing: the log is the recording."""


if __name__ == "__main__":
    main()
