"""Safetensors files: a header reader that trusts nothing, and a streaming writer."""

import json
import math
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from sparkdeploy.checkpoint.durable import read_errors, staged_file
from sparkdeploy.checkpoint.repo_files import printable, shown
from sparkdeploy.errors import CheckpointError
from sparkdeploy.stored_json import open_regular

HEADER_LIMIT_BYTES = 48 << 20
"""Of one file. The format's own limit is twice that; 200,000 tensors take 38 million bytes."""
TENSORS_LIMIT = 300_000
"""Of a checkpoint, which a reader has in memory all at once; the 122B has 111,523 of them."""
_HEADERS_LIMIT_BYTES = 2 * HEADER_LIMIT_BYTES
_METADATA_LIMIT = 10_000
_SIGNS_LIMIT = {b"{": TENSORS_LIMIT + 2, b":": 4 * TENSORS_LIMIT, b",": 10 * TENSORS_LIMIT}
"""What is parsed of a stranger's header: a tensor has one brace, four colons and some commas."""

DTYPE_BITS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
        **dict.fromkeys(("F32", "I32", "U32"), 32),
        **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
        **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
        **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
        **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
        "F4": 4,
    }
)
"""Bits of one element. A dtype that is not here is taken at the size its offsets claim."""

_ENTRY_KEYS = frozenset({"dtype", "shape", "data_offsets"})

Payload = bytes | Callable[[], bytes]
TensorData = tuple[str, tuple[int, ...], Payload]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as the header describes it; `begin` and `end` count from the data area."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Header:
    """A validated header: the tensors tile the data area exactly, in the order of their offsets."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    data_offset: int
    file_size_bytes: int

    def read(self, file: BinaryIO, tensor: TensorInfo) -> bytes:
        return read_at(file, self.data_offset + tensor.begin, tensor.size_bytes)


def read_at(file: BinaryIO, begin: int, size_bytes: int) -> bytes:
    file.seek(begin)
    return file.read(size_bytes)


def read_header(path: Path) -> Header:
    """Read a header, not the data; CheckpointError unless tensors fill that without any hole."""
    with read_errors(path), open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        return header_from(
            str(path), size_bytes, lambda begin, end: read_at(file, begin, end - begin)
        )


def refuse_pointer(name: str, beginning: bytes) -> None:
    """Raise CheckpointError for what `git clone` leaves in a file's place without Git LFS."""
    if beginning.startswith(b"version "):
        raise CheckpointError(
            f"{printable(name)} is a pointer of Git LFS, and not the file itself",
            hint=f"git -C {shlex.quote(str(Path(name).parent))} lfs pull",
        )


def header_from(name: str, file_size_bytes: int, read: Callable[[int, int], bytes]) -> Header:
    """Check a header as `read_header` does; `read` returns the bytes from one place to another."""
    beginning = read(0, min(8, file_size_bytes))
    length = int.from_bytes(beginning, "little")
    if len(beginning) < 8:
        raise _malformed(name, f"it has {file_size_bytes} bytes, too few for a header")
    refuse_pointer(name, beginning)
    if length > HEADER_LIMIT_BYTES:
        raise _malformed(
            name, f"its header claims {length} bytes, the limit is {HEADER_LIMIT_BYTES}"
        )
    if length > file_size_bytes - 8:
        raise _malformed(name, f"its header claims {length} bytes, the file has {file_size_bytes}")
    data_offset = 8 + length
    try:
        entries = _parse_json(read(8, data_offset))
        metadata = _parse_metadata(entries.pop("__metadata__", {}))
        tensors = [_parse_tensor(tensor, entry) for tensor, entry in entries.items()]
        ordered = _check_tiling(tensors, file_size_bytes - data_offset)
    except RecursionError as error:
        raise _malformed(name, "its header nests too deeply") from error
    except ValueError as error:
        raise _malformed(name, str(error)) from error
    return Header(
        tensors=MappingProxyType({tensor.name: tensor for tensor in ordered}),
        metadata=MappingProxyType(metadata),
        data_offset=data_offset,
        file_size_bytes=file_size_bytes,
    )


def within_limits(
    place: str, headers: Iterable[tuple[str, Header]]
) -> Iterator[tuple[str, Header]]:
    """Hand on the headers of one checkpoint, by file, while memory holds them."""
    tensors = size_bytes = 0
    for file, header in headers:
        tensors += len(header.tensors)
        size_bytes += header.data_offset
        if tensors > TENSORS_LIMIT or size_bytes > _HEADERS_LIMIT_BYTES:
            raise CheckpointError(
                f"{printable(place)} states {tensors} tensors in headers of {size_bytes} bytes; "
                f"at most {TENSORS_LIMIT} in {_HEADERS_LIMIT_BYTES} are read.",
                hint="download the model from an owner you trust; nothing of it was used",
            )
        yield file, header


