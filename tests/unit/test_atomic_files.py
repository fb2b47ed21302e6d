"""Files that are written where another user may have put links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sparkdeploy import atomic_files, shell


def test_a_link_with_the_targets_name_is_replaced_and_not_followed(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("mine")
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "report.txt").symlink_to(private)
    for name in (".report.txt.new", ".report.txt.part", f".report.txt.{os.getpid()}"):
        (shared / name).symlink_to(private)
    atomic_files.write_bytes(shared / "report.txt", b"new")
    assert private.read_text() == "mine"
    assert not (shared / "report.txt").is_symlink()
    assert (shared / "report.txt").read_text() == "new"
    # A report of a failure may hold what others should not read.
    assert (shared / "report.txt").stat().st_mode & 0o077 == 0
    atomic_files.write_text(shared / "figures.prom", "for a program of another user")
    assert (shared / "figures.prom").stat().st_mode & 0o777 == 0o644


def test_a_named_staging_file_is_never_an_existing_one(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("mine")
    staged = tmp_path / "staged"
    staged.symlink_to(private)
    with (
        pytest.raises(OSError, match=os.strerror(errno.EEXIST)),
        atomic_files.replacing(tmp_path / "target", staged=staged) as file,
    ):
        file.write(b"theirs")
    assert private.read_text() == "mine"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "report.txt"
    target.write_text("old")

    def fails() -> None:
        with atomic_files.replacing(target) as file:
            file.write(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="space"):
        fails()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.txt"]


def test_a_probe_leaves_nothing(tmp_path: Path) -> None:
    atomic_files.probe(tmp_path, 10)
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_of_a_known_name_takes_a_links_place(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("mine")
    (tmp_path / "part").symlink_to(private)
    with atomic_files.open_new(tmp_path / "part") as file:
        file.write(b"new")
    assert private.read_text() == "mine"
    assert (tmp_path / "part").read_text() == "new"


def test_a_folder_exchanged_for_a_link_is_not_written_through(tmp_path: Path) -> None:
    trusted, shared = tmp_path / "trusted", tmp_path / "shared"
    trusted.mkdir()
    with atomic_files.opened_folder(shared) as folder:
        assert folder.real_path == shared
        shared.rename(tmp_path / "aside")
        shared.symlink_to(trusted)
        folder.create("a.yaml", b"theirs")
        assert folder.real_path == tmp_path / "aside"
        assert folder.read_bytes("a.yaml", 100) == b"theirs"
    assert list(trusted.iterdir()) == []
    assert [path.name for path in (tmp_path / "aside").iterdir()] == ["a.yaml"]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_or_link_of_that_name_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    private = tmp_path / "private"
    private.write_text("mine")
    shared = tmp_path / "shared"
    if not has_links:

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr("os.link", refuse)
    named: list[bool] = []
    monkeypatch.setattr("os.fsync", lambda _: named.append((shared / "file").exists()))
    with atomic_files.opened_folder(shared) as folder:
        folder.create("file", b"first")
        assert named == [False, True], "its content before its name, and then the folder"
        (shared / "link").symlink_to(private)
        (shared / "nowhere").symlink_to(tmp_path / "nowhere")
        for name in ("file", "link", "nowhere"):
            with pytest.raises(FileExistsError):
                folder.create(name, b"theirs")
        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            folder.read_bytes("link", 10)
    assert private.read_text() == "mine"
    assert (shared / "file").read_text() == "first"
    assert (shared / "file").stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in shared.iterdir()) == ["file", "link", "nowhere"]


def test_what_a_program_says_after_its_output_ended_is_heard() -> None:
    with shell.Running(("sh", "-c", "exec >&-; sleep 0.3; echo why >&2")) as program:
        assert program.read_until("mark", timeout_s=10) is None
        assert program.errors() == "why\n"
