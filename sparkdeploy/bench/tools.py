"""How `vllm bench serve` and llama-benchy are called, and what their reports say."""

import contextlib
import functools
import json
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sparkdeploy import shell
from sparkdeploy.bench.endpoint import CHECKPOINT_MOUNT, MODEL_MOUNT, Endpoint
from sparkdeploy.bench.files import shipped
from sparkdeploy.bench.record import SuiteResult, ToolResult
from sparkdeploy.bench.suites import filler
from sparkdeploy.errors import BenchError, SparkdeployError
from sparkdeploy.node.host import DockerHost
from sparkdeploy.plan.launch import KEY_TARGET
from sparkdeploy.terminal.console import console

VLLM_BENCH = "vllm bench serve"
LLAMA_BENCHY = "llama-benchy"
LLAMA_BENCHY_VERSION = "0.4.0"
"""What `uvx` fetches where none is installed; the flags and the report are those of this one."""
PROMPT_TOKENS = 2048
ANSWER_TOKENS = 128
PROMPTS_A_ROUND = 4
TEMPLATE_TOKENS = 64
TOOL_TIMEOUT_S = 3600.0
BOOK_WORDS = 60_000
# The shell writes its own id, which becomes vLLM's: what is interrupted here must end there too.
_RUN = 'echo $$ > "$1.pid"; shift; exec vllm bench serve "$@"'
_RUN_WITH_KEY = f'OPENAI_API_KEY="$(cat {KEY_TARGET})"; export OPENAI_API_KEY; {_RUN}'
_ADD = 'printf %s "$2" >> "$1.texts"'
PIECE_CHARACTERS = 100_000
"""Of an argument, which Linux takes up to 128 KiB; the texts are ASCII."""
_FETCH = 'cat "$1" && rm -f "$1" "$1.pid" "$1.texts"'
_STOP = 'kill "$(cat "$1.pid")"; rm -f "$1" "$1.pid" "$1.texts"'


@dataclass(frozen=True, slots=True)
class Load:
    prompt_tokens: int
    answer_tokens: int
    rounds: int
    seed: int = field(default_factory=lambda: time.time_ns() % 2**31)
    """Of the texts, another one each run: else a second run would measure the prefix cache."""


def load_for(rounds: int, max_model_len: int | None) -> Load:
    """Return the leaderboards' load (2048 and 128 tokens), shorter where the model is."""
    room = (max_model_len or PROMPT_TOKENS * 2) - ANSWER_TOKENS - TEMPLATE_TOKENS
    if room < ANSWER_TOKENS:
        raise BenchError(f"suite standard does not fit into {max_model_len} tokens of context")
    return Load(min(PROMPT_TOKENS, room), ANSWER_TOKENS, rounds)


def tool_options(tool: str, **values: object) -> tuple[str, ...]:
    folder, _, file = str(values["result"]).rpartition("/")
    values |= {"folder": folder or "/", "file": file}
    return tuple(word.format(**values) for word in shipped("tools.yaml")[tool]["options"].split())


def read_report(tool: str, text: str, *, command: Sequence[str], version: str = "") -> ToolResult:
    """Return a tool's report with our names for its figures; BenchError for one without."""
    try:
        report = json.loads(text)
    except ValueError:
        report = None
    if not isinstance(report, dict):
        raise BenchError(f"{tool} wrote no readable report")
    # llama-benchy has its own under the test, with their spread.
    test = (report.get("benchmarks") or [{}])[0]
    means = {key: item.get("mean") for key, item in test.items() if isinstance(item, dict)}
    found = {**report, **means}
    figures = {
        name: float(found[key]) * scale
        for name, (key, scale) in shipped("tools.yaml")[tool]["figures"].items()
        if found.get(key) is not None
    }
    if not report.get("completed", True) or not any(it.endswith("tok_s") for it in figures):
        raise BenchError(f"{tool}: no request succeeded")
    version = version or str(report.get("version", ""))
    return ToolResult(tool, version, tuple(command), figures, report)


def measure_with_tools(host: DockerHost, served: Endpoint, load: Load) -> SuiteResult:
    """Run both tools; one that cannot be run here is left out with a note, BenchError for both."""
    found: list[ToolResult] = []
    notes: list[str] = []
    is_complete = True
    for name, measure in ((VLLM_BENCH, _standard), (LLAMA_BENCHY, _llama_benchy)):
        try:
            with console.step(name):
                found.append(measure(host, served, load))
        except KeyboardInterrupt:
            notes.append("interrupted")
            is_complete = False
            break
        except SparkdeployError as error:
            hint = f" ({error.hint})" if error.hint else ""
            notes.append(f"{name} left out: {error.message}{hint}")
    if not found and is_complete:
        raise BenchError("; ".join(notes))
    return SuiteResult(
        name="standard",
        prompts=f"{load.prompt_tokens}+{load.answer_tokens}",
        rounds=load.rounds,
        warmups=1,
        is_complete=is_complete,
        tools=tuple(found),
        notes=tuple(notes),
    )


