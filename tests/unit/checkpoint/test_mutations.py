"""A checkpoint that somebody broke in any way: refused in a moment, or read; nothing else."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.checkpoint.contents import model_sizes, read_config
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.checkpoint.fp8_shard import Fp8Shard, Order, fetch_shard
from sparkdeploy.checkpoint.manifest import MANIFEST_FILE, write_manifest
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.ranges import FolderRanges
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.checkpoint.verify import verify_bytes, verify_headers
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.plan.models import locate_model
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import load_settings
from tests.examples import examples
from tests.fakes.checkpoints import facts_in, ignore, standalone
from tests.fakes.odd_json import Changes, changed, oddities

# Time is a matter of this process alone; each run of a property stops itself.
pytestmark = pytest.mark.outside

LIMIT_S = 10.0
LIMIT_BYTES = 500 << 20
STANDALONE_EVERY = 10
SHARD = "model-00001-of-00002.safetensors"
HASHED_ONLY = ("generation_config.json", "tokenizer_config.json", "tokenizer.json")
JSON_FILES = ("model.safetensors.index.json", "config.json", MANIFEST_FILE, SHARD, *HASHED_ONLY)


class TooLongError(BaseException):
    """Not an Exception, so that nobody takes it for one of the work's own."""


@dataclass(frozen=True)
class Base:
    """A twin with a manifest, FP8 tensors for it, and what else the works need."""

    folder: Path
    shard: Fp8Shard
    recipe: Recipe


