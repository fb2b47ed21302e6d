"""Whatever one client sends, the gateway's one thread is soon free for the others.

All requests of a gateway share a thread: what takes long over one client's text stops the streams
of all. A request's head has 64 KiB at most (h11), its body 64 MiB.
"""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable

import pytest
from starlette.types import Receive, Scope, Send

from sparkdeploy.gateway.access import (
    MAX_FORM_PARTS,
    MAX_HEAD_BYTES,
    BadBodyError,
    ClientAccess,
    read_body,
)
from tests.fakes.gateway import stack_of
from tests.laws.attacks import UNITS

HEAD_BYTES = 60_000
BODY_BYTES = 4 << 20
"""A sixteenth of the largest: what is not counted takes linear time."""
LIMIT_S = 0.5
FORM = "multipart/form-data; boundary=b"
PARTS = (*UNITS, ";", ";a=b", '; a="', ";a*0=b", ";a*=b''c", ';"', "=?a?q?x?=", "\r\na:b", "%41")
HEADERS = ("host", "origin", "authorization", "x-api-key", "content-type", "connection")
JSON_UNITS = (
    *("[],", "{},", '{"":0},', "9,", "1.5e3,", '"",', '"":0,', '{"a":[]},', "[", "{", '"', "\\"),
    *(" ", ",", ":", '"a":"', "null,", "\\u0041", "\U0001f600"),
)


async def unreached(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("a refusal alone is asked for")


def soon(what: str, do: Callable[..., object], *given: object) -> None:
    started_s = time.process_time()
    with contextlib.suppress(BadBodyError):
        do(*given)
    took_s = time.process_time() - started_s
    assert took_s < LIMIT_S, f"{what} took {took_s:.1f} s"


@pytest.mark.parametrize("begin", ["", "multipart/form-data; ", 'multipart/form-data; a="', FORM])
def test_a_content_type_is_soon_read(begin: str) -> None:
    for unit in PARTS:
        text = begin + unit * (HEAD_BYTES // len(unit))
        soon(f"{begin!r} {unit!r}", read_body, b"--b--", text)


def test_a_forms_parts_are_soon_read() -> None:
    begin = b'--b\r\nContent-Disposition: form-data; name="x"'
    for unit in PARTS:
        for room in (MAX_HEAD_BYTES - len(begin), 8_000):
            head = begin + unit.encode() * (room // len(unit))
            raw = (head + b"\r\n\r\nv\r\n") * MAX_FORM_PARTS * 2
            soon(f"a part of {unit!r}", read_body, raw, FORM)


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_is_soon_judged(header: str) -> None:
    access = ClientAccess(unreached, stack_of(), (b"0" * 32,))
    for unit in PARTS:
        for begin in ("", "Bearer ", "127.0.0.1:", "http://"):
            value = (begin + unit * (HEAD_BYTES // len(unit))).encode()
            headers = [(b"host", b"localhost"), (header.encode(), value)]
            scope = {"type": "http", "path": "/v1/models", "headers": headers[header == "host" :]}
            soon(f"{header}: {begin}{unit!r}", access._refusal, scope)


@pytest.mark.parametrize("begin", ['{"model":"a","x":[', '{"model":"a",', "", '{"x":"'])
def test_a_large_body_is_soon_read(begin: str) -> None:
    for unit in JSON_UNITS:
        encoded = unit.encode()
        raw = begin.encode() + encoded * ((BODY_BYTES - len(begin)) // len(encoded))
        for end in (b"", b'0]}"'):
            soon(f"{begin!r} {unit!r}", read_body, raw + end, "")


def test_of_a_body_no_copy_waits() -> None:
    raw = b'{"model":"a","x":"%s"}' % ("\U0001f600" + "a" * (8 << 20)).encode()
    tracemalloc.start()
    try:
        body = read_body(raw, "")
        waiting, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert body.model == "a"
    assert waiting < 1 << 20
    assert peak < 10 * len(raw)
