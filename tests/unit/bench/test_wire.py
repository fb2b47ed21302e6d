"""HTTP out of timed bytes: the same body whatever the cuts, and every part keeps its moment."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.bench.answers import Arrival, Exchange
from sparkdeploy.bench.record import FailureKind
from sparkdeploy.bench.streams import exchange_of, read_response, request_bytes

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n7\r\n world!\r\n0\r\n\r\n"
)
REFUSED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nnope!"


def pieces(*parts: bytes) -> tuple[Arrival, ...]:
    return tuple(Arrival(float(index), part) for index, part in enumerate(parts))


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=12))
def test_the_cuts_do_not_change_the_body(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(CHUNKED)]

    found = read_response(
        pieces(*(CHUNKED[start:end] for start, end in pairwise(edges))), is_closed=False
    )

    assert found.status == 200
    assert found.is_whole
    assert b"".join(part.data for part in found.body) == b"hello world!"


def test_each_part_keeps_the_moment_at_which_it_came() -> None:
    cut = CHUNKED.index(b"7\r\n")

    found = read_response(pieces(CHUNKED[:cut], CHUNKED[cut:]), is_closed=False)

    assert [(part.at_s, part.data) for part in found.body] == [(0.0, b"hello"), (1.0, b" world!")]


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ((), FailureKind.UNREACHABLE),
        ((CHUNKED[:-3],), FailureKind.BROKEN_OFF),
        ((b"SSH-2.0-OpenSSH_9.6\r\n",), FailureKind.BROKEN_OFF),
    ],
)
def test_what_is_not_whole_has_failed(parts: tuple[bytes, ...], kind: FailureKind) -> None:
    found = exchange_of(Exchange(0.0, 1.0, arrivals=pieces(*parts)))

    assert found.failure is not None
    assert found.failure.kind is kind


@given(st.binary(max_size=120))
def test_no_bytes_break_the_reader(noise: bytes) -> None:
    exchange = exchange_of(Exchange(0.0, 1.0, arrivals=pieces(noise)))

    assert exchange.failure is not None or noise.startswith(b"HTTP/1.")


def test_the_request_asks_to_be_closed_and_says_its_length() -> None:
    text = request_bytes(host="h:1", path="/v1/x", headers={"A": "b"}, body=b"{}")

    assert text.startswith(b"POST /v1/x HTTP/1.1\r\nHost: h:1\r\nConnection: close\r\nA: b\r\n")
    assert text.endswith(b"Content-Length: 2\r\n\r\n{}")
