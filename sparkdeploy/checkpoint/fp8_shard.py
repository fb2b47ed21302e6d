"""One shard with the FP8 shared experts, fetched by range and kept beside the downloads."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sparkdeploy import atomic_files
from sparkdeploy.checkpoint import durable, fp8, safetensors
from sparkdeploy.checkpoint.arriving import StoppedError
from sparkdeploy.checkpoint.contents import ModelSizes, summary
from sparkdeploy.checkpoint.durable import Progress, only_one
from sparkdeploy.checkpoint.ranges import Meter, RangeSource, Span, coalesced, index_of
from sparkdeploy.checkpoint.safetensors import TensorInfo
from sparkdeploy.checkpoint.threads import work_through
from sparkdeploy.errors import CheckpointError
from sparkdeploy.node.shared_files import open_existing
from sparkdeploy.stored_json import read_json

SHARD_FILE = "sparkdeploy-fp8.safetensors"
DONE_FILE = "sparkdeploy-fp8.json"
_PART_FILE, _JOURNAL_FILE = "shard.part", "journal.jsonl"
_VERSION = 1
CONNECTIONS = 8
REQUEST_BYTES = 4 << 20
"""What one request brings at least, where so much lies together."""


@dataclass(frozen=True, slots=True)
class Fp8Shard:
    """A finished shard: its file, where it came from, and the sha256 of every tensor in it."""

    path: Path
    origin: str
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Order:
    sizes: ModelSizes
    origin: str
    """A repository at a commit, or a folder's state."""
    mismatch: fp8.Mismatch = fp8.Mismatch.REFUSE
    model: Path | None = None
    """The folder of the same weights at 16 bits; without one nothing is compared."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor on its way: where it lies, and where it goes in bytes from the file's beginning."""

    source: Span
    target: TensorInfo
    target_begin: int


def shard_folder(store: Path, order: Order) -> Path:
    expected = [(item.name, item.shape) for item in fp8.expected_fp8(order.sizes)]
    inputs = [_VERSION, order.origin, expected, order.mismatch.value]
    return store / hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:24]