@pytest.fixture(scope="module")
def base(small_twin: Path, fp8_twin: Path, tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("mutations") / "twin"
    _link_tree(small_twin, folder)
    stated = {"fingerprint": "f", "conversion": {}}
    counts = {"fp8_layer_count": 0, "mtp_tensor_count": 23}
    write_manifest(folder, open_folder(folder), {}, {**stated, **counts})
    order = Order(model_sizes(read_config(folder)), "lab", model=folder)
    store = tmp_path_factory.mktemp("store") / "shard"
    shard = fetch_shard(FolderRanges(fp8_twin), order, store, ignore)
    return Base(folder, shard, resolve(Request("hybrid"), load_settings()).recipe)


def _link_tree(source: Path, target: Path) -> None:
    """Second names, which cost nothing; whoever breaks a file puts a new one in its place."""
    target.mkdir()
    for file in source.iterdir():
        os.link(file, target / file.name)


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Let this process have LIMIT_BYTES more than it has, and raise TooLongError after LIMIT_S."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooLongError

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most_bytes = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    here_bytes = pages * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (here_bytes + LIMIT_BYTES, most_bytes[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, most_bytes)
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def check(work: Callable[[], object]) -> bool:
    """Do it, within time and memory; say whether it was refused, in words and with exit code 6."""
    try:
        with limits():
            work()
    except SparkdeployError as error:
        refusal = error
    else:
        return False
    assert refusal.exit_code == 6
    for text in (refusal.message, refusal.hint or "", *(refusal.detail or "").split("\n")):
        assert text.isprintable()
        assert len(text) < 20_000
    return True


def check_everything(base: Base, folder: Path, *, is_standalone: bool) -> None:
    """Every reader of a model folder."""
    place = folder.parent
    own = base.recipe.model.model_copy(update={"path": str(folder)})
    here = base.recipe.model_copy(update={"model": own})
    conversion = Conversion(fp8_mode="online", lm_head="int8", mtp="required")
    unsound = check(lambda: verify_headers(folder))
    # What its headers are refused for is not read byte for byte.
    assert check(lambda: verify_bytes(folder, {}, ignore)) or not unsound
    check(lambda: locate_model(here, load_settings()))
    check(lambda: facts_in("lab/twin", FolderRanges(folder)))
    check(lambda: build_overlay(open_folder(folder), conversion, place / "m" / "ck" / "v2"))
    if is_standalone:
        out = place / "out"
        check(lambda: standalone(open_folder(folder), base.shard, out))
        check(lambda: verify_bytes(out, {}, ignore))


@contextlib.contextmanager
def broken(base: Base) -> Iterator[Path]:
    """Yield a twin to break, in a place of its own."""
    with tempfile.TemporaryDirectory(dir=base.folder.parent) as made:
        folder = Path(made) / "twin"
        _link_tree(base.folder, folder)
        yield folder


def split(path: Path) -> tuple[Any, bytes]:
    """The JSON of a file, and the data behind a header."""
    content, data = path.read_bytes(), b""
    if path.suffix == ".safetensors":
        length = int.from_bytes(content[:8], "little")
        content, data = content[8 : 8 + length], content[8 + length :]
    return json.loads(content), data


def put_together(path: Path, text: bytes, data: bytes) -> None:
    length = len(text).to_bytes(8, "little") if path.suffix == ".safetensors" else b""
    path.unlink()
    path.write_bytes(length + text + data)


@functools.cache
def oddities_of(path: Path) -> st.SearchStrategy[Changes]:
    return oddities(split(path)[0])


@settings(max_examples=examples(50))
@given(name=st.sampled_from(JSON_FILES), data=st.data(), turn=st.integers(1, STANDALONE_EVERY))
def test_json_that_somebody_changed(base: Base, name: str, data: st.DataObject, turn: int) -> None:
    changes = data.draw(oddities_of(base.folder / name))
    with broken(base) as folder:
        content, rest = split(folder / name)
        put_together(folder / name, json.dumps(changed(content, changes)).encode(), rest)
        check_everything(base, folder, is_standalone=turn == STANDALONE_EVERY)


WHOLE = (
    *("[" * 100_000, "[" * 500 + "]" * 500, "null", "[]", '{"a": 1, "a": 2}', '{"\\ud800": 1}'),
    '{"' + "x" * 100_000 + '\\u001b[2J": {}}',
)


def _whole(path: Path, at: int) -> None:
    text = WHOLE[at % len(WHOLE)].encode()
    put_together(path, text, b"")


def _in_its_place(make: Callable[[Path], object]) -> Callable[[Path, int], None]:
    def broke(path: Path, _at: int) -> None:
        path.unlink()
        make(path)

    return broke


def _cut(path: Path, at: int) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: at % (len(content) + 1)])


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    for bit in range(8):
        content[(at * (bit + 1)) % min(len(content), 4000)] ^= 1 << bit
    path.unlink()
    path.write_bytes(content)


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


PLACED: tuple[Callable[[Path], object], ...] = (
    lambda _path: None,
    os.mkfifo,
    Path.mkdir,
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.with_name(f"more\x1b-{path.name}").write_bytes(b"{}"),
)
BREAKS = (*map(_in_its_place, PLACED), _cut, _flip, _whole)
BROKEN = [(name, broke) for name in (*JSON_FILES, "chat_template.jinja") for broke in BREAKS]
# The others are hashed to their end, which takes as long as it takes.
BROKEN += [(name, _in_its_place(_large)) for name in JSON_FILES if name not in HASHED_ONLY]


@settings(max_examples=examples(50))
@given(
    broken_file=st.sampled_from(BROKEN),
    at=st.integers(0, 1 << 22),
    turn=st.integers(1, STANDALONE_EVERY),
)
def test_a_tree_that_somebody_changed(
    base: Base, broken_file: tuple[str, Callable[[Path, int], None]], at: int, turn: int
) -> None:
    name, broke = broken_file
    with broken(base) as folder:
        broke(folder / name, at)
        check_everything(base, folder, is_standalone=turn == STANDALONE_EVERY)


def test_the_harness_stops_what_waits_and_what_takes_memory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "LIMIT_S", 0.1)
        with pytest.raises(TooLongError):
            check(lambda: (tmp_path / "pipe").open("rb"))
    with pytest.raises(MemoryError):
        check(lambda: bytearray(2 * LIMIT_BYTES))