def _standard(host: DockerHost, served: Endpoint, load: Load) -> ToolResult:
    prompts = PROMPTS_A_ROUND * load.rounds
    return vllm_bench(host, served, VLLM_BENCH, **asdict(load), prompts=prompts)


def vllm_bench(
    host: DockerHost,
    served: Endpoint,
    tool: str,
    *,
    texts: str = "",
    more: Sequence[str] = (),
    **values: object,
) -> ToolResult:
    """Run vLLM's tool with the options of `tool` in tools.yaml; `texts` is the data it asks."""
    container_id = served.container_id or ""
    result = f"/tmp/sparkdeploy-bench-{uuid.uuid4().hex[:8]}.json"  # noqa: S108 - the container's
    tokenizer = _model(host, container_id)
    options = (
        *tool_options(tool, **_server(served), **values, tokenizer=tokenizer, result=result),
        *more,
    )
    script = _RUN_WITH_KEY if served.server.api_key is not None else _RUN
    try:
        for start in range(0, len(texts), PIECE_CHARACTERS):
            piece = texts[start : start + PIECE_CHARACTERS]
            host.exec(container_id, ["sh", "-c", _ADD, "sh", result, piece])
        code, output = host.exec(container_id, ["sh", "-c", script, "sh", result, *options])
    except BaseException:
        with contextlib.suppress(SparkdeployError):
            host.exec(container_id, ["sh", "-c", _STOP, "sh", result])
        raise
    if code != 0:
        raise BenchError(f"it ended with exit code {code}: {_last_line(output)}")
    _, report = host.exec(container_id, ["sh", "-c", _FETCH, "sh", result])
    _, version = host.exec(container_id, ["vllm", "--version"])
    command = ("vllm", "bench", "serve", *options)
    return read_report(VLLM_BENCH, report, version=_last_line(version), command=command)


def _server(served: Endpoint) -> dict[str, str]:
    return {"base_url": served.server.base_url, "model": served.server.name}


def _llama_benchy(host: DockerHost, served: Endpoint, load: Load) -> ToolResult:
    if served.server.api_key is not None:
        raise BenchError("it takes a key as an argument only, where everybody could read it")
    program = _program()
    container_id = served.container_id or ""
    tokenizer = _on_host(host, container_id, _model(host, container_id))
    with tempfile.TemporaryDirectory(prefix="sparkdeploy-bench-") as name:
        folder = Path(name)
        (folder / "book.txt").write_text(filler(BOOK_WORDS, seed=load.seed), encoding="utf-8")
        with _served(folder) as url:
            options = tool_options(
                LLAMA_BENCHY,
                **asdict(load),
                **_server(served),
                tokenizer=str(tokenizer),
                book_url=f"{url}/book.txt",
                result=str(folder / "report.json"),
            )
            argv = (*program, *options)
            done = shell.run(argv, timeout_s=TOOL_TIMEOUT_S, env=_environment(folder))
        if done.exit_code != 0:
            words = _last_line(done.stderr) or _last_line(done.stdout)
            raise BenchError(f"it ended with exit code {done.exit_code}: {words}")
        report = (folder / "report.json").read_text(encoding="utf-8")
    return read_report(LLAMA_BENCHY, report, command=(LLAMA_BENCHY, *options))


def _program() -> tuple[str, ...]:
    if shell.which(LLAMA_BENCHY) is not None:
        return (LLAMA_BENCHY,)
    if shell.which("uvx") is not None:
        return ("uvx", f"{LLAMA_BENCHY}@{LLAMA_BENCHY_VERSION}")
    raise BenchError("it is not installed", hint=f"pipx install {LLAMA_BENCHY}")


def _environment(home: Path) -> Mapping[str, str]:
    """Its cache goes with the folder; a proxy must not be asked for what stands on this machine."""
    kept = {name: os.environ[name] for name in os.environ if not name.lower().endswith("_proxy")}
    cache = os.environ.get("UV_CACHE_DIR", str(Path("~/.cache/uv").expanduser()))
    return {**kept, "HOME": str(home), "HF_HUB_OFFLINE": "1", "UV_CACHE_DIR": cache}


def _model(host: DockerHost, container_id: str) -> str:
    for argument in map(str, host.inspect(container_id)["Args"]):
        if argument.startswith((CHECKPOINT_MOUNT, MODEL_MOUNT)):
            return argument
    raise BenchError("the container's command names no model")


def _on_host(host: DockerHost, container_id: str, path: str) -> Path:
    for mount in host.inspect(container_id)["Mounts"]:
        target = str(mount["Destination"])
        if path == target or path.startswith(target + "/"):
            return Path(mount["Source"]) / path.removeprefix(target).lstrip("/")
    raise BenchError(f"{path} is not mounted from this machine")


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine only: the book, which would be fetched from the network."""
    handler = functools.partial(_QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
