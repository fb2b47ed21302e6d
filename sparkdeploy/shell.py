"""The only place that starts other programs."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self, cast

from sparkdeploy.console import console
from sparkdeploy.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

END_TIMEOUT_S = 5.0
MAX_OUTPUT_BYTES = 64 << 20
"""What a program may write to us in all; one that writes more is ended."""
MAX_ERROR_BYTES = 1 << 20
"""What is shown of the errors of a program whose output is read as it comes."""
_CHUNK_BYTES = 1 << 16
AS_MODULE = ("-P", "-m", "sparkdeploy")
"""How a Python runs this program. -P: no module is taken from the folder where it starts."""


@dataclass(frozen=True, slots=True)
class Completed:
    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str


def _not_installed(program: str) -> NodeError:
    return NodeError(
        f"{program} is not installed", hint=f"install the package that brings `{program}`"
    )


def which(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


def run(
    argv: Sequence[str],
    *,
    timeout_s: float | None = None,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Completed:
    """Run a program to its end; raise NodeError when it cannot start or runs out of time."""
    exit_code, stdout, stderr = _ended(argv, stdin, timeout_s, env)
    text = stdout.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return Completed(tuple(argv), exit_code, text, stderr.decode(errors="replace"))


def run_into(
    argv: Sequence[str],
    file: IO[bytes],
    *,
    timeout_s: float,
    stdin: str,
    env: Mapping[str, str] | None = None,
) -> Completed:
    """As `run`, with the program's output byte for byte in a file; `stdout` stays empty."""
    exit_code, _, stderr = _ended(argv, stdin, timeout_s, env, file)
    return Completed(tuple(argv), exit_code, "", stderr.decode(errors="replace"))


def _ended(
    argv: Sequence[str],
    stdin: str | None,
    timeout_s: float | None,
    env: Mapping[str, str] | None,
    file: IO[bytes] | None = None,
) -> tuple[int, bytes, bytes]:
    """Return the exit code and what the program wrote; `file` takes its output instead."""
    console.detail(shlex.join(argv))
    with tempfile.TemporaryFile() as given:
        given.write((stdin or "").encode())
        given.seek(0)
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=given,
                stdout=subprocess.PIPE if file is None else file,
                stderr=subprocess.PIPE,
                env=dict(env) if env is not None else None,
            )
        except FileNotFoundError as error:
            raise _not_installed(argv[0]) from error
        with process:
            try:
                stdout, stderr = _read_all(process, argv, timeout_s)
                return process.wait(), stdout, stderr
            except BaseException:
                process.kill()
                raise


def _read_all(
    process: subprocess.Popen[bytes], argv: Sequence[str], timeout_s: float | None
) -> tuple[bytes, bytes]:
    """Read both streams to their ends; raise NodeError for too many bytes or too long a time."""
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    streams = (process.stdout, process.stderr)
    said = {stream: bytearray() for stream in streams}
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise NodeError(f"`{shlex.join(argv)}` did not end within {timeout_s:g} s")
            for key, _ in selector.select(left_s):
                stream = cast("IO[bytes]", key.fileobj)
                if not (chunk := os.read(stream.fileno(), _CHUNK_BYTES)):
                    selector.unregister(stream)
                said[stream] += chunk
            if sum(map(len, said.values())) > MAX_OUTPUT_BYTES:
                limit = f"{MAX_OUTPUT_BYTES >> 20} MiB"
                raise NodeError(f"`{shlex.join(argv)}` wrote more than {limit}, and was ended")
    _wait_until(process, deadline_s, argv, timeout_s)
    return bytes(said[process.stdout]), bytes(said[process.stderr])


def _wait_until(
    process: subprocess.Popen[bytes],
    deadline_s: float | None,
    argv: Sequence[str],
    timeout_s: float | None,
) -> None:
    """Wait for a program that has closed its streams, or never had any of ours."""
    try:
        process.wait(None if deadline_s is None else max(deadline_s - time.monotonic(), 0.01))
    except subprocess.TimeoutExpired as error:
        raise NodeError(f"`{shlex.join(argv)}` did not end within {timeout_s:g} s") from error


@contextlib.contextmanager
def output_of(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Iterator[IO[bytes]]:
    """Yield a program's output as it comes; an exception in the block ends the program.

    Raises NodeError when it cannot start, or fails by itself.
    """
    console.detail(shlex.join(argv))
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(env) if env is not None else None,
            )
        except FileNotFoundError as error:
            raise _not_installed(argv[0]) from error
        with process:
            try:
                yield cast("IO[bytes]", process.stdout)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            errors.seek(0)
            said = errors.read(MAX_ERROR_BYTES).decode(errors="replace")
            command = shlex.join(argv)
            raise NodeError(f"`{command}` failed: exit code {process.returncode}", detail=said)


def follow(argv: Sequence[str], on_text: Callable[[str], None]) -> Completed:
    """Run a program to its end, handing on its output as it comes; it is also returned."""
    with Running(argv) as program:
        said = []
        while text := program.read_some():
            said.append(text)
            on_text(text)
        return Completed(tuple(argv), program.wait(), "".join(said), program.errors())


def is_at_terminal() -> bool:
    """Say whether a person sits before all three standard streams."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def attached(
    argv: Sequence[str], *, on_interrupt: Callable[[], None], patience_s: float
) -> int | None:
    """Run a program on our own standard streams; return its exit code.

    At a terminal it hears Ctrl-C itself. Else it is spared, and `on_interrupt` says it to whom it
    concerns; None when the program has not ended `patience_s` after the last one.
    """
    console.detail(shlex.join(argv))
    timeout_s = None
    process = subprocess.Popen(list(argv), start_new_session=not is_at_terminal())
    try:
        while True:
            try:
                return process.wait(timeout_s)
            except KeyboardInterrupt:
                on_interrupt()
                timeout_s = patience_s
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def list_file(lines: Sequence[str]) -> Iterator[Path]:
    """Keep lines in a file for a program that wants them so."""
    with tempfile.NamedTemporaryFile("w", prefix="sparkdeploy-", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        yield Path(file.name)


class Running:
    """A program that goes on beside us, in a block; its standard input stays open until its end."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Start it; raise NodeError when it is not installed."""
        console.detail(shlex.join(argv))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                # Ctrl-C at the terminal is for us; we end what we started.
                start_new_session=True,
            )
        except FileNotFoundError as error:
            self._errors.close()
            raise _not_installed(argv[0]) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def read_some(self, *, timeout_s: float | None = None) -> str:
        """Return what it printed next; empty at its end, or when nothing came in time."""
        if (output := self._process.stdout) is None:
            return ""
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return ""
        return os.read(output.fileno(), 65536).decode(errors="replace")

    def read_until(self, mark: str, *, timeout_s: float) -> str | None:
        """Return what it printed up to a mark; None when it ended or took too long."""
        deadline_s = time.monotonic() + timeout_s
        said = ""
        while mark not in said:
            left_s = deadline_s - time.monotonic()
            more = self.read_some(timeout_s=left_s) if left_s > 0 else ""
            if not more:
                return None
            said += more
            if len(said) > MAX_ERROR_BYTES:
                return None
        return said

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read(MAX_ERROR_BYTES).decode(errors="replace")

    def wait(self) -> int:
        return self._process.wait()

    def end(self) -> None:
        """Close its input, then end it; ended is fine."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.terminate()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
