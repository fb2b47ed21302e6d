"""Start servers over two GPUs as `up --cluster` starts them over two machines; ask, break, compare.

`two.py TWO.json OUT_DIR SITTING`: TWO.json is what `two_plan.py` wrote, SITTING one of `SITTINGS`.
Each rank is a process with one GPU, memory, files and process numbers of its own and another host's
name for NCCL, so that the ranks meet over sockets as machines do. Beside them servers of one rank
answer the same.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import serve

PROGRAMS = Path("/tmp/stand/programs")
LOGS = Path("/tmp/logs")
START_LIMIT_S, FAULT_LIMIT_S = 470, 330
PROMPTS, TOKENS = 8, 64
FLAGS = [
    *("--served-model-name", "twin", "--max-num-batched-tokens", "2048", "--max-num-seqs", "8"),
    *("--seed", "0", "--limit-mm-per-prompt", '{"image":0,"video":0}'),
    *("--gdn-prefill-backend", "triton", "--no-enable-prefix-caching"),
    *("--gpu-memory-utilization", "0.05", "--kv-cache-memory-bytes", "1073741824"),
]
"""What differs from a Spark: small caches, so that servers share the cards, and no FlashInfer."""
LONG_FLAGS = ["--max-model-len", "131072", "--kv-cache-memory-bytes", "3221225472"]
CONTEXTS = (1_000, 64_000)
OWN_NUMBERS = ["--pid", "--fork", "--kill-child", "--mount-proc"]
OWN = (["unshare", "--mount", "--ipc", *OWN_NUMBERS, "--"], ["unshare", "--mount", "--ipc", "--"])
"""What makes a process a machine of its own, the best first; with its own numbers all that a rank
started ends with it, and `ray stop` finds that machine's Ray alone."""
OWN_FOLDERS = """\
set -e
mount -t tmpfs none /dev/shm
mkdir -p /tmp/ray
mount -t tmpfs none /tmp/ray
"$@" &
wait $!
"""
ALONE = (
    {"name": "one-base", "model": "/tmp/m/twins/wide", "flags": [], "gpu": 0},
    {"name": "one-tq", "model": "/tmp/m/twins/nervous", "gpu": 1, "long_context": True, "flags": [
        *LONG_FLAGS, *serve.MTP2_FLAGS, "--kv-cache-dtype", "turboquant_4bit_nc"]},
    {"name": "one-bf16", "model": "/tmp/m/twins/nervous", "gpu": 0, "long_context": True,
     "flags": [*LONG_FLAGS, *serve.MTP2_FLAGS]},
    {"name": "one-35b", "model": "/tmp/m/twins/narrow", "flags": ["--enforce-eager"], "gpu": 1},
)  # fmt: skip
"""Servers of one rank, to which the others' text is held."""
REFERENCES = {"v2-tq": "one-tq", "35b": "one-35b", "35b-base": "one-35b"}
"""All others say what `one-base` says."""


@dataclass(frozen=True, slots=True)
class Sitting:
    """Servers that start together, and of which of them the second rank gets which signal."""

    names: tuple[str, ...]
    faults: dict[str, signal.Signals]


SITTINGS = {
    "native": Sitting(
        ("base", "v2-mtp0", "v2", "v3", "v2-tq", "pipeline", "prebuilt", "v2-draft", "v2-mtp1",
         "one-base", "one-tq", "one-bf16"),
        {"v2-draft": signal.SIGKILL, "v2-mtp1": signal.SIGSTOP},
    ),
    "ray": Sitting(
        ("ray-v2", "ray-v2-mtp0", "ray-v3", "ray-pipeline", "v2", "v2-mtp0", "one-base",
         "35b", "35b-base", "one-35b"),
        {"ray-pipeline": signal.SIGKILL, "ray-v3": signal.SIGSTOP, "35b-base": signal.SIGSTOP},
    ),
    "ray-only": Sitting(
        ("ray-v2", "ray-pipeline", "v2", "one-base"),
        {"ray-pipeline": signal.SIGKILL, "ray-v2": signal.SIGSTOP},
    ),
}  # fmt: skip


