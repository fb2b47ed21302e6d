"""A finished folder takes its name while the old one has it: there is no moment without either."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkdeploy.checkpoint import durable


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(durable, "_exchange", lambda *_: False)
    for text in ("first", "second"):
        staged = durable.staging_path(tmp_path / "m")
        staged.mkdir()
        (staged / "text").write_text(text)
        durable.replace_folder(staged, tmp_path / "m")
        assert (tmp_path / "m/text").read_text() == text
        assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_two_names_change_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a name was given away alone")

    for name in ("m", "staged"):
        (tmp_path / name).mkdir()
    (tmp_path / "staged/new").touch()
    monkeypatch.setattr(Path, "rename", refuse)
    durable.replace_folder(tmp_path / "staged", tmp_path / "m")
    assert (tmp_path / "m/new").exists()
    assert not (tmp_path / "staged").exists()


def test_a_written_file_may_be_read_by_all_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        durable.write_text(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
