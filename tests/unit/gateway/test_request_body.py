"""Laws of what the gateway changes in a request: the model's name, and what an alias adds."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.gateway.access import BadBodyError, read_body

JSON = "application/json"
names = st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(names, values, max_size=5)
served = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@given(objects, served, served, objects, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_only_the_name_and_what_is_missing_change(
    content: dict[str, Any],
    asked: str,
    name: str,
    defaults: dict[str, Any],
    indent: int | str | None,
    ascii_only: bool,
) -> None:
    content = {**content, "model": asked}
    raw = json.dumps(content, indent=indent, ensure_ascii=ascii_only).encode()
    body = read_body(raw, JSON)
    assert body.model == asked
    assert body.is_stream is (content.get("stream") is True)
    sent = body.for_server(name, defaults)
    assert json.loads(sent) == {**defaults, **content, "model": name}
    assert body.for_server(asked, {}) == raw


@given(st.binary(max_size=200))
def test_whatever_comes_is_read_or_refused(raw: bytes) -> None:
    for kind in (JSON, "", "multipart/form-data; boundary=x", "multipart/form-data", "\xff; ="):
        with contextlib.suppress(BadBodyError):
            assert read_body(raw, kind).for_server("served", {"a": 1})


@given(st.dictionaries(st.sampled_from("abcd"), names, max_size=3), served, st.binary(max_size=50))
def test_a_form_keeps_its_other_parts(fields: dict[str, str], name: str, file: bytes) -> None:
    parts = [
        *((f'form-data; name="{key}"', value.encode()) for key, value in fields.items()),
        ('form-data; name="model"; filename="model"', file.replace(b"--x", b"")),
        ('form-data; name="model"', b"whisper"),
        ('form-data; name="stream"', b"true"),
    ]
    raw = b"".join(
        b"--x\r\nContent-Disposition: %s\r\n\r\n%s\r\n" % (head.encode(), value)
        for head, value in parts
        if b"\r\n--x" not in value
    )
    raw += b"--x--\r\n"
    body = read_body(raw, "multipart/form-data; boundary=x")
    assert (body.model, body.is_stream) == ("whisper", True)
    assert body.for_server("whisper", {}) == raw
    before, _, behind = raw.rpartition(b"whisper")
    assert body.for_server(name, {}) == before + name.encode() + behind
    assert b'; name="t"\r\n\r\n0\r\n' in body.for_server(name, {"t": 0})


def test_of_two_names_the_last_counts_and_no_other_stays() -> None:
    body = read_body(b'{"model": ["x"], "model": "y", "stream": true, "stream": 1}', JSON)
    assert (body.model, body.is_stream) == ("y", False)
    assert json.loads(body.for_server("z", {})) == {"model": "z", "stream": 1}


def test_a_form_of_too_many_parts_is_refused() -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    with pytest.raises(BadBodyError):
        read_body(part * 300 + b"--x--", "multipart/form-data; boundary=x")
