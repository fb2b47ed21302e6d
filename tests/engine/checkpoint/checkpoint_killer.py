"""Interrupts builds at random points and holds what is left, and the rerun, against a whole one.

`checkpoint_killer.py FOLDER INT4 FP8 POINTS SEED`, FP8 as the worker takes it. It is a process of
its own, because it forks, which a test's process with its server threads must not. Prints JSON.
POINTS may be `every`: then a build is killed before each of its steps, one after the other.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import httpx2

from sparkdeploy.checkpoint.fp8_shard import read_shard
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.errors import CheckpointError
from tests.engine.checkpoint import checkpoint_worker

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

PARTS = ("fp8", "m", "standalone")
FAILED = 6
SCRATCH = ("staging", "retired", "parts")
"""What builders call things that are not there when they have finished."""
STEPS = frozenset(
    {"open", "fcntl.flock", "shutil.rmtree"}
    | {f"os.{call}" for call in ("rename", "remove", "mkdir", "rmdir", "link", "symlink", "chmod")}
)
"""Audit events of the interpreter that are steps of a build."""


@dataclass(frozen=True)
class Whole:
    """A build that nobody interrupted: its trees, and what it takes."""

    trees: dict[str, str]
    largest_file_bytes: int
    steps: int
    requests: int


def main(folder: Path, int4: Path, fp8: str, points: str, seed: int) -> dict[str, object]:
    """Interrupt builds, each in its own folder; AssertionError on the first flaw."""

    def build(root: Path) -> None:
        checkpoint_worker.build(root, int4, fp8)

    whole = measure(folder / "whole", build)
    interruptions = each_step(whole) if points == "every" else at_random(whole, int(points), seed)
    seen: dict[str, int] = {}
    for number, (kind, trouble) in enumerate(interruptions):
        outcome = f"{kind}, {interrupt(folder / f'point-{number}', build, trouble, whole, kind)}"
        seen[outcome] = seen.get(outcome, 0) + 1
    return {"steps": whole.steps, "outcomes": seen}


def measure(root: Path, build: Callable[[Path], None]) -> Whole:
    """Build once to know the trees, and once more to count steps and requests."""
    assert _wait(_fork(lambda: build(root))) == 0
    counts, again = root.with_name("counts.json"), root.with_name("again")
    assert _wait(_fork(lambda: _count(lambda: build(again), counts))) == 0
    shutil.rmtree(again)
    steps, calls = json.loads(counts.read_text())
    written = [path for path in root.rglob("*.safetensors") if not path.is_symlink()]
    largest = max(path.stat().st_size for path in written)
    return Whole(trees_of(root), largest, steps, calls)


def interrupt(
    root: Path,
    build: Callable[[Path], None],
    trouble: Callable[[Callable[[], None]], int],
    whole: Whole,
    kind: str,
) -> str:
    """Run a build into trouble and once more without; say how far the first one came."""
    ended = trouble(lambda: build(root)) != 0
    done = [part for part in PARTS if is_complete(root, part)]
    for part in done:
        assert tree_hash(root / part) == whole.trees[part], (root.name, kind, part)
    assert _wait(_fork(lambda: build(root))) == 0, (root.name, kind)
    assert trees_of(root) == whole.trees, (root.name, kind)
    left = [str(path) for path in root.rglob("*") if is_scratch(path)]
    assert left == [], (root.name, kind, left)
    shutil.rmtree(root)
    return f"{'interrupted' if ended else 'too late'}, {len(done)} of 3 complete"


def at_random(whole: Whole, points: int, seed: int) -> Iterator[tuple[str, Callable[..., int]]]:
    """Three kinds of trouble in turn, each somewhere in the build."""
    dice = random.Random(seed)
    for number in range(points):
        match number % 3:
            case 0:
                yield "killed at a step", at_step(dice.randrange(whole.steps))
            case 1:
                yield "disk full", with_small_disk(dice.randrange(whole.largest_file_bytes))
            case _:
                yield "network cut", with_cut_network(dice.randrange(whole.requests))


def each_step(whole: Whole) -> Iterator[tuple[str, Callable[..., int]]]:
    """Killed before each step."""
    for step in range(whole.steps):
        yield "killed at a step", at_step(step)


def is_complete(root: Path, part: str) -> bool:
    """Whether the product would take a part for finished."""
    if part == "fp8":
        return read_shard(root / "fp8") is not None
    folder = root / "m" / "ck" / "hybrid" if part == "m" else root / "standalone"
    return read_manifest(folder) is not None


def is_scratch(path: Path) -> bool:
    """Whether a builder goes on with it, or has to remove it."""
    return any(word in path.name for word in SCRATCH)


def trees_of(root: Path) -> dict[str, str]:
    """The hash of each part."""
    return {part: tree_hash(root / part) for part in PARTS}


def tree_hash(folder: Path) -> str:
    """Names, modes, links and contents of everything below a folder, but for locks and scratch."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.name.endswith(".lock") or any(is_scratch(Path(part)) for part in inside.parts):
            continue
        digest.update(f"{inside}\0{path.lstat().st_mode}\0".encode())
        if path.is_symlink():
            # Roots differ from point to point; a link to the source is the same everywhere.
            digest.update(os.fsencode(path.readlink()))
        elif path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def at_step(step: int) -> Callable[[Callable[[], None]], int]:
    """Killed right before a step, so that no two steps are so near that nothing falls between."""

    def kill(number: int) -> None:
        if number == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda build: _wait(_fork(lambda: watched(build, kill)))


