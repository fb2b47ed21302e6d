"""The recorded text that a rehearsal is held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy.errors import UnhealthyError
from sparkdeploy.rehearsal.reference import Answer, compare_with_reference, read_reference

if TYPE_CHECKING:
    from pathlib import Path

ANSWER = Answer("Once", " upon", 1, 0.1)


def test_the_same_text_passes() -> None:
    compare_with_reference([ANSWER], {"Once": " upon"})


@pytest.mark.parametrize("texts", [{"Once": " more"}, {"Twice": " upon"}, {}])
def test_another_text_or_none_at_all_fails(texts: dict[str, str]) -> None:
    with pytest.raises(UnhealthyError, match="not what it is without speculation"):
        compare_with_reference([ANSWER], texts)


@pytest.mark.parametrize("content", ["", "{}", "[1]", "5", "{"])
def test_a_broken_record_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "record.json").write_text(content)
    assert read_reference(tmp_path / "record.json") is None
