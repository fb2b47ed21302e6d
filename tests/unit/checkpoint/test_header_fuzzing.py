"""Ten thousand headers that somebody broke: one kind of error, no crash, little memory."""

from __future__ import annotations

import json
import random
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkdeploy.checkpoint.safetensors import Header, parse_header, read_header
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_BYTES = 4 << 20
GOOD: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "BF16", "shape": [2, 4], "data_offsets": [0, 16]},
    "b": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [16, 24]},
    "c": {"dtype": "I32", "shape": [], "data_offsets": [24, 28]},
}
SIZE_BYTES = 28

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["BF16", "F4", "F6_E2M3", "NEW", "__metadata__", 2**63, 10**300]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": json_values,
        "shape": st.lists(st.integers(-1, 2**64), max_size=4) | json_values,
        "data_offsets": st.lists(st.integers(-1, 40), max_size=3) | json_values,
        "extra": json_values,
    },
)
any_speed = settings(suppress_health_check=list(HealthCheck))


def parsed(text: bytes, data_bytes: int) -> Header | None:
    """What the reader makes of it; only its own error may come."""
    try:
        return parse_header("lab", text, file_size_bytes=8 + len(text) + data_bytes)
    except CheckpointError:
        return None


def check(header: Header | None, data_bytes: int) -> None:
    """What is accepted fills the data area exactly."""
    if header is not None:
        assert sum(info.size_bytes for info in header.tensors.values()) == data_bytes


def mutated(dice: random.Random) -> bytes:
    """A good header after one to four changes of single bytes, numbers, ends or order."""
    text = bytearray(json.dumps(GOOD).encode())
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(text) or 1)
        change = dice.choice(("flip", "digit", "cut", "double", "swap"))
        if change == "cut" and dice.random() < 0.2:
            del text[at:]
        elif change == "double":
            text[at:at] = text[dice.randrange(at + 1) : at]
        elif change == "digit":
            digits = [place for place, byte in enumerate(text) if 48 <= byte < 58]
            if digits:
                text[dice.choice(digits)] = dice.choice(b"0123456789-.e")
        elif change == "flip" and text:
            text[at] = dice.randrange(256)
        else:
            text = text[at:] + text[:at] if dice.random() < 0.1 else text
    return bytes(text)


def test_ten_thousand_mutations_of_a_good_header() -> None:
    dice = random.Random(20261121)
    accepted = 0
    for _ in range(10_000):
        header = parsed(mutated(dice), SIZE_BYTES)
        check(header, SIZE_BYTES)
        accepted += header is not None
    # Mutations that change nothing of importance must not all be refused, nor most be accepted.
    assert 100 < accepted < 5000


@any_speed
@given(st.sampled_from("abc"), entries, st.integers(20, 40))
def test_one_tensor_replaced(name: str, entry: dict[str, Any], data_bytes: int) -> None:
    text = json.dumps({**GOOD, name: {**GOOD[name], **entry}}).encode()
    check(parsed(text, data_bytes), data_bytes)


@pytest.mark.parametrize("length", [9, 10**6, 10**8, 10**8 + 1, 2**32, 2**63, 2**64 - 1])
def test_a_length_that_lies_takes_no_memory(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="its header claims"):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < LARGEST_BYTES
    finally:
        tracemalloc.stop()


def test_a_shape_that_lies_takes_no_memory() -> None:
    entry = {"dtype": "F64", "shape": [2**62] * 200, "data_offsets": [0, 8]}
    text = json.dumps({"a": entry}).encode()
    tracemalloc.start()
    try:
        assert parsed(text, 8) is None
        assert tracemalloc.get_traced_memory()[1] < LARGEST_BYTES
    finally:
        tracemalloc.stop()