class TwoRanks(serve.Server):
    """A server of two processes, of which the first has the API."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.port = spec, spec["port"]
        self.log, self.traces = LOGS / f"{spec['name']}-0.log", LOGS / "traces"
        self.seen = {"name": spec["name"], "argv": spec["ranks"][0]["argv"]}
        self.started = time.monotonic()
        order = (0, 1) if spec["backend"] == "ray" else (1, 0)
        started = {rank: self._start(rank) for rank in order}
        self.process, self.worker = started[0], started[1]

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*own_machine(), *self._rank_command(rank)],
            env=self._rank_environment(rank),
            stdout=(LOGS / f"{self.spec['name']}-{rank}.log").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _rank_command(self, rank: int) -> list[str]:
        given = list(self.spec["ranks"][rank]["argv"])
        if given[0].startswith("/opt/venv"):
            given[:2] = [sys.executable]  # not isolated: what is packed lies on PYTHONPATH
        if "vllm" not in given:
            return given
        # `vllm serve MODEL`, then flags, each once.
        first = given.index("vllm") + 3
        graphs = ["--enforce-eager"] if self.spec["is_eager"] else serve.GRAPH_FLAGS
        long = LONG_FLAGS if self.spec["long_context"] else []
        flags = serve._last_of_each([*given[first:], *FLAGS, *graphs, *long])
        return [*given[:first], *flags]

    def _rank_environment(self, rank: int) -> dict[str, str]:
        name = f"{self.spec['name']}-{rank}"
        own = self.spec["ranks"][rank]["env"]
        moved = {key: value.replace("/cache", f"/tmp/cache/{name}") for key, value in own.items()}
        Path(f"/tmp/cache/{name}").mkdir(parents=True, exist_ok=True)
        stand = {
            "PYTHONPATH": "/tmp/stand/smallest:/tmp/site:/tmp/packed-ray:/tmp/plugin",
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "CUDA_VISIBLE_DEVICES": str(rank),
            "NCCL_HOSTID": f"node-{rank}",
        }
        if self.spec["backend"] == "ray":
            stand["VLLM_DP_MASTER_PORT"] = str(first_ray_port(self.spec["port"]))
        return {**os.environ, **serve.ENVIRONMENT, **moved, **stand}

    def stop(self) -> None:
        for process in (self.process, self.worker):
            send(process, signal.SIGKILL)


class OneRank(serve.Server):
    """A server on one of the cards."""

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"CUDA_VISIBLE_DEVICES": str(self.spec["gpu"])}


def first_ray_port(api_port: int) -> int:
    """The port from which on a server's Ray executor looks for one where its ranks meet.

    vLLM 0.25.1 looks at 32 ports from 100 above it and takes its first, 100, where it may: machines
    of one server each share none, servers that start at once on one machine do.
    """
    return 30_000 + 32 * (api_port % 100)


def own_machine() -> list[str]:
    """Words before a command that give it what a machine has alone, as far as it is allowed."""
    for words in OWN:
        tried = subprocess.run([*words, "mount", "-t", "tmpfs", "none", "/dev/shm"], check=False)
        if not tried.returncode:
            return [*words, "sh", "-c", OWN_FOLDERS, "rank"]
    return []


def main() -> int:
    plan = json.loads(Path(sys.argv[1]).read_text())["servers"]
    out, sitting = Path(sys.argv[2]), SITTINGS[sys.argv[3]]
    out.mkdir(parents=True, exist_ok=True)
    LOGS.mkdir(exist_ok=True)
    write_programs()
    servers: list[serve.Server] = []
    try:
        servers += [TwoRanks(spec) for spec in plan if spec["name"] in sitting.names]
        alone = [spec for spec in ALONE if spec["name"] in sitting.names]
        servers += [OneRank(spec, 8500 + n, LOGS) for n, spec in enumerate(alone)]
        texts = run(servers, out)
        faults = break_some(servers, sitting.faults)
        write(out, servers, texts, faults)
    finally:
        for server in servers:
            server.stop()
        (out / "done").touch()
    return 0


def break_some(
    servers: list[serve.Server], faults: dict[str, signal.Signals]
) -> list[dict[str, Any]]:
    """All at once, while the other servers are gone."""
    victims = [
        server
        for server in servers
        if isinstance(server, TwoRanks) and is_up(server) and server.spec["name"] in faults
    ]
    for server in servers:
        if server not in victims:
            server.stop()
    with ThreadPoolExecutor(max(1, len(victims))) as pool:
        return list(pool.map(lambda one: break_worker(one, faults[one.spec["name"]]), victims))


def run(servers: list[serve.Server], out: Path) -> dict[str, list[dict[str, Any]]]:
    """Wait for `servers`, then ask them: those that are timed alone, the others at once."""
    texts: dict[str, list[dict[str, Any]]] = {}
    deadline = time.monotonic() + START_LIMIT_S
    with ThreadPoolExecutor(max(1, len(servers))) as pool:
        list(pool.map(lambda server: server.wait(deadline), servers))
    (out / "started").touch()
    up = [server for server in servers if is_up(server)]
    timed = [s for s in up if s.spec.get("timing") or s.spec.get("long_context")]
    for server in timed:
        visit(server, texts)
        write(out, servers, texts, [])
    rest = [server for server in up if server not in timed]
    with ThreadPoolExecutor(max(1, len(rest))) as pool:
        list(pool.map(lambda server: visit(server, texts), rest))
    write(out, servers, texts, [])
    (out / "asked").touch()
    return texts


def is_up(server: serve.Server) -> bool:
    return "healthy_after_s" in server.seen


def visit(server: serve.Server, texts: dict[str, list[dict[str, Any]]]) -> None:
    try:
        for at_once in (1, 4):
            name = f"{server.spec['name']}/{at_once}"
            texts[name] = server.texts(PROMPTS, at_once, TOKENS)
        server.seen["counted"] = server.counters()
        server.seen["sampled"] = server.sampled()
        if server.spec.get("timing"):
            server.seen["decode"] = server.step_ms(1)
        for context in CONTEXTS if server.spec.get("long_context") else ():
            server.seen[f"context {context}"] = server.context_steps(context)
    except (OSError, KeyError, ValueError) as error:
        server.seen["probe_error"] = repr(error)
        server.seen["log_tail"] = server.log.read_text(errors="replace")[-6000:]
    server.note_log()
    if isinstance(server, TwoRanks):
        server.seen["ways"] = [kept(server.spec["name"], rank, WAYS) for rank in (0, 1)]
        server.seen["ours"] = [kept(server.spec["name"], rank, OURS) for rank in (0, 1)]


WAYS = re.compile(
    r"Using network|via (?:NET|P2P|SHM)|world_size=|custom.all.?reduce", re.IGNORECASE
)
OURS = re.compile(r"sparkdeploy: ")


def kept(name: str, rank: int, wanted: re.Pattern[str]) -> list[str]:
    """Lines of a rank's log, each once."""
    lines = (LOGS / f"{name}-{rank}.log").read_text(errors="replace").splitlines()
    found = dict.fromkeys(re.sub(r"^.*?\] ", "", one)[:200] for one in lines if wanted.search(one))
    return list(found)[:8]


