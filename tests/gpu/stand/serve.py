"""Start several real vLLM servers on one GPU at once, ask each the same, write down everything.

`serve.py SPECS.json OUT_DIR [NAME ...]` (all without a name): a spec has a name, a model folder,
flags, whether the plugin is on PYTHONPATH, and extra environment. Servers start together, since a
start is nearly all compiling; the asking and the timing happen one server at a time while the
others are idle.
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import profiling
import sampling

COMMON_FLAGS = [
    *("--host", "127.0.0.1", "--served-model-name", "twin", "--max-model-len", "4096"),
    *("--max-num-batched-tokens", "2048", "--max-num-seqs", "8", "--seed", "0"),
    *("--limit-mm-per-prompt", '{"image":0,"video":0}', "--gdn-prefill-backend", "triton"),
    "--no-enable-prefix-caching",
]
FIXED_CACHE_FLAGS = [*("--gpu-memory-utilization", "0.05", "--kv-cache-memory-bytes", "2147483648")]
"""Servers that share a card; one that has it alone measures what is left for its cache."""
TRACED_TOKENS = (8, 40)
GRAPH_FLAGS = ["--compilation-config", '{"cudagraph_capture_sizes":[1,2,3,4,6,8,12,24]}']
MTP2_FLAGS = ["--speculative-config", '{"method":"mtp","num_speculative_tokens":2}']
ENVIRONMENT = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "4",
    "OMP_NUM_THREADS": "2",
}
CONTEXT_TOKENS = 200
REPEATS = 3
LONG_PROMPTS = (3_000, 9_000, 20_000, 33_333)
LONG_REPLY_TOKENS = 96
SAMPLED = [
    {"temperature": 0.8, "seed": 1},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 20},
    {"temperature": 1.2, "repetition_penalty": 1.1, "presence_penalty": 0.5},
    {"temperature": 0.7, "n": 4, "logprobs": 2},
] * 3
KEPT_LINES = re.compile(
    r"sparkdeploy|[Ss]elected |[Bb]ackend|GPU KV cache size|Available KV cache|Maximum conc"
    r"|Graph captur|[Cc]udagraph|CUDAGraphMode|Model loading took|init engine|torch.compile took"
    r"|Sharing target|TurboQuant|TQ |Marlin|MARLIN|Unknown quant|Overriding"
)
PROMPTS = [
    " ".join(words)
    for words in (
        [
            f"{'abcdefghijklmnopqrst'[n]}{m} river stone {m * n % 17} and the"
            for m in range(2 + n % 9)
        ]
        for n in range(20)
    )
]


class Server:
    """One vLLM process and what it was seen to do."""

    def __init__(self, spec: dict, port: int, folder: Path) -> None:
        self.spec, self.port = spec, port
        self.log = folder / f"{spec['name']}.log"
        self.traces = folder / "traces" / spec["name"]
        self.seen: dict = {"name": spec["name"], "flags": spec["flags"], "model": spec["model"]}
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            self._command(), env=self._environment(), stdout=self.log.open("wb"),
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def _command(self) -> list[str]:
        graphs = [] if "--enforce-eager" in self.spec["flags"] else GRAPH_FLAGS
        module = ["-m", "vllm.entrypoints.openai.api_server"]
        model = ["--model", self.spec["model"], "--port", str(self.port)]
        cache = [] if self.spec.get("alone") else FIXED_CACHE_FLAGS
        traced = profiling.flags(self.traces) if self.spec.get("timing") else []
        own = [*cache, *graphs, *traced, *self.spec["flags"]]
        return [sys.executable, *module, *model, *_last_of_each([*COMMON_FLAGS, *own])]

    def _environment(self) -> dict[str, str]:
        site = os.environ.get("SITE", "/tmp/site")
        paths = ["/tmp/stand/smallest", site, self.spec.get("plugin", "/tmp/plugin")]
        extra = {"PYTHONPATH": ":".join(paths), **ENVIRONMENT, **self.spec.get("env", {})}
        return {**os.environ, **extra}

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/health", timeout=2
            ) as answer:
                return answer.status == 200
        except OSError:
            return False

    def wait(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.seen["exit_code"] = self.process.returncode
                break
            if self.is_healthy():
                self.seen["healthy_after_s"] = round(time.monotonic() - self.started, 1)
                return
            time.sleep(1)
        self.seen["log_tail"] = self.log.read_text(errors="replace")[-6000:]

    def ask(
        self, prompt: str | list[int], *, tokens: int, logprobs: bool, timeout_s: float = 120
    ) -> dict:
        body = {
            "model": "twin", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        if logprobs:
            body |= {"logprobs": 2, "return_tokens_as_token_ids": True}
        with self._completion(body, timeout_s) as answer:
            return json.load(answer)["choices"][0]

    def _completion(self, body: dict, timeout_s: float = 120) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        return urllib.request.urlopen(request, timeout=timeout_s)

    def texts(self, count: int, at_once: int, tokens: int) -> list[dict]:
        """Token ids and top-2 gaps of the first `count` prompts, `at_once` at a time."""
        with ThreadPoolExecutor(at_once) as pool:
            choices = list(
                pool.map(lambda p: self.ask(p, tokens=tokens, logprobs=True), PROMPTS[:count])
            )
        return [{"ids": c["token_ids"], "gaps": _gaps(c), "text": c["text"][:80]} for c in choices]

    def long_texts(self) -> list[dict]:
        """Replies to prompts of several pages, one at a time; asked twice, they may be cached."""
        choices = [
            self.ask(_long_prompt(length), tokens=LONG_REPLY_TOKENS, logprobs=True)
            for length in LONG_PROMPTS
        ]
        return [{"ids": c["token_ids"], "gaps": _gaps(c), "text": c["text"][:80]} for c in choices]

    def context_steps(self, context: int) -> dict[str, float]:
        """What REPEATS requests of `context_step` took: the median of each figure."""
        seen = [self.context_step(context) for _ in range(REPEATS)]
        return {figure: statistics.median(one[figure] for one in seen) for figure in seen[0]}

    def context_step(self, context: int) -> dict[str, float]:
        """A request of `context` tokens and 200 of reply: milliseconds a step and a token.

        A step sends one event, however many tokens it accepts. The median step is what the host's
        pauses do not reach.
        """
        prompt = _long_prompt(context)
        body = {
            "model": "twin", "prompt": prompt, "max_tokens": CONTEXT_TOKENS, "temperature": 0,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        with self._completion(body) as answer:
            at = [time.perf_counter() for line in answer if line.startswith(b"data: {")]
        spent_ms = 1e3 * (at[-1] - at[0])
        return {
            "step_ms": round(spent_ms / (len(at) - 1), 3),
            "median_step_ms": round(1e3 * statistics.median(b - a for a, b in pairwise(at)), 3),
            "token_ms": round(spent_ms / (CONTEXT_TOKENS - 1), 3),
            "steps": len(at) - 1,
        }

    def sampled(self) -> list[str]:
        """What becomes of requests that sample, all at once: "ok" or the error."""

        def ask(wanted: dict) -> str:
            body = {"model": "twin", "prompt": PROMPTS[2], "max_tokens": 48, **wanted}
            try:
                with self._completion(body, 60) as answer:
                    return "ok" if json.load(answer)["choices"] else "no choice"
            except OSError as error:
                return repr(error)

        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(ask, SAMPLED))

    def counters(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        counted = r"^vllm:(?:spec_decode_num_)?(\w*draft\w*|\w*accepted\w*|prefix_cache\w+)_total"
        found = re.findall(counted + r"\{[^}]*\} (\S+)", text, re.M)
        return {name: float(value) for name, value in found}

    def step_ms(self, at_once: int) -> dict[str, float]:
        """Decode time: the best long reply of three less the best short one."""
        short, long, prompt = 32, 288, PROMPTS[3]
        runs = {
            tokens: [self._timed(prompt, at_once, tokens) for _ in range(3)]
            for tokens in (short, long)
        }
        seconds = min(runs[long])[0] - min(runs[short])[0]
        steps = (min(runs[long])[1] - min(runs[short])[1]) / at_once or long - short
        return {
            "token_ms": round(1e3 * seconds / (long - short), 4),
            "step_ms": round(1e3 * seconds / steps, 4),
            "tokens_a_step": round((long - short) / steps, 3),
        }

    def _timed(self, prompt: str, at_once: int, tokens: int) -> tuple[float, float]:
        before, start = self.counters().get("drafts", 0.0), time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            asked = [
                pool.submit(self.ask, prompt, tokens=tokens, logprobs=False) for _ in range(at_once)
            ]
            for answer in asked:
                answer.result()
        seconds = time.perf_counter() - start
        return seconds, self.counters().get("drafts", 0.0) - before

    def gpu_step(self) -> dict:
        """What a decode step of one request spends on the GPU, by kind of kernel."""
        seen = [self._traced(tokens) for tokens in TRACED_TOKENS]
        (short, short_drafts), (long, long_drafts) = seen
        steps = (long_drafts - short_drafts) or TRACED_TOKENS[1] - TRACED_TOKENS[0]
        return {"steps": steps, **profiling.step_by_kind(short, long, steps)}

    def _traced(self, tokens: int) -> tuple[tuple, float]:
        known = set(self.traces.rglob("*"))
        before = self.counters().get("drafts", 0.0)
        self._post("start_profile")
        context = self.spec.get("traced_context")
        self.ask(_long_prompt(context) if context else PROMPTS[3], tokens=tokens, logprobs=False)
        drafts = self.counters().get("drafts", 0.0) - before
        self._post("stop_profile")
        fresh = [path for path in self.traces.rglob("*.json*") if path not in known]
        return max(map(profiling.kernels, fresh), key=lambda seen: seen[0].total()), drafts

    def prompt_step(self, length: int) -> dict:
        """Seconds to the first token of a long prompt, and what they are spent on, by kernel."""
        started = time.perf_counter()
        self.ask(_long_prompt(length), tokens=1, logprobs=False)
        first_token_s = time.perf_counter() - started
        known = set(self.traces.rglob("*"))
        self._post("start_profile")
        self.ask(_long_prompt(length), tokens=1, logprobs=False)
        self._post("stop_profile")
        fresh = [path for path in self.traces.rglob("*.json*") if path not in known]
        spent = max((profiling.kernels(it)[0] for it in fresh), key=Counter.total)
        most = {name[:140]: round(us / 1e3, 1) for name, us in spent.most_common(14)}
        return {"first_token_s": round(first_token_s, 2), "gpu_ms": round(spent.total() / 1e3, 1),
                "kernels_ms": most}  # fmt: skip

    def _post(self, path: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", b"")
        with urllib.request.urlopen(request, timeout=180):
            return

    def stop(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def note_log(self) -> None:
        lines = self.log.read_text(errors="replace").splitlines()
        kept = dict.fromkeys(
            re.sub(r"^.*?\] ", "", line)[:300] for line in lines if KEPT_LINES.search(line)
        )
        self.seen["lines"] = list(kept)[:60]


def _long_prompt(length: int) -> list[int]:
    """Token ids, the same 500 again and again."""
    return [(7 * n * n + n) % 500 + 5 for n in range(length)]


def _last_of_each(words: list[str]) -> list[str]:
    """Flags and their values, each flag once, as it was given last."""
    flags: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            flags[word] = []
            flag = word
        else:
            flags[flag].append(word)
    return [word for flag, values in flags.items() for word in (flag, *values)]


def _gaps(choice: dict) -> list[float]:
    gaps = []
    for position in choice["logprobs"]["top_logprobs"]:
        best = sorted(position.values(), reverse=True)
        gaps.append(round(best[0] - best[1], 4) if len(best) > 1 else 0.0)
    return gaps


def _first_divergence(left: list[dict], right: list[dict]) -> dict:
    """Where texts part, and how close the two best tokens of `left` were there."""
    at, gaps, noise = [], [], []
    for a, b in zip(left, right, strict=True):
        differing = [n for n, (x, y) in enumerate(zip(a["ids"], b["ids"], strict=False)) if x != y]
        common = differing[0] if differing else len(a["ids"])
        noise += [abs(x - y) for x, y in zip(a["gaps"][:common], b["gaps"][:common], strict=True)]
        if differing:
            at.append(differing[0])
            gaps.append(a["gaps"][differing[0]])
    return {"prompts": len(left), "diverged": len(at), "first_at": sorted(at),
            "gaps": sorted(gaps), "gap_noise": _quantiles(noise), "typical_gaps": _quantiles(
                [gap for text in left for gap in text["gaps"]])}  # fmt: skip


def _quantiles(sizes: list[float]) -> dict[str, float]:
    ordered = sorted(sizes) or [0.0]
    return {str(q): round(ordered[int(q * (len(ordered) - 1))], 4) for q in (0.5, 0.95, 0.99, 1)}


def main() -> int:
    """Run the specs; RESULT.json in the output folder, a summary on stdout."""
    plan = _plan(Path(sys.argv[1]), sys.argv[3:])
    out = Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    logs = Path(os.environ.get("LOGS", "/tmp/logs"))
    logs.mkdir(exist_ok=True)
    _await(plan.get("starts_after"))
    texts: dict[str, list[dict]] = {}
    alone = [spec for spec in plan["servers"] if spec.get("alone")]
    first_port = int(os.environ.get("PORT", plan.get("first_port", 8100)))
    servers = [
        Server(spec, first_port + number, logs)
        for number, spec in enumerate(plan["servers"])
        if not spec.get("alone")
    ]
    deadline = time.monotonic() + plan["start_limit_s"]
    with ThreadPoolExecutor(max(1, len(servers))) as pool:
        list(pool.map(lambda server: server.wait(deadline), servers))
    (out / "started").touch()
    _await(plan.get("asks_after"))
    # Only timing needs the card to itself.
    timed = [s for s in servers if s.spec.get("timing") or s.spec.get("contexts")]
    for server in timed:
        _visit(server, plan, texts)
        _write_result(out, servers, {})
        (out / "texts.json").write_text(json.dumps(texts))
    rest = [server for server in servers if server not in timed]
    with ThreadPoolExecutor(max(1, len(rest))) as pool:
        list(pool.map(lambda server: _visit(server, plan, texts), rest))
    pairs = {
        f"{a} | {b}": _first_divergence(texts[a], texts[b])
        for a, b in plan["pairs"] if a in texts and b in texts
    }  # fmt: skip
    (out / "texts.json").write_text(json.dumps(texts))
    _write_result(out, servers, pairs)
    (out / "asked").touch()
    _await(plan.get("stops_after"))
    for server in servers:
        server.stop()
    for number, spec in enumerate(alone):
        servers.append(_start_alone(spec, first_port + 50 + number, logs))
        _write_result(out, servers, pairs)
    for server in servers:
        short = {k: v for k, v in server.seen.items() if k not in ("flags", "lines", "log_tail")}
        short["gpu_step"] = server.seen.get("gpu_step", {}).get("kinds_us")
        sys.stdout.write(json.dumps(short) + "\n")
        if "log_tail" in server.seen:
            sys.stdout.write(server.seen["log_tail"][-1800:] + "\n")
    for pair, found in pairs.items():
        sys.stdout.write(f"{pair}: {json.dumps(found)}\n")
    (out / "done").touch()
    return 0


def _plan(path: Path, names: list[str]) -> dict:
    plan = json.loads(path.read_text())
    defaults = {"tokens": plan.get("tokens"), "prompts": plan.get("prompts")}
    wanted = [it for it in plan["servers"] if not names or it["name"] in names]
    return {**plan, "servers": [{**defaults, **spec} for spec in wanted]}


def _write_result(out: Path, servers: list[Server], pairs: dict[str, dict]) -> None:
    result = {"servers": [server.seen for server in servers], "pairs": pairs}
    (out / "result.json").write_text(json.dumps(result, indent=1))


def _await(path: str | None) -> None:
    """Wait until another plan on the same card has come so far, or seems to hang."""
    deadline = time.monotonic() + 400
    while path is not None and not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(1)


def _start_alone(spec: dict, port: int, logs: Path) -> Server:
    """Start a server that has the card to itself, note what it says of its memory, stop it."""
    server = Server(spec, port, logs)
    server.wait(time.monotonic() + 150)
    server.note_log()
    server.stop()
    time.sleep(3)
    return server


def _visit(server: Server, plan: dict, texts: dict[str, list[dict]]) -> None:
    if "healthy_after_s" in server.seen:
        try:
            _probe(server, plan, texts)
        except (OSError, KeyError, ValueError) as error:
            server.seen["probe_error"] = repr(error)
            server.seen["log_tail"] = server.log.read_text(errors="replace")[-6000:]
    server.note_log()


def _note_gpu_step(server: Server) -> None:
    try:
        server.seen["gpu_step"] = server.gpu_step()
    except (OSError, KeyError, ValueError) as error:
        server.seen["gpu_step_error"] = repr(error)


def _probe(server: Server, plan: dict, texts: dict[str, list[dict]]) -> None:
    name, tokens, prompts = (server.spec[key] for key in ("name", "tokens", "prompts"))
    for at_once in (1, 4):
        texts[f"{name}/{at_once}"] = server.texts(prompts, at_once, tokens)
    if server.spec.get("long"):
        for turn in ("long", "long again"):
            texts[f"{name}/{turn}"] = server.long_texts()
    server.seen["counted"] = server.counters()
    if server.spec.get("sampled"):
        server.seen["sampled"] = server.sampled()
    if server.spec.get("sampling"):
        server.seen["sampling"] = sampling.seen(f"http://127.0.0.1:{server.port}")
    for context in server.spec.get("contexts", []):
        server.seen[f"context {context}"] = server.context_steps(context)
    if length := server.spec.get("traced_prompt"):
        server.seen[f"prompt of {length}"] = server.prompt_step(length)
    if timing := server.spec.get("timing"):
        _note_gpu_step(server)
        if timing != "gpu":
            server.seen["decode"] = {f"at once {n}": server.step_ms(n) for n in (1, 4)}
    server.seen["sample"] = texts[f"{name}/1"][0]["text"]


if __name__ == "__main__":
    sys.exit(main())
