"""The only place that starts other programs."""

import codecs
import contextlib
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self, cast

from sparkdeploy.errors import NodeError
from sparkdeploy.terminal.console import console

END_TIMEOUT_S = 5.0
MAX_OUTPUT_BYTES = 64 << 20
"""What a program may write to us in all; one that writes more is ended."""
MAX_ERROR_BYTES = 1 << 20
"""What is kept of the errors of a program that goes on beside us."""
LONGEST_S = 24 * 3600.0
"""For a program without a limit of its own: weights of a large model over a slow line."""
_CHUNK_BYTES = 1 << 16
PROC = Path("/proc")
AS_MODULE = ("-P", "-m", "sparkdeploy")
"""How a Python runs this program. -P: no module is taken from the folder where it starts."""


@dataclass(frozen=True, slots=True)
class Completed:
    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str


class EndlessOutputError(NodeError):
    """A program wrote more than it may, and was ended."""


def which(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


def run(  # noqa: PLR0913 - what a program reads, where its output goes, and its limits
    argv: Sequence[str],
    *,
    timeout_s: float | None = None,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    into: IO[bytes] | None = None,
    max_bytes: int | None = None,
    on_text: Callable[[str], None] | None = None,
) -> Completed:
    """Run a program to its end; raise NodeError when it cannot start, writes more than `max_bytes`
    or takes longer than `timeout_s`.

    Its output goes byte for byte into a file where one is given; `stdout` stays empty then.
    `on_text` is given what comes as it comes, and Ctrl-C at the terminal is for us alone then.
    """
    output, errors = bytearray(), bytearray()
    take = output.extend if into is None else into.write
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    timeout_s = LONGEST_S if timeout_s is None else timeout_s
    deadline_s = time.monotonic() + timeout_s
    with tempfile.TemporaryFile() as given:
        given.write((stdin or "").encode())
        given.seek(0)
        process = _start(argv, stdin=given, env=env, new_session=on_text is not None)
    with _closing(process):
        try:
            for stream, chunk in _chunks(process, argv, deadline_s, max_bytes):
                if stream is process.stderr:
                    errors += chunk
                    continue
                take(chunk)
                if on_text is not None:
                    on_text(decoder.decode(chunk))
            exit_code = process.wait(max(deadline_s - time.monotonic(), 0.01))
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            _end_all(process)
            message = f"`{shlex.join(argv)}` did not end within {timeout_s:g} s"
            raise NodeError(message) from error
        except BaseException:
            _end_all(process)
            raise
    text = output.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return Completed(tuple(argv), exit_code, text, errors.decode(errors="replace"))


def _start(
    argv: Sequence[str],
    *,
    stdin: IO[bytes] | int,
    env: Mapping[str, str] | None = None,
    new_session: bool,
) -> subprocess.Popen[bytes]:
    """Start a program whose two streams are pipes to us; NodeError when it is not installed."""
    console.detail(shlex.join(argv))
    try:
        return subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env) if env is not None else None,
            start_new_session=new_session,
        )
    except FileNotFoundError as error:
        program = argv[0]
        hint = f"install the package that brings `{program}`"
        raise NodeError(f"{program} is not installed", hint=hint) from error


def _chunks(
    process: subprocess.Popen[bytes], argv: Sequence[str], deadline_s: float, max_bytes: int | None
) -> Iterator[tuple[IO[bytes], bytes]]:
    """Yield what comes of both streams until their ends; TimeoutError at the deadline."""
    left_bytes = max_bytes = MAX_OUTPUT_BYTES if max_bytes is None else max_bytes
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            if (left_s := deadline_s - time.monotonic()) <= 0:
                raise TimeoutError
            for key, _ in selector.select(left_s):
                stream = cast("IO[bytes]", key.fileobj)
                chunk = os.read(stream.fileno(), _CHUNK_BYTES)
                if not chunk:
                    selector.unregister(stream)
                    continue
                left_bytes -= len(chunk)
                if left_bytes < 0:
                    raise EndlessOutputError(
                        f"`{shlex.join(argv)}` wrote more than {max_bytes >> 20} MiB, and was ended"
                    )
                yield stream, chunk


@contextlib.contextmanager
def _closing(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Close the pipes behind the block. Popen's own block waits for ever for one that stays."""
    try:
        yield
    finally:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """End a program with all that it started."""
    others = list(descendants(process.pid))[1:] if process.poll() is None else []
    _end(process)
    for started, path in others:
        # Another program may have got its number meanwhile.
        if started and _start_of(path) == started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(path.name), signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program, and kill one that stays; one that has ended is fine.

    What the kernel does not let go, such as a program that waits for a driver, is left behind.
    """
    process.terminate()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)


def descendants(pid: int, proc: Path = PROC) -> Iterator[tuple[str, Path]]:
    """Yield a process and all that it started, the nearest first: when each began, and its folder
    in /proc."""
    waiting = deque([str(pid)])
    while waiting:
        process = proc / waiting.popleft()
        yield _start_of(process), process
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            for thread in sorted((process / "task").iterdir()):
                waiting.extend((thread / "children").read_text().split())


def _start_of(process: Path) -> str:
    try:
        # The name of a program may hold blanks and brackets.
        words = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return words[19] if len(words) > 19 else ""


def is_at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def attached(
    argv: Sequence[str], *, on_interrupt: Callable[[], None], patience_s: float
) -> int | None:
    """Run a program on our own standard streams, which nobody here reads; return its exit code.

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


class Running:
    """A program that goes on beside us, in a block; its standard input stays open until its end.

    What it writes to its error stream is read as it comes, and its beginning kept.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        # Ctrl-C at the terminal is for us; we end what we started.
        self._process = _start(argv, stdin=subprocess.PIPE, new_session=True)
        self._is_ending = False
        self._errors = bytearray()
        self._errors_reader = threading.Thread(target=self._read_errors, daemon=True)
        self._errors_reader.start()

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
        chunk = os.read(output.fileno(), _CHUNK_BYTES)
        # Its output closes a moment before it has ended: what it says of that may be on its way.
        self._is_ending = not chunk
        return chunk.decode(errors="replace")

    def read_until(self, mark: str, *, timeout_s: float) -> str | None:
        """Return what it printed up to a mark; None when it ended, wrote much or took too long."""
        deadline_s = time.monotonic() + timeout_s
        output = ""
        while mark not in output:
            left_s = deadline_s - time.monotonic()
            more = self.read_some(timeout_s=left_s) if left_s > 0 else ""
            if not more:
                return None
            output += more
            if len(output) > MAX_ERROR_BYTES:
                return None
        return output

    def errors(self) -> str:
        if self._is_ending or not self.is_alive:
            self._errors_reader.join(END_TIMEOUT_S)
        return self._errors.decode(errors="replace")

    def end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        _end(self._process)
        self._errors_reader.join(END_TIMEOUT_S)

    def _read_errors(self) -> None:
        """Keep the beginning; end a program that writes errors without an end."""
        stream, read_bytes = cast("IO[bytes]", self._process.stderr), 0
        with stream:
            while chunk := os.read(stream.fileno(), _CHUNK_BYTES):
                read_bytes += len(chunk)
                self._errors += chunk[: MAX_ERROR_BYTES - len(self._errors)]
                if read_bytes > MAX_OUTPUT_BYTES:
                    self._process.terminate()
                    return