def with_small_disk(limit_bytes: int) -> Callable[[Callable[[], None]], int]:
    """The kernel refuses to let any file grow over the limit, as it does on a full disk."""

    def limited(build: Callable[[], None]) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        build()

    return lambda build: _wait(_fork(lambda: limited(build)))


def with_cut_network(calls: int) -> Callable[[Callable[[], None]], int]:
    """After so many requests there is no network any more."""

    def cut(number: int) -> None:
        if number >= calls:
            raise httpx2.ConnectError("the network is gone")

    return lambda build: _wait(_fork(lambda: _with_requests(build, cut)))


def _count(build: Callable[[], None], answer: Path) -> None:
    steps: list[int] = []
    calls: list[int] = []
    _with_requests(lambda: watched(build, steps.append), calls.append)
    answer.write_text(json.dumps([len(steps), len(calls)]))


def watched(build: Callable[[], None], on_step: Callable[[int], None]) -> None:
    """Build, telling the number of each step before it is made; this process is not used again."""
    numbers = itertools.count()

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        # Reading changes nothing, and modules are imported only once.
        if event in STEPS and not (event == "open" and not _writes(arguments)):
            on_step(next(numbers))

    sys.addaudithook(hear)
    for name in ("fsync", "fdatasync", "copy_file_range"):
        setattr(os, name, _told(getattr(os, name), lambda: on_step(next(numbers))))
    build()


def _writes(arguments: tuple[object, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def _told(
    call: Callable[Parameters, Result], before: Callable[[], None]
) -> Callable[Parameters, Result]:
    def made(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        before()
        return call(*arguments, **options)

    return made


def _with_requests(build: Callable[[], None], on_request: Callable[[int], None]) -> None:
    numbers = itertools.count()
    httpx2.Client.send = _told(  # type: ignore[method-assign]
        httpx2.Client.send, lambda: on_request(next(numbers))
    )
    build()


def _fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except CheckpointError:
        code = FAILED
    except BaseException:  # noqa: BLE001 - the parent sees only the code
        traceback.print_exc()
    finally:
        os._exit(code)


def _wait(child: int) -> int:
    """The exit code; only an expected error or our own signal may end a build early."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in {0, FAILED, -signal.SIGKILL}, code
    return code


if __name__ == "__main__":
    folder, int4, fp8, points, seed = sys.argv[1:]
    answer = main(Path(folder), Path(int4), fp8, points, int(seed))
    sys.stdout.write(json.dumps(answer) + "\n")
