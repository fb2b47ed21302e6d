"""Servers that end, encode or refuse in ways of their own: counted at once, or told in words."""

from __future__ import annotations

import gzip
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.bench.answers import Arrival, CountedAnswer, Exchange, read_answer
from sparkdeploy.bench.record import FailureKind
from sparkdeploy.bench.streams import Streams, exchange_of
from tests.fakes.raw_server import raw_server
from tests.fakes.scripted_server import DONE, event

pytestmark = pytest.mark.outside

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n"
ANSWER = event(ids=[1, 2], text="a b") + event(usage=(7, 2), choices=False)
SILENCE_S = 20.0
"""A client that waits for more than it needs is found by its end."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def ask(*parts: bytes, closes: bool = False) -> CountedAnswer:
    with raw_server(*parts, closes=closes) as server:
        url = f"http://127.0.0.1:{server.port}"
        with Streams(url, silence_s=SILENCE_S) as client:
            (exchange,) = client.round([{}])
    return read_answer(exchange)


def whole(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


KEPT_OPEN = {
    "the last chunk": [CHUNKED + b"\r\n", chunk(ANSWER + DONE), b"0\r\n\r\n"],
    "the last chunk, cut in two": [CHUNKED + b"\r\n" + chunk(ANSWER + DONE), b"0\r", b"\n\r\n"],
    "trailers": [CHUNKED + b"\r\n", chunk(ANSWER + DONE), b"0\r\nX-Took: 1\r\n\r\n"],
    "trailers alone": [
        CHUNKED + b"\r\n",
        chunk(ANSWER + event(text="", finish="stop")),
        b"0\r\nX-Took: 1\r\n\r\n",
    ],
    "no last chunk": [CHUNKED + b"\r\n", chunk(ANSWER + DONE)],
    "[DONE], cut in two": [CHUNKED + b"\r\n" + chunk(ANSWER), chunk(DONE[:9]), chunk(DONE[9:])],
    "no [DONE], a length": [OK, whole(ANSWER + event(text="", finish="stop"))],
    "a length": [OK, whole(ANSWER + DONE)],
    "no length": [OK + b"\r\n", ANSWER, DONE],
    "gzip": [OK, b"Content-Encoding: gzip\r\n", whole(gzip.compress(ANSWER + DONE))],
    "gzip in chunks": [
        CHUNKED + b"Content-Encoding: gzip\r\n\r\n",
        chunk(gzip.compress(ANSWER + DONE)[:30]),
        chunk(gzip.compress(ANSWER + DONE)[30:]) + b"0\r\n\r\n",
    ],
}


@pytest.mark.parametrize("parts", KEPT_OPEN.values(), ids=KEPT_OPEN)
def test_an_answer_is_counted_though_the_server_keeps_the_connection(
    parts: Sequence[bytes],
) -> None:
    answer = ask(*parts)
    assert answer.failure is None
    assert (answer.prompt_tokens, answer.completion_tokens) == (7, 2)


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b'{"error": {"message": "no slot is free"}}', FailureKind.SERVER_ERROR, "no slot is free"),
        (b'{"detail": "busy"}', FailureKind.SERVER_ERROR, "busy"),
        (
            b'{"choices": [{"message": {"content": "hi"}}]}',
            FailureKind.MALFORMED,
            'one JSON object instead of a stream: {"choices"',
        ),
        (
            b"<!DOCTYPE html><html><head><title>x</title></head><body><h1>Log in</h1>&amp; wait",
            FailureKind.MALFORMED,
            "a page instead of a stream: <!DOCTYPE html>",
        ),
    ],
)
@pytest.mark.parametrize("closes", [True, False])
def test_what_is_no_stream_is_told_in_the_server_s_words(
    body: bytes, kind: FailureKind, words: str, closes: bool
) -> None:
    answer = ask(OK, whole(body), closes=closes)
    assert answer.failure is not None
    assert answer.failure.kind is kind
    assert answer.failure.message.startswith(words)


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (b"", FailureKind.UNREACHABLE),
        (b"SSH-2.0-OpenSSH_9.6\r\n", FailureKind.BROKEN_OFF),
        (CHUNKED + b"\r\n" + chunk(ANSWER)[:-3], FailureKind.BROKEN_OFF),
    ],
)
def test_what_is_not_whole_has_failed(sent: bytes, kind: FailureKind) -> None:
    failure = ask(sent, closes=True).failure
    assert failure is not None
    assert failure.kind is kind


@given(st.binary(max_size=120))
def test_no_bytes_break_the_reader(noise: bytes) -> None:
    exchange = exchange_of(Exchange(0.0, 1.0, (Arrival(0.0, noise),)))
    assert exchange.failure is not None or noise.startswith(b"HTTP/1.")


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Path, Path]:
    """Return a certificate for 127.0.0.1 that nobody trusts, and its key."""
    certificate, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=lab",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def test_a_private_authority_is_trusted_by_its_file(authority: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority)
    parts = [CHUNKED + b"\r\n", chunk(ANSWER + DONE)]
    with raw_server(*parts, certificate=context) as server:
        url = f"https://127.0.0.1:{server.port}"
        with Streams(url, ca_file=authority[0], silence_s=SILENCE_S) as client:
            (trusted,) = client.round([{}])
        with Streams(url, silence_s=SILENCE_S) as client:
            (untrusted,) = client.round([{}])
    assert read_answer(trusted).failure is None
    assert trusted.connect_s > 0
    assert untrusted.failure is not None
    assert untrusted.failure.kind is FailureKind.UNREACHABLE
    assert untrusted.failure.message.startswith("its certificate is not trusted: self")
