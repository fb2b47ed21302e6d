"""Context tars are the same for the same files."""

import io
import os
import tarfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.image.context import ContextFile, write_tar

FILES = st.dictionaries(
    st.text("abc", min_size=1, max_size=8), st.binary(max_size=2000), max_size=5
)


def tar_of(files: list[ContextFile]) -> bytes:
    out = io.BytesIO()
    write_tar(files, out)
    return out.getvalue()


@given(content=FILES)
def test_the_order_of_the_files_does_not_matter(content: dict[str, bytes]) -> None:
    files = [ContextFile(path, data) for path, data in content.items()]
    assert tar_of(files) == tar_of(files[::-1])


@given(content=FILES)
def test_what_goes_in_comes_out(content: dict[str, bytes]) -> None:
    packed = tar_of([ContextFile(path, data, 0o755) for path, data in content.items()])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert {m.name: archive.extractfile(m).read() for m in archive} == content  # type: ignore[union-attr]
        assert {(m.mode, m.uid, m.gid, m.mtime) for m in archive} <= {(0o755, 0, 0, 0)}


def test_a_file_on_disk_is_packed_without_its_owner_and_times(tmp_path: Path) -> None:
    path = tmp_path / "wheel"
    path.write_bytes(b"content")
    os.utime(path, (1, 1))
    before = tar_of([ContextFile("wheel", path)])
    os.utime(path, (2, 2))
    path.chmod(0o600)
    assert (
        tar_of([ContextFile("wheel", path)]) == before == tar_of([ContextFile("wheel", b"content")])
    )


def test_a_file_s_mode_is_part_of_what_it_is() -> None:
    plain, program = (ContextFile("x", b"", mode) for mode in (0o644, 0o755))
    assert plain.digest() != program.digest()
    assert plain.digest() == ContextFile("y", b"").digest()
