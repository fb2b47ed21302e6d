"""Six agents' conversations for a quarter of an hour on one server, and whether it bore them.

`soak.py run URL FOLDER --seconds 900 --pid PID` writes FOLDER/soak.jsonl, a line every ten seconds,
and FOLDER/verdict.json at the end; `soak.py judge FOLDER` judges what one that was cut short left.
Standard library only, any server with OpenAI's routes; without --pid its memory is not looked at.
"""

import argparse
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EVERY_S = 10
WARM_UP_S = 180
"""What a server allocates until then is not growth: caches fill, graphs and kernels are made."""
STALLED_S = 60
HOST_GROWTH = (0.03, 256 << 20)
GPU_GROWTH = (0.01, 128 << 20)
"""What memory may grow by after the warm-up: the larger of a share and of bytes."""
ACCEPTANCE_MOVES = 0.10
"""By how much the share of accepted drafts may differ between the halves."""
FEWEST_SAMPLES = 6

Line = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What was found wrong, and the figures it was found by."""

    faults: tuple[str, ...]
    figures: dict[str, Any]


def judge(lines: list[Line], warm_up_s: float = WARM_UP_S) -> Verdict:
    """Judge the lines of one soak. What was not seen is a figure of None, not a fault."""
    samples = [line for line in lines if line["kind"] == "sample"]
    faults, figures = [], {"samples": len(samples)}
    warm = [line for line in samples if line["at_s"] >= warm_up_s]
    if len(warm) < FEWEST_SAMPLES:
        faults.append(f"cut short: {len(warm)} samples after the warm-up of {warm_up_s} s")
    errors = [error for line in samples for error in line["errors"]]
    faults += [f"{len(errors)} errors, the first: {errors[0]}"] if errors else []
    longest = max((line["silent_s"] for line in samples), default=0.0)
    faults += [f"stalled: {longest:.0f} s without a token"] if longest > STALLED_S else []
    for name, allowed in (("host_bytes", HOST_GROWTH), ("gpu_bytes", GPU_GROWTH)):
        grown = growth([line[name] for line in warm if line[name]])
        figures[f"{name}_growth"] = grown and grown[0]
        if grown and grown[0] > max(allowed[0] * grown[1], allowed[1]):
            faults.append(f"{name} grew by {grown[0] / 2**20:.0f} MiB after the warm-up")
    halves = acceptance(warm)
    if halves and abs(halves[0] - halves[1]) > ACCEPTANCE_MOVES:
        faults.append(f"accepted drafts went from {halves[0]:.0%} to {halves[1]:.0%}")
    faults += _canary_faults(lines)
    last = samples[-1] if samples else {}
    counted = {key: last.get(key) for key in ("at_s", "requests", "cancelled", "tokens")}
    figures |= {**counted, "longest_downtime_s": longest, "acceptance_halves": halves}
    figures["prompt_tokens"] = [last.get("shortest_prompt"), last.get("longest_prompt")]
    return Verdict(tuple(faults), figures)


def growth(sizes: list[int]) -> tuple[int, int] | None:
    """By how many bytes the median of the last third is above the first's, and the first's."""
    third = len(sizes) // 3
    if not third:
        return None
    first, last = statistics.median(sizes[:third]), statistics.median(sizes[-third:])
    return int(last - first), int(first)


def acceptance(samples: list[Line]) -> tuple[float, float] | None:
    """The share of drafts accepted in each half; None where nothing was drafted."""
    middle = len(samples) // 2
    shares = []
    for half in (samples[: middle + 1], samples[middle:]):
        drafted = half[-1]["drafted"] - half[0]["drafted"] if half else 0
        if drafted <= 0:
            return None
        shares.append((half[-1]["accepted"] - half[0]["accepted"]) / drafted)
    return shares[0], shares[1]


def _canary_faults(lines: list[Line]) -> list[str]:
    texts = {line["when"]: line["texts"] for line in lines if line["kind"] == "canary"}
    if "after" not in texts:
        return ["the greedy texts were not asked again"]
    changed = [n for n, pair in enumerate(zip(texts["before"], texts["after"], strict=True))
               if pair[0] != pair[1]]  # fmt: skip
    return [f"greedy texts {changed} changed"] if changed else []


@dataclass
class Tally:
    """What the agents did so far; every change holds the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    requests: int = 0
    cancelled: int = 0
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    token_at: float = field(default_factory=time.monotonic)
    silent_s: float = 0.0
    prompts: list[int] = field(default_factory=list)

    def token(self) -> None:
        with self.lock:
            now = time.monotonic()
            self.silent_s = max(self.silent_s, now - self.token_at)
            self.token_at, self.tokens = now, self.tokens + 1

    def taken(self) -> Line:
        """The figures since the last call, or since the start where they are counters."""
        with self.lock:
            errors, self.errors = self.errors, []
            silent = max(self.silent_s, time.monotonic() - self.token_at)
            self.silent_s = 0.0
            return {
                "requests": self.requests, "cancelled": self.cancelled, "tokens": self.tokens,
                "errors": errors, "silent_s": round(silent, 2),
                "shortest_prompt": min(self.prompts, default=None),
                "longest_prompt": max(self.prompts, default=None),
            }  # fmt: skip


