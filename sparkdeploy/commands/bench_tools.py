"""Suite `standard`: `vllm bench serve` inside the container, llama-benchy outside."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import threading
import uuid
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import shell
from sparkdeploy.bench import tools
from sparkdeploy.bench.prompts import filler
from sparkdeploy.bench.record import SuiteResult
from sparkdeploy.commands.drafting import connect
from sparkdeploy.console import console
from sparkdeploy.errors import BenchError, SparkdeployError
from sparkdeploy.plan.launch import KEY_TARGET

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.bench.record import ToolResult
    from sparkdeploy.bench.tools import Load
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.settings import Settings

SUITE = "standard"
TOOL_TIMEOUT_S = 3600.0
BOOK_WORDS = 60_000
BOOK_SEED = 1
# The shell writes its own id, which becomes vLLM's: what is interrupted here must end there too.
_RUN = 'echo $$ > "$1.pid"; shift; exec vllm bench serve "$@"'
_RUN_WITH_KEY = f'OPENAI_API_KEY="$(cat {KEY_TARGET})"; export OPENAI_API_KEY; {_RUN}'
_FETCH = 'cat "$1" && rm -f "$1" "$1.pid"'
_STOP = 'kill "$(cat "$1.pid")"; rm -f "$1" "$1.pid"'


def measure_with_tools(
    load: Load, container_id: str, settings: Settings, *, has_key: bool
) -> SuiteResult:
    """Run both tools and fold their reports in; what cannot be run here is left out with a note.

    Raises BenchError when neither could be run.
    """
    found: list[ToolResult] = []
    notes: list[str] = []
    is_complete = True
    with connect(settings) as host:
        steps = (
            (tools.VLLM_BENCH, functools.partial(_vllm_bench, host, container_id, load, has_key)),
            (
                tools.LLAMA_BENCHY,
                functools.partial(_llama_benchy, host, container_id, load, has_key),
            ),
        )
        for name, run in steps:
            try:
                with console.step(name):
                    found.append(run())
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
        name=SUITE,
        prompts=f"{load.prompt_tokens}+{load.answer_tokens}",
        rounds=load.rounds,
        warmups=1,
        is_complete=is_complete,
        tools=tuple(found),
        notes=tuple(notes),
    )


def _vllm_bench(host: DockerHost, container_id: str, load: Load, has_key: bool) -> ToolResult:
    result = f"/tmp/sparkdeploy-bench-{uuid.uuid4().hex[:8]}.json"  # noqa: S108 - the container's
    options = tools.vllm_bench_options(load, tokenizer=_model(host, container_id), result=result)
    script = _RUN_WITH_KEY if has_key else _RUN
    try:
        code, output = host.exec(container_id, ["sh", "-c", script, "sh", result, *options])
    except BaseException:
        with contextlib.suppress(SparkdeployError):
            host.exec(container_id, ["sh", "-c", _STOP, "sh", result])
        raise
    if code != 0:
        raise BenchError(f"it ended with exit code {code}: {_last_line(output)}")
    _, report = host.exec(container_id, ["sh", "-c", _FETCH, "sh", result])
    _, version = host.exec(container_id, ["vllm", "--version"])
    return tools.read_vllm_bench(
        report, version=_last_line(version), command=("vllm", "bench", "serve", *options)
    )


def _llama_benchy(host: DockerHost, container_id: str, load: Load, has_key: bool) -> ToolResult:
    if has_key:
        raise BenchError("it takes a key as an argument only, where everybody could read it")
    program = _program()
    tokenizer = _on_host(host, container_id, _model(host, container_id))
    with tempfile.TemporaryDirectory(prefix="sparkdeploy-bench-") as name:
        folder = Path(name)
        (folder / "book.txt").write_text(filler(BOOK_WORDS, seed=BOOK_SEED), encoding="utf-8")
        with _served(folder) as url:
            options = tools.llama_benchy_options(
                load,
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
    return tools.read_llama_benchy(report, command=(tools.LLAMA_BENCHY, *options))


def _program() -> tuple[str, ...]:
    if shell.which(tools.LLAMA_BENCHY) is not None:
        return (tools.LLAMA_BENCHY,)
    if shell.which("uvx") is not None:
        return ("uvx", f"{tools.LLAMA_BENCHY}@{tools.LLAMA_BENCHY_VERSION}")
    raise BenchError("it is not installed", hint=f"pipx install {tools.LLAMA_BENCHY}")


def _environment(home: Path) -> Mapping[str, str]:
    """Its cache goes with the folder; a proxy must not be asked for what stands on this machine."""
    kept = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    }
    cache = os.environ.get("UV_CACHE_DIR", str(Path("~/.cache/uv").expanduser()))
    return {**kept, "HOME": str(home), "HF_HUB_OFFLINE": "1", "UV_CACHE_DIR": cache}


def _model(host: DockerHost, container_id: str) -> str:
    """Return the model's path in the container."""
    for argument in host.inspect(container_id)["Args"]:
        if str(argument).startswith(("/m/ck/", "/m/hub/")):
            return str(argument)
    raise BenchError("the container's command names no model")


def _on_host(host: DockerHost, container_id: str, path: str) -> Path:
    """Return where a path of the container is on this machine."""
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
