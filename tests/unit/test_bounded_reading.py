"""What others write is read in linear time."""

from __future__ import annotations

import time

import pytest

from sparkdeploy import shell
from sparkdeploy.secret_shapes import text_without_secrets
from sparkdeploy.terminal.safe_text import visible_log

SIZE = 20_000
TEXTS = {
    text: (text * SIZE)[:SIZE]
    for text in (
        "a-",
        "\r",
        "a",
        ".",
        "'",
        "[",
        "--",
        "eyJ",
        "://",
        "ssh://",
        "\x1b[",
        "-eyJ",
    )
} | {
    "token": "token=" + " " * SIZE,
    "cookie": "cookie:" * (SIZE // 7),
    "secret": "secret-" * (SIZE // 7),
    "begin": "-----BEGIN PRIVATE KEY-----" * (SIZE // 27),
}


@pytest.mark.parametrize("take", [text_without_secrets, visible_log])
@pytest.mark.parametrize("name", TEXTS)
def test_reading_takes_linear_time(name: str, take) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    started_s = time.process_time()
    take(TEXTS[name])

    assert time.process_time() - started_s < 1


def test_what_a_program_says_after_its_output_ended_is_heard() -> None:
    with shell.Running(("sh", "-c", "exec >&-; sleep 0.3; echo why >&2")) as program:
        assert program.read_until("mark", timeout_s=10) is None
        assert program.errors() == "why\n"