TOOLS = [
    {"type": "function", "function": {
        "name": name, "description": about, "parameters": {
            "type": "object", "required": ["path"], "properties": {
                "path": {"type": "string", "enum": ["night.py", "moon.py", "tests/test_night.py"]}
            }}}}
    for name, about in (
        ("read_file", "Return the lines of a file."), ("run_tests", "Run the tests of a file."),
    )
]  # fmt: skip
SYSTEM = "You mend a small program with the tools you were given, one call at a time."
CANARIES = ("Once upon a time", "The night of the ninth", "A list of rivers and stones:")
WORDS = [
    "river", "stone", "night", "slot", "telescope", "moon", "angle", "test", "file",
    "line", "planner", "target", "idle", "hour", "change", "keeps", "reads", "finds",
    "second", "first", "horizon", "degree", "season", "worker", "queue", "answer",
]  # fmt: skip
REPLY_TOKENS = 160
CANCELLED_AFTER = 24
TURN_TOKENS = 1_400
"""What one tool gives back."""


@dataclass(frozen=True)
class Target:
    """A server, its model, and the sizes of a conversation in tokens."""

    url: str
    model: str
    opening: int
    longest: int
    tokens_a_word: float = 1.0

    def words(self, tokens: int, dice: random.Random) -> str:
        return " ".join(dice.choices(WORDS, k=int(tokens / self.tokens_a_word)))

    def open(self, path: str, body: dict | None = None, timeout_s: float = 300) -> Any:
        data = None if body is None else json.dumps({"model": self.model, **body}).encode()
        request = urllib.request.Request(
            f"{self.url}{path}", data, {"Content-Type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=timeout_s)

    def calibrated(self) -> "Target":
        """The same, knowing how many tokens a word has."""
        words = " ".join(random.Random(0).choices(WORDS, k=400))
        with self.open("/v1/completions", {"prompt": words, "max_tokens": 1}) as answer:
            counted = json.load(answer)["usage"]["prompt_tokens"]
        sizes = (self.url, self.model, self.opening, self.longest)
        return Target(*sizes, tokens_a_word=counted / 400)

    def canaries(self) -> list[str]:
        bodies = [{"prompt": p, "max_tokens": 96, "temperature": 0, "seed": 0} for p in CANARIES]
        texts = []
        for body in bodies:
            with self.open("/v1/completions", body) as answer:
                texts.append(json.load(answer)["choices"][0]["text"])
        return texts

    def drafts(self) -> dict[str, float]:
        """Drafted and accepted tokens since the server started, by its own counters."""
        with self.open("/metrics", timeout_s=30) as answer:
            text = answer.read().decode()
        names = {"drafted": "num_draft_tokens", "accepted": "num_accepted_tokens"}
        return {
            key: sum(float(value) for value in re.findall(
                rf"^vllm:spec_decode_{name}_total(?:\{{[^}}]*\}})? (\S+)", text, re.M))
            for key, name in names.items()
        }  # fmt: skip


class Agent(threading.Thread):
    """One conversation after the other, each growing from the opening to the longest."""

    def __init__(self, number: int, target: Target, tally: Tally, until: float) -> None:
        super().__init__(daemon=True)
        self.target, self.tally, self.until = target, tally, until
        self.dice = random.Random(number)
        self.asked = number
        """Counts on from a number of its own, so that agents cancel at different times."""

    def run(self) -> None:
        while time.monotonic() < self.until:
            try:
                self._conversation()
            except (OSError, ValueError, KeyError) as error:
                told = error.read(300).decode() if isinstance(error, urllib.error.HTTPError) else ""
                with self.tally.lock:
                    self.tally.errors.append(f"{error!r} {told}"[:400])
                time.sleep(2)

    def _conversation(self) -> None:
        opening = self.target.words(self.target.opening, self.dice)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": opening}]
        prompt = 0
        while prompt < self.target.longest and time.monotonic() < self.until:
            self.asked += 1
            cancels, calls = self.asked % 7 == 0, self.asked % 4 == 0
            prompt, said = self._turn(messages, calls=calls, cancels=cancels)
            if cancels:
                continue
            given = self.target.words(TURN_TOKENS, self.dice)
            messages += [
                {"role": "assistant", "content": said or "."},
                {"role": "user", "content": f"The tool gave: {given}"},
            ]

    def _turn(self, messages: list[dict], *, calls: bool, cancels: bool) -> tuple[int, str]:
        body = {
            "messages": messages, "tools": TOOLS, "stream": True, "max_tokens": REPLY_TOKENS,
            "temperature": 0.7, "top_p": 0.95, "top_k": 20, "seed": self.asked,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }  # fmt: skip
        if calls:
            body["tool_choice"] = {"type": "function", "function": {"name": "read_file"}}
        prompt, said = 0, ""
        with self.target.open("/v1/chat/completions", body) as answer:
            for number, event in enumerate(_events(answer)):
                prompt = (event.get("usage") or {}).get("prompt_tokens") or prompt
                said += _text_of(event)
                self.tally.token()
                if cancels and number >= CANCELLED_AFTER:
                    break
        with self.tally.lock:
            self.tally.requests += 1
            self.tally.cancelled += cancels
            self.tally.prompts.append(prompt)
        return prompt, said


def _events(answer: Any) -> Iterator[dict]:
    """What a stream says. Raises ValueError for one that ends with an error."""
    for line in answer:
        text = line.decode().removeprefix("data: ").strip()
        if text.startswith("{"):
            event = json.loads(text)
            if "error" in event:
                raise ValueError(text[:300])
            yield event


def _text_of(event: dict) -> str:
    delta = event["choices"][0]["delta"] if event.get("choices") else {}
    called = "".join(c["function"].get("arguments") or "" for c in delta.get("tool_calls") or [])
    return (delta.get("content") or "") + called


def family_of(pid: int) -> set[int]:
    """The process and all below it; Linux."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def host_memory(pids: set[int]) -> dict[str, int | None]:
    """Memory of the processes, what they share counted once: of no file, and pages of files.

    Pages of files are told and not judged: one that another server maps as well is shared out among
    them, so that ours seem to grow when that server ends.
    """
    held: Counter[str] = Counter()
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        for kind, kib in re.findall(r"^Pss_(Anon|Shmem|File): +(\d+)", rollup, re.M):
            held["file_bytes" if kind == "File" else "host_bytes"] += 1024 * int(kib)
    return {name: held[name] or None for name in ("host_bytes", "file_bytes")}


def gpu_bytes(pids: set[int]) -> int | None:
    """GPU memory of the processes, where the driver tells it by process."""
    asked = [
        "nvidia-smi",
        "--query-compute-apps=pid,used_gpu_memory",
        "--format=csv,noheader,nounits",
    ]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = re.findall(r"^(\d+), *(\d+)", said, re.M)
    return sum(int(mib) << 20 for pid, mib in rows if int(pid) in pids) or None


def run(target: Target, folder: Path, *, agents: int, seconds: float, pid: int | None) -> Verdict:
    """Ask for `seconds`, write every line at once, and judge."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[Line] = []
    with (folder / "soak.jsonl").open("w", encoding="utf-8") as file:

        def note(line: Line) -> None:
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            file.flush()

        target = target.calibrated()
        target.canaries()
        note({"kind": "canary", "when": "before", "texts": target.canaries()})
        started, tally = time.monotonic(), Tally()
        crew = [Agent(n, target, tally, started + seconds) for n in range(agents)]
        for agent in crew:
            agent.start()
        while (spent := time.monotonic() - started) < seconds:
            time.sleep(min(EVERY_S, max(0.1, seconds - spent)))
            note(_sample(target, tally, pid, time.monotonic() - started))
        for agent in crew:
            agent.join(120)
        if any(agent.is_alive() for agent in crew):
            note({**lines[-1], "errors": ["a request did not end within 120 s of the soak's end"]})
        try:
            note({"kind": "canary", "when": "after", "texts": target.canaries()})
        except OSError as error:
            note({**lines[-1], "errors": [f"the greedy texts at the end: {error!r}"]})
    return judge(lines, min(WARM_UP_S, seconds / 4))


def _sample(target: Target, tally: Tally, pid: int | None, at_s: float) -> Line:
    pids = family_of(pid) if pid else set()
    line = {"kind": "sample", "at_s": round(at_s, 1), **tally.taken()}
    line |= {**host_memory(pids), "gpu_bytes": gpu_bytes(pids)}
    try:
        return {**line, **target.drafts()}
    except OSError as error:
        errors = [*line["errors"], f"/metrics: {error!r}"]
        return {**line, "errors": errors, "drafted": 0.0, "accepted": 0.0}


def wait_for(url: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return True
        except OSError:
            time.sleep(2)
    return False


def _write(folder: Path, verdict: Verdict) -> int:
    told = {"faults": verdict.faults, "figures": verdict.figures}
    (folder / "verdict.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    sys.stdout.write(json.dumps(told) + "\n")
    return 1 if verdict.faults else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("run", "judge"))
    parser.add_argument("where", nargs="+", metavar="URL FOLDER")
    parser.add_argument("--model", default="twin")
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--wait-s", type=float, default=0)
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--opening", type=int, default=12_000, help="tokens")
    parser.add_argument("--longest", type=int, default=21_000, help="tokens")
    parser.add_argument("--pid", type=int)
    said = parser.parse_args()
    if said.what == "judge":
        folder = Path(said.where[0])
        read = (folder / "soak.jsonl").read_text(encoding="utf-8").splitlines()
        return _write(folder, judge([json.loads(line) for line in read]))
    url, folder = said.where[0].rstrip("/"), Path(said.where[1])
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if said.wait_s and not wait_for(url, said.wait_s):
        return _write(folder, Verdict(("the server did not become healthy",), {}))
    target = Target(url, said.model, said.opening, said.longest)

    verdict = run(target, folder, agents=said.agents, seconds=said.seconds, pid=said.pid)
    return _write(folder, verdict)


if __name__ == "__main__":
    sys.exit(main())