def placed(tensors: Iterable[tuple[str, str, tuple[int, ...], int]]) -> list[TensorInfo]:
    """Tensors given as name, dtype, shape and bytes, each where the one before it ends."""
    infos: list[TensorInfo] = []
    position = 0
    for name, dtype, shape, size_bytes in tensors:
        infos.append(TensorInfo(name, dtype, shape, position, position + size_bytes))
        position += size_bytes
    return infos


def header_bytes(tensors: Sequence[TensorInfo], metadata: Mapping[str, str]) -> bytes:
    """The beginning of a file that holds `tensors` at their own offsets, up to its data."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [tensor.begin, tensor.end],
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_file(
    path: Path, tensors: Mapping[str, TensorData], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file of mode 0644, durable and all at once.

    A payload is the tensor's little-endian bytes, or a function that makes them; functions are
    called one at a time. Tensors lie by falling element size, then by name, which keeps each one
    aligned.
    """
    order = sorted(tensors, key=lambda name: (-DTYPE_BITS[tensors[name][0]], name))
    infos = placed((name, *tensors[name][:2], _size_bytes(*tensors[name][:2])) for name in order)
    try:
        with staged_file(path) as file:
            file.write(header_bytes(infos, {"format": "pt", **(metadata or {})}))
            for info in infos:
                payload = tensors[info.name][2]
                content = payload if isinstance(payload, bytes) else payload()
                if len(content) != info.size_bytes:
                    raise CheckpointError(
                        f"{info.name}: {info.dtype} of shape {info.shape} takes "
                        f"{info.size_bytes} bytes, {len(content)} given"
                    )
                file.write(content)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error


def _malformed(name: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{printable(name)}: not a valid safetensors file: {reason}",
        hint="Download this file again; a copy that was cut short looks like this.",
    )


def _parse_json(text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise ValueError("its header is not a JSON object")
    for sign, limit in _SIGNS_LIMIT.items():
        if text.count(sign) > limit:
            raise ValueError(f"its header holds more than {limit} times {sign.decode()!r}")
    entries: dict[str, Any] = json.loads(
        text.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
    )
    return entries


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{shown(twice)} stands in its header twice")
    return unique


def _refuse_constant(text: str) -> None:
    raise ValueError(f"its header holds {text}")


def _parse_metadata(entry: object) -> dict[str, str]:
    if not isinstance(entry, dict) or not all(isinstance(text, str) for text in entry.values()):
        raise ValueError("its __metadata__ is not a map from text to text")
    if len(entry) > _METADATA_LIMIT:
        raise ValueError(f"its __metadata__ has more than {_METADATA_LIMIT} entries")
    return entry


def _parse_tensor(name: str, entry: object) -> TensorInfo:
    # A lone surrogate is legal in JSON and in str, but no index or log could name such a tensor.
    name.encode("utf-8")
    if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS:
        raise ValueError(f"{shown(name)} needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise ValueError(f"{shown(name)} has no dtype")  # noqa: TRY004 (caught as malformed)
    if not _are_counts(shape):
        raise ValueError(f"{shown(name)} has a shape that is not a list of sizes")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{shown(name)} has data_offsets that are not [begin, end]")
    tensor = TensorInfo(name, dtype, tuple(shape), offsets[0], offsets[1])
    bits, claimed_bits = DTYPE_BITS.get(dtype), tensor.size_bytes * 8
    if bits is not None and _product_up_to(tensor.shape, claimed_bits + 1) * bits != claimed_bits:
        raise ValueError(
            f"{shown(name)} takes {tensor.size_bytes} bytes, which does not fit its dtype and shape"
        )
    return tensor


def _are_counts(values: object) -> bool:
    if not isinstance(values, list):
        return False
    for value in values:  # noqa: SIM110 - a generator takes twice as long, 200,000 times a model
        if type(value) is not int or value < 0:
            return False
    return True


def _product_up_to(shape: tuple[int, ...], limit: int) -> int:
    """The product, or a part of at least `limit`: a hostile one may have millions of digits."""
    if 0 in shape:
        return 0
    product = 1
    for size in shape:
        product *= size
        if product >= limit:
            return product
    return product


def _check_tiling(tensors: list[TensorInfo], data_size_bytes: int) -> list[TensorInfo]:
    ordered = sorted(tensors, key=lambda tensor: (tensor.begin, tensor.end))
    position = 0
    for tensor in ordered:
        if tensor.begin < position:
            raise ValueError(f"{shown(tensor.name)} overlaps the tensor before it")
        if tensor.begin > position:
            raise ValueError(f"there is a hole before {shown(tensor.name)}")
        position = tensor.end
    if position != data_size_bytes:
        raise ValueError(f"its tensors take {position} bytes, its data area has {data_size_bytes}")
    return ordered


def _size_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return DTYPE_BITS[dtype] * math.prod(shape) // 8
