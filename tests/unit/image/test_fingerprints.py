"""Fingerprints of stages, and the build contexts that they are made of."""

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import sparkdeploy
from sparkdeploy.image.context import ContextFile, write_tar
from sparkdeploy.image.stages import Stage, fingerprint, stages_of
from sparkdeploy.settings import resources

from .conftest import LoadEngine

DIGESTS = st.dictionaries(st.text(min_size=1), st.text(), min_size=1, max_size=6)
Tree = Callable[[], tuple[Stage, ...]]


@pytest.fixture
def copy(load: LoadEngine, tmp_path: Path) -> tuple[Path, Tree]:
    """A copy of everything that stages are made from, and a way to look at its stages."""
    shutil.copytree(resources() / "dockerfiles", tmp_path / "dockerfiles")
    shutil.copytree(resources() / "recipes", tmp_path / "recipes")
    shutil.copytree(
        Path(sparkdeploy.__file__).parent / "vllm_plugin",
        tmp_path / "plugin",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    engine = load("cpu-0.32")
    return tmp_path, lambda: stages_of(
        engine,
        base_source="registry",
        architecture="x86_64",
        resources=tmp_path,
        plugin_tree=tmp_path / "plugin",
    )


def changed(before: tuple[Stage, ...], after: tuple[Stage, ...]) -> list[str]:
    pairs = zip(before, after, strict=True)
    return [old.name for old, new in pairs if old.fingerprint != new.fingerprint]


@given(inputs=DIGESTS, name=st.text(min_size=1), digest=st.text())
def test_a_fingerprint_changes_with_any_input(
    inputs: dict[str, str], name: str, digest: str
) -> None:
    assume(inputs.get(name) != digest)
    assert fingerprint({**inputs, name: digest}) != fingerprint(inputs)


@given(inputs=DIGESTS)
def test_the_order_of_inputs_does_not_matter(inputs: dict[str, str]) -> None:
    assert fingerprint(dict(reversed(inputs.items()))) == fingerprint(inputs)


@given(content=st.binary(), other=st.binary(), mode=st.sampled_from([0o644, 0o755]))
def test_a_file_is_told_apart_by_content_and_mode(content: bytes, other: bytes, mode: int) -> None:
    file = ContextFile("a", content, mode)
    assert (replace(file, content=other).digest() == file.digest()) == (content == other)
    assert replace(file, mode=mode ^ 0o111).digest() != file.digest()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("plugin/sparkdeploy_vllm/announce.py", ["plugin"]),
        ("plugin/sparkdeploy_vllm/turboquant/decode.cu", ["plugin"]),
        ("plugin/dist-info/METADATA", ["plugin"]),
        ("plugin/cpu_fixups/cpu_engine_fixups.py", ["engine", "plugin"]),
        ("recipes/engines/locks/cpu-0.32/x86_64-py311.txt", ["engine", "plugin"]),
        ("recipes/engines/locks/cpu-0.32/x86_64-py311-torch.txt", ["engine", "plugin"]),
        ("recipes/engines/locks/uv.txt", ["engine", "plugin"]),
        ("recipes/engines/locks/cpu-0.32/aarch64-py311.txt", []),
        ("dockerfiles/plugin.Dockerfile.j2", ["plugin"]),
        ("dockerfiles/engine-wheel.Dockerfile.j2", ["engine", "plugin"]),
        ("dockerfiles/base.Dockerfile.j2", ["base", "engine", "plugin"]),
        ("recipes/v2.yaml", []),
    ],
)
def test_one_byte_changes_its_stage_and_those_above(
    copy: tuple[Path, Tree], path: str, expected: list[str]
) -> None:
    root, stages = copy
    before = stages()
    with (root / path).open("a") as stream:
        stream.write("#")
    assert changed(before, stages()) == expected


def test_caches_and_tests_of_the_plugin_stay_out(copy: tuple[Path, Tree]) -> None:
    root, stages = copy
    before = stages()
    for folder in ("plugin/sparkdeploy_vllm/__pycache__", "plugin/tests"):
        (root / folder).mkdir()
        (root / folder / "x.pyc").write_bytes(b"x")
    (root / "plugin" / "tests" / "test_x.py").write_text("")
    assert changed(before, stages()) == []


def test_the_plugin_s_stage_has_its_code_kernels_and_data(copy: tuple[Path, Tree]) -> None:
    root, stages = copy
    sent = {file.path for file in stages()[-1].context}
    package = root / "plugin" / "sparkdeploy_vllm"
    kept = {
        path.relative_to(root).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in sent if name.startswith("plugin/sparkdeploy_vllm/")} == kept
    assert "plugin/dist-info/entry_points.txt" in sent


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
