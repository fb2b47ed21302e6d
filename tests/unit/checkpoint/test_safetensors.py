"""Safetensors files: whatever a header says, one error or a sound answer."""

import json
import stat
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkdeploy.checkpoint.safetensors import (
    DTYPE_BITS,
    HEADER_LIMIT_BYTES,
    Payload,
    TensorData,
    read_header,
    write_file,
)
from sparkdeploy.errors import CheckpointError

_FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
_ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPE_BITS, "X7"]) | _JSON,
        "shape": st.lists(st.integers(-1, 2**64), max_size=4) | _JSON,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=1, max_size=3) | _JSON,
    }
)


def _file(path: Path, header: str | bytes, data: bytes = b"") -> Path:
    text = header.encode() if isinstance(header, str) else header
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def _entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def _refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert str(path) in caught.value.message
    return caught.value.message


@_FUZZ
@given(
    entries=st.dictionaries(st.text(max_size=8), _ENTRY | _JSON, max_size=4),
    size=st.integers(0, 40),
)
def test_any_json_header_gives_tensors_that_tile_the_data_or_one_error(
    tmp_path: Path, entries: dict[str, object], size: int
) -> None:
    path = _file(tmp_path / "any.safetensors", json.dumps(entries), bytes(size))
    try:
        header = read_header(path)
    except CheckpointError:
        return
    assert sum(tensor.size_bytes for tensor in header.tensors.values()) == size
    assert set(header.tensors) == set(entries) - {"__metadata__"}


@_FUZZ
@given(cut=st.integers(0, 250), flips=st.lists(st.tuples(st.integers(0, 249), st.integers(1, 255))))
def test_a_damaged_file_gives_a_header_or_one_error(
    tmp_path: Path, cut: int, flips: list[tuple[int, int]]
) -> None:
    path = tmp_path / "damaged.safetensors"
    write_file(path, {"a": ("F32", (4,), bytes(16)), "b": ("U8", (3,), b"abc")})
    content = bytearray(path.read_bytes())
    for at, change in flips:
        content[at % len(content)] ^= change
    path.write_bytes(content[: len(content) - cut if cut < len(content) else 0])
    try:
        header = read_header(path)
    except CheckpointError:
        return
    assert header.data_offset <= header.file_size_bytes


@_FUZZ
@given(
    sizes=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=10).filter(
            lambda name: name != "__metadata__"
        ),
        st.tuples(
            st.sampled_from([dtype for dtype, bits in DTYPE_BITS.items() if bits >= 8]),
            st.lists(st.integers(0, 4), max_size=3).map(tuple),
        ),
        max_size=6,
    )
)
def test_what_is_written_is_read_back(
    tmp_path: Path, sizes: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    tensors: dict[str, TensorData] = {}
    for number, (name, (dtype, shape)) in enumerate(sizes.items()):
        count = DTYPE_BITS[dtype] // 8
        for size in shape:
            count *= size
        tensors[name] = (dtype, shape, bytes([number]) * count)
    path = tmp_path / "round.safetensors"
    write_file(path, tensors, {"made": "here"})
    header = read_header(path)
    assert header.metadata == {"format": "pt", "made": "here"}
    content = path.read_bytes()[header.data_offset :]
    found = {
        name: (info.dtype, info.shape, content[info.begin : info.end])
        for name, info in header.tensors.items()
    }
    assert found == tensors


def test_a_header_of_many_claimed_gigabytes_is_refused_without_allocating(tmp_path: Path) -> None:
    path = tmp_path / "huge.safetensors"
    with path.open("wb") as file:
        file.write((HEADER_LIMIT_BYTES + 1).to_bytes(8, "little"))
        file.truncate(HEADER_LIMIT_BYTES * 2)
    tracemalloc.start()
    message = _refusal(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "the limit is" in message
    assert peak_bytes < 1_000_000


@pytest.mark.parametrize(
    ("entries", "size", "reason"),
    [
        ({"a": _entry("U8", [4], 0, 4), "b": _entry("U8", [4], 3, 7)}, 7, "'b' overlaps"),
        ({"a": _entry("U8", [4], 0, 4), "b": _entry("U8", [4], 5, 9)}, 9, "a hole before 'b'"),
        ({"a": _entry("U8", [4], 0, 4)}, 5, "take 4 bytes, its data area has 5"),
        ({"a": _entry("U8", [4], 0, 4)}, 3, "take 4 bytes, its data area has 3"),
        ({"a": _entry("F32", [2], 0, 4)}, 4, "does not fit its dtype and shape"),
        ({"a": _entry("F4", [3], 0, 2)}, 2, "does not fit its dtype and shape"),
        ({"a": _entry("U8", [10**18] * 9000, 0, 4)}, 4, "does not fit its dtype and shape"),
        ({"a": _entry("U8", [-1], 0, 0)}, 0, "not a list of sizes"),
        ({"a": _entry("U8", [True], 0, 1)}, 1, "not a list of sizes"),
        ({"a": _entry("U8", [1], 1, 0)}, 1, "not [begin, end]"),
        ({"a": {"dtype": "U8", "shape": []}}, 0, "exactly dtype, shape and data_offsets"),
        ({"__metadata__": {"format": 1}}, 0, "__metadata__"),
        ({"\ud800": _entry("U8", [0], 0, 0)}, 0, "surrogates"),
    ],
)
def test_an_unsound_header_is_refused_with_its_reason(
    tmp_path: Path, entries: dict[str, object], size: int, reason: str
) -> None:
    assert reason in _refusal(_file(tmp_path / "f", json.dumps(entries), bytes(size)))


def test_an_unknown_dtype_passes_at_the_size_its_offsets_claim(tmp_path: Path) -> None:
    entries = {"a": _entry("F3_E1M1", [5, 5], 0, 10)}
    header = read_header(_file(tmp_path / "f", json.dumps(entries), bytes(10)))
    assert header.tensors["a"].size_bytes == 10


def test_a_written_file_can_be_read_by_everyone_and_leaves_nothing_beside_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.safetensors"
    write_file(path, {"a": ("U8", (1,), b"x")})
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("payload", [b"xx", lambda: b"xx"])
def test_a_payload_of_the_wrong_length_leaves_the_old_file(
    tmp_path: Path, payload: Payload
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")
    with pytest.raises(CheckpointError, match="takes 1 bytes, 2 given"):
        write_file(path, {"a": ("U8", (1,), payload)})
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