def read_shard(folder: Path) -> Fp8Shard | None:
    """The finished shard of a folder, or None; its content is not read again."""
    try:
        content = read_json(folder / DONE_FILE)
        wanted = (_VERSION, (folder / SHARD_FILE).stat().st_size)
        stated = (content["version"], content["size_bytes"])
        shard = Fp8Shard(folder / SHARD_FILE, content["origin"], dict(content["digests"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return shard if stated == wanted else None


def is_shard_folder(folder: Path) -> bool:
    """Whether it was begun as one of fetched FP8 tensors; a model has a config.json."""
    return (folder / DONE_FILE).is_file() and not (folder / "config.json").is_file()


def take_shard(folder: Path) -> Fp8Shard | None:
    """The finished shard of a folder, alone in it, or None."""
    done = read_shard(folder)
    if done is not None:
        # A builder that was killed after its last step has left this to the next one.
        (folder / _JOURNAL_FILE).unlink(missing_ok=True)
    return done


def fetch_shard(source: RangeSource, order: Order, folder: Path, on_progress: Progress) -> Fp8Shard:
    """Make the shard in `folder`, or go on with one that was interrupted.

    Only headers and the tensors that are needed are read. What is in the journal has been written
    and synced, and is read back and compared before it is believed. What is not like the model's
    weights is fetched once more. Raises CheckpointError when that does not help, and when the
    source does not hold exactly the expected tensors.
    """
    with only_one(folder.with_name(f".{folder.name}.lock"), f"FP8 tensors of {source.name}"):
        done = take_shard(folder)
        if done is not None:
            return done
        matches = fp8.find_fp8(source, order.sizes, index_of(source), order.mismatch)
        with durable.disk_errors(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            header, pieces = _layout(matches)
            wrong: tuple[str, ...] = ()
            for _ in range(2):
                digests = _fetch(source, header, pieces, folder, on_progress)
                wrong = _drop_unlike(folder, digests, order.model)
                if not wrong:
                    return _finish(folder, order.origin, digests)
    raise CheckpointError(
        f"{source.name}: what came as {summary(wrong)} is not the model's own weight in FP8.",
        detail="\n".join(wrong),
        hint="use the FP8 repository of the same model, or mode online; if it is that one, the "
        "network or the disk changes bytes",
    )


def _fetch(
    source: RangeSource,
    header: bytes,
    pieces: Sequence[_Piece],
    folder: Path,
    on_progress: Progress,
) -> dict[str, str]:
    part = folder / _PART_FILE
    shard = folder / SHARD_FILE
    if shard.exists() and shard.stat().st_nlink == 1:
        # Only the word that it is finished was missing.
        shard.replace(part)
    if not part.exists() or not _starts_with(part, header):
        (folder / _JOURNAL_FILE).unlink(missing_ok=True)
        with atomic_files.open_new(part, 0o644) as file:
            file.write(header)
    total_bytes = sum(piece.target.size_bytes for piece in pieces)
    with _reopened(part) as file:
        file.truncate(len(header) + total_bytes)
        digests = _trusted(file, folder / _JOURNAL_FILE, pieces)
        meter = Meter(total_bytes, on_progress)
        meter.add(sum(p.target.size_bytes for p in pieces if p.target.name in digests))
        missing = [piece for piece in pieces if piece.target.name not in digests]
        copying = _Copying(source, folder, digests, meter)
        work_through(
            tuple(_groups(missing)),
            copying.copy,
            threads=CONNECTIONS,
            stop=copying.stop,
            watch=lambda: None,
        )
        durable.finish(file)
    return digests


def _drop_unlike(folder: Path, digests: dict[str, str], model: Path | None) -> tuple[str, ...]:
    """Take tensors that are not the model's out of the journal; return their names."""
    wrong = () if model is None else fp8.unlike(folder / _PART_FILE, model)
    if wrong:
        weight, scale = fp8.OWN_SUFFIXES[fp8.WEIGHT_SUFFIX], fp8.OWN_SUFFIXES[fp8.SCALE_SUFFIX]
        dropped = {*wrong, *(name.removesuffix(weight) + scale for name in wrong)}
        kept = {name: digest for name, digest in digests.items() if name not in dropped}
        durable.replace_journal(folder / _JOURNAL_FILE, kept)
    return wrong


def _layout(
    matches: Sequence[tuple[fp8.ExpectedTensor, fp8.FoundTensor]],
) -> tuple[bytes, list[_Piece]]:
    """The shard's header, and every tensor's place: larger elements first, then by name."""
    ordered = sorted(
        matches, key=lambda match: (-safetensors.DTYPE_BITS[match[1].info.dtype], match[0].own_name)
    )
    infos = safetensors.placed(
        (expected.own_name, found.info.dtype, expected.shape, found.info.size_bytes)
        for expected, found in ordered
    )
    header = safetensors.header_bytes(infos, {"format": "pt"})
    pieces = [
        _Piece(found.span, info, len(header) + info.begin)
        for (_, found), info in zip(ordered, infos, strict=True)
    ]
    return header, pieces


def _groups(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """What one request brings: neighbours, with the little that lies between them.

    A long row of neighbours is cut between tensors, so that several connections share it.
    """
    ordered = sorted(pieces, key=lambda piece: (piece.source.file, piece.source.begin))
    for span in coalesced([piece.source for piece in ordered]):
        group: list[_Piece] = []
        while ordered and _is_within(ordered[0].source, span):
            group.append(ordered.pop(0))
            if group[-1].source.end - group[0].source.begin >= REQUEST_BYTES:
                yield group
                group = []
        if group:
            yield group


def _is_within(inner: Span, span: Span) -> bool:
    return inner.file == span.file and span.begin <= inner.begin < span.end


def _reopened(part: Path) -> BinaryIO:
    """Open the part to go on with it; NotPlainError where it is a link or none of our files."""
    return os.fdopen(open_existing(part), "r+b")


class _Copying:
    """Brings groups of tensors to their places in the part, from any number of threads."""

    def __init__(
        self, source: RangeSource, folder: Path, digests: dict[str, str], meter: Meter
    ) -> None:
        self.stop = threading.Event()
        self._source, self._folder = source, folder
        self._digests, self._meter = digests, meter
        self._noting = threading.Lock()

    def copy(self, pieces: Sequence[_Piece]) -> None:
        """Raises StoppedError once another group has failed."""
        # Its own: a thread that is late must not write through a number that is another file's now.
        with _reopened(self._folder / _PART_FILE) as file:
            came = self._copy(pieces, file.fileno())
            os.fdatasync(file.fileno())
        with self._noting:
            durable.append_journal(self._folder / _JOURNAL_FILE, came)
            self._digests.update(came)

    def _copy(self, pieces: Sequence[_Piece], file: int) -> dict[str, str]:
        digests = {piece.target.name: hashlib.sha256() for piece in pieces}
        position = pieces[0].source.begin
        end = pieces[-1].source.end
        for chunk in self._source.read(pieces[0].source.file, position, end):
            if self.stop.is_set():
                raise StoppedError
            for piece in pieces:
                begin = max(piece.source.begin, position)
                until = min(piece.source.end, position + len(chunk))
                if begin < until:
                    data = chunk[begin - position : until - position]
                    _write(file, data, piece.target_begin + begin - piece.source.begin)
                    digests[piece.target.name].update(data)
                    self._meter.add(len(data))
            position += len(chunk)
        return {name: digest.hexdigest() for name, digest in digests.items()}


def _write(file: int, content: bytes, position: int) -> None:
    # A full disk takes a part of it, and says that it is full only when asked again.
    while content:
        written_bytes = os.pwrite(file, content, position)
        content, position = content[written_bytes:], position + written_bytes


def _trusted(file: BinaryIO, journal: Path, pieces: Sequence[_Piece]) -> dict[str, str]:
    noted = durable.read_journal(journal)
    trusted: dict[str, str] = {}
    for piece in pieces:
        name, begin = piece.target.name, piece.target_begin
        if name in noted:
            digest = durable.digest_of(file, begin, begin + piece.target.size_bytes)
            if digest == noted[name]:
                trusted[name] = digest
    return trusted


def _finish(folder: Path, origin: str, digests: Mapping[str, str]) -> Fp8Shard:
    part, shard = folder / _PART_FILE, folder / SHARD_FILE
    if set(safetensors.read_header(part).tensors) != set(digests):
        raise CheckpointError(f"{part} does not hold the tensors that were fetched.")
    part.replace(shard)
    content = {
        "version": _VERSION,
        "origin": origin,
        "size_bytes": shard.stat().st_size,
        "digests": dict(sorted(digests.items())),
    }
    durable.write_text(folder / DONE_FILE, json.dumps(content, indent=1, sort_keys=True) + "\n")
    (folder / _JOURNAL_FILE).unlink(missing_ok=True)
    return Fp8Shard(shard, origin, digests)


def _starts_with(path: Path, header: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(header)) == header
