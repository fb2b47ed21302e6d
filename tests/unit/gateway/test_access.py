"""Which files of keys are taken, and whose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkdeploy.errors import RecipeError
from sparkdeploy.gateway.access import MAX_KEYS_BYTES, error_body, read_keys
from tests.fakes.gateway import keys_in

KEY = "k" * 16


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return keys_in(tmp_path)


def test_each_line_is_a_key(keys: Path) -> None:
    keys.write_text(f"# Ada's\n{KEY}\r\n\n  {'m' * 20}  \n")
    assert len(read_keys(keys)) == 2
    assert read_keys(None) == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"\n# x\n", b"short\n", b"two words of a key\n", "schlüssel-für-alle\n".encode(),
     b"k" * 16 + b"\x00\n", b"\xff" * 20, b"k" * (MAX_KEYS_BYTES + 1), b"0", b"false"],
)  # fmt: skip
def test_what_is_no_key_is_refused(keys: Path, content: bytes) -> None:
    keys.write_bytes(content)
    with pytest.raises(RecipeError) as refused:
        read_keys(keys)
    assert refused.value.hint
    assert "k" * 16 not in refused.value.message


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o660, 0o777])
def test_a_file_that_others_can_read_or_change_is_refused(keys: Path, mode: int) -> None:
    keys.write_text(KEY)
    keys.chmod(mode)
    with pytest.raises(RecipeError, match="others can") as refused:
        read_keys(keys)
    assert refused.value.hint == f"chmod 600 {keys}"


def test_another_users_file_and_what_is_no_file_are_refused(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = keys.with_name("pipe")
    os.mkfifo(fifo, 0o600)
    for path in (fifo, keys.parent, keys.with_name("missing")):
        with pytest.raises(RecipeError):
            read_keys(path)
    keys.write_text(KEY)
    owner = os.geteuid() or 4711
    os.chown(keys, owner, -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(RecipeError, match="another user's"):
        read_keys(keys)


def test_errors_have_the_shape_that_clients_read() -> None:
    assert error_body("/v1/messages", 503, "x")["error"]["type"] == "overloaded_error"
    assert error_body("/v1/messages/count_tokens", 500, "x")["type"] == "error"
    assert error_body("/v1/chat/completions", 502, "\ud800")["error"]["message"] == "?"