def write(
    out: Path, servers: Iterable[serve.Server], texts: dict[str, Any], faults: list[dict[str, Any]]
) -> None:
    (out / "texts.json").write_text(json.dumps(texts))
    result = {"servers": [one.seen for one in servers], "pairs": pairs(texts), "faults": faults}
    (out / "result.json").write_text(json.dumps(result, indent=1))


def pairs(texts: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Each server's text beside that of its reference, and beside its own in another batch."""
    found = {}
    for name, text in texts.items():
        server, at_once = name.split("/")
        reference = f"{REFERENCES.get(server, 'one-base')}/{at_once}"
        if reference in texts and not server.startswith("one-"):
            found[f"{reference} | {name}"] = serve._first_divergence(texts[reference], text)
        together = texts.get(f"{server}/4")
        if at_once == "1" and together:
            found[f"{name} | {server}/4"] = serve._first_divergence(text, together)
    return found


def break_worker(server: TwoRanks, how: signal.Signals) -> dict[str, Any]:
    """Send `how` to the second rank while a request runs: what the head does, and when, seconds."""
    seen: dict[str, Any] = {"server": server.spec["name"], "signal": how.name, "log": []}
    known = len(server.log.read_text(errors="replace").splitlines())
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(long_request, server)
        time.sleep(3)
        begun = time.monotonic()
        send(server.worker, how)
        spent: Callable[[], float] = lambda: round(time.monotonic() - begun, 1)  # noqa: E731
        while spent() < FAULT_LIMIT_S and "head_gone_after_s" not in seen:
            time.sleep(0.5)
            lines = server.log.read_text(errors="replace").splitlines()
            found = [line for line in lines[known:] if tells(line)]
            seen["log"] += [f"{spent()} s: {line[:260]}" for line in found[:8]]
            known = len(lines)
            if asked.done() and "request" not in seen:
                seen["request"], seen["request_after_s"] = asked.result(), spent()
            if "health_lost_after_s" not in seen and not server.is_healthy():
                seen["health_lost_after_s"] = spent()
            if server.process.poll() is not None:
                seen["head_gone_after_s"], seen["exit_code"] = spent(), server.process.returncode
        server.stop()
    seen["log"] = seen["log"][:40]
    return seen


def tells(line: str) -> bool:
    return any(word in line for word in ("ERROR", "WARN", "Error", "rror:", "NCCL WARN", "died"))


def long_request(server: serve.Server) -> str:
    try:
        server.ask(serve.PROMPTS[3], tokens=3500, logprobs=False, timeout_s=FAULT_LIMIT_S)
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}: {error.read()[:300].decode(errors='replace')}"
    except (OSError, ValueError, KeyError) as error:
        return repr(error)
    return "answered"


def send(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """To a process and all that came of it: Ray's programs are groups of their own."""
    if process.poll() is not None:
        # Its number may be another's by now; that of its group is not.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        return
    for number in family(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, how)


def family(root: int) -> list[int]:
    """Numbers of a process and its descendants, the oldest first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = entry.read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(entry.parent.name))
    found = [root]
    for number in found:
        found += children.get(number, [])
    return found


def write_programs() -> None:
    """What a container has on its PATH: vllm and ray, of the packed modules."""
    shutil.rmtree(PROGRAMS, ignore_errors=True)
    PROGRAMS.mkdir(parents=True)
    for name, module in {"vllm": "vllm.entrypoints.cli.main", "ray": "ray.scripts.scripts"}.items():
        program = PROGRAMS / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        program.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
