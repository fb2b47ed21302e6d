"""Which lines of a log the guard wrote."""

from __future__ import annotations

import pytest

from sparkdeploy.server.log_lines import GUARD_MARK, guard_payload


def test_a_line_of_the_guard_is_what_follows_its_mark() -> None:
    assert guard_payload(GUARD_MARK + "{}") == "{}"


@pytest.mark.parametrize(
    "before", ["INFO 11-20 10:00:00 [logger.py:1] ", "(APIServer pid=7) ", "prompt: ", " "]
)
def test_the_mark_within_a_line_is_a_quotation(before: str) -> None:
    assert guard_payload(f"{before}{GUARD_MARK}{{}}") is None
