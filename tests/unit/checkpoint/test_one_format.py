"""Of a repository with its weights in several formats, the one comes that vLLM reads."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.checkpoint.cache import file_system_of
from sparkdeploy.checkpoint.repo_files import (
    RepoFacts,
    RepoFile,
    is_in,
    unread_weights,
    weights_bytes,
)
from sparkdeploy.errors import CheckpointError
from sparkdeploy.settings import load_settings
from tests.hub.double import HubDouble, Repo
from tests.unit.program import Run

COMMIT = "1" * 40
GPT_OSS = {
    *("config.json", "tokenizer.json", "model-00000-of-00001.safetensors"),
    *("model-00001-of-00001.safetensors", "model.safetensors.index.json", "chat_template.jinja"),
}
"""As openai/gpt-oss-120b is laid out, with fewer files."""
GPT_OSS_MORE = {
    *("metal/model.bin", "original/config.json", "original/dtypes.json"),
    *("original/model--00001-of-00002.safetensors", "original/model--00002-of-00002.safetensors"),
}


@pytest.mark.parametrize(
    ("read", "unread"),
    [
        (GPT_OSS, GPT_OSS_MORE),
        ({"config.json", "model.safetensors"}, {"consolidated.safetensors", "model-Q4.gguf"}),
        ({"params.json", "consolidated.safetensors"}, {"consolidated.00.pth"}),
        ({"pytorch_model.bin", "config.json"}, {"original/consolidated.00.pth", "tf_model.h5"}),
        ({"model-Q4.gguf", "model-Q8.gguf", "README.md"}, set()),
        ({"a/model.safetensors", "b/model.bin"}, set()),
        ({"model.safetensors", "model_extra_tensors.safetensors"}, {"onnx/model.onnx"}),
        ({"model.safetensors", "1_Pooling/config.json", "2_Dense/model.safetensors"}, set()),
        ({"adapter_model.safetensors", "adapter_config.json"}, {"adapter_model.bin"}),
    ],
)
def test_one_format_is_read(read: set[str], unread: set[str]) -> None:
    assert unread_weights(read | unread) == unread


NAMES = st.sets(
    st.sampled_from(sorted({*GPT_OSS, *GPT_OSS_MORE, "a.bin", "b.pt", "c.gguf", "x/y.txt"}))
)


@given(NAMES)
def test_what_is_read_alone_is_read_and_no_model_loses_all_its_weights(names: set[str]) -> None:
    read = names - unread_weights(names)
    assert unread_weights(read) == frozenset()
    assert bool(read) == bool(names)
    assert {
        name for name in names if name.endswith((".json", ".jinja")) and "/" not in name
    } <= read


@pytest.fixture
def double(small_twin: Path, tmp_path: Path, hub: HubDouble) -> HubDouble:
    """The model in three formats."""
    folder = tmp_path / "three"
    shutil.copytree(small_twin, folder)
    for name in ("original/model.safetensors", "metal/model.bin", "model-Q8_0.gguf"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x" * 300_000)
    hub.repos["lab/twin"] = Repo({COMMIT: folder}, {"main": COMMIT})
    return hub


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.outside
@pytest.mark.usefixtures("no_docker")
def test_pull_fetches_one_of_three_formats_says_so_and_takes_all_when_asked(
    run: Run, double: HubDouble, small_twin: Path
) -> None:
    done = run("checkpoint", "pull", "lab/twin", "--json")
    assert done.returncode == 0, done.stderr
    snapshot = load_settings().hub_cache / "models--lab--twin" / "snapshots" / COMMIT
    assert names_in(snapshot) == names_in(small_twin)
    assert "left out 900.0 kB" in done.stderr
    assert "--all-files" in done.stderr
    twin_bytes = sum(path.stat().st_size for path in small_twin.iterdir())
    assert f'"fetched_bytes": {twin_bytes}' in done.stdout
    assert run.answer("checkpoint", "ls", "--json")[0]["state"].endswith("verified")
    assert run("checkpoint", "pull", "lab/twin", "--all-files").returncode == 0
    assert names_in(snapshot) == names_in(double.repos["lab/twin"].commits[COMMIT])
    double.seen.clear()
    assert run("checkpoint", "pull", "lab/twin").returncode == 0
    assert double.seen == []
    count = len(names_in(snapshot))
    (snapshot / "tokenizer.json").unlink()
    state = run.answer("checkpoint", "ls", "--json")[0]["state"]
    assert state.endswith(f", {count - 1} of {count} files"), "what is gone is not verified"
    gone = run("checkpoint", "verify", "lab/twin")
    assert gone.returncode == 6
    assert (
        f"has {count - 1} of {count} files of its download: tokenizer.json is gone" in gone.stderr
    )


@pytest.mark.outside
@pytest.mark.usefixtures("no_docker")
def test_a_drafter_in_a_folder_of_the_models_own_repository_comes_too(
    run: Run, double: HubDouble, tmp_path: Path
) -> None:
    inner = double.repos["lab/twin"].commits[COMMIT] / "dflash"
    inner.mkdir()
    (inner / "config.json").write_text("{}")
    for name in ("model.safetensors", "pytorch_model.bin"):
        (inner / name).write_bytes(b"x" * 100)
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "schema: 1\nname: mine\ntitle: t\nengine: cuda-0.33\nmodel: {repo: lab/twin}\n"
        "serve: {speculative: {method: dflash, model: lab/twin, subfolder: dflash, tokens: 7}}\n"
    )
    assert run("checkpoint", "pull", "lab/twin").returncode == 0
    snapshot = load_settings().hub_cache / "models--lab--twin" / "snapshots" / COMMIT
    assert not (snapshot / "dflash").exists()
    assert "lab/twin is not here; `up` asks" in run("plan", str(recipe)).stdout
    done = run("checkpoint", "pull", str(recipe))
    assert done.returncode == 0, done.stderr
    assert names_in(snapshot / "dflash") == {"config.json", "model.safetensors"}
    words = json.loads(run("plan", str(recipe), "--json").stdout)["container"]["spec"]["command"]
    drafting = json.loads(words[words.index("--speculative-config") + 1])
    assert drafting["model"].endswith(f"/snapshots/{COMMIT}/dflash")
    assert "subfolder" not in drafting
    recipe.write_text(recipe.read_text().replace("subfolder: dflash", "subfolder: eagle"))
    absent = run("checkpoint", "pull", str(recipe))
    assert absent.returncode == 6
    assert "lab/twin has no folder 'eagle'" in absent.stderr
    for folder in ("../x", "/x", ".hidden", "a//b", ""):
        refused = run("plan", str(recipe), "--set", f"serve.speculative.subfolder='{folder}'")
        assert refused.returncode == 3, folder


@given(NAMES, st.sets(st.sampled_from(["x", "original", "metal", "nowhere"]), max_size=2))
def test_models_in_folders_are_kept_where_they_are_named(
    names: set[str], folders: set[str]
) -> None:
    files = tuple(RepoFile(name, 1, None, "0" * 40) for name in sorted(names))
    facts = RepoFacts("lab/twin", "main", COMMIT, None, files)
    if not all(any(is_in(folder, name) for name in names) for folder in folders):
        with pytest.raises(CheckpointError, match="has no folder"):
            facts.of_one_format(folders)
        return
    kept = {file.name for file in facts.of_one_format(folders).files}
    assert {file.name for file in facts.of_one_format().files} <= kept
    for folder in folders:
        inner = {name.removeprefix(f"{folder}/") for name in names if is_in(folder, name)}
        assert {f"{folder}/{name}" for name in inner - unread_weights(inner)} <= kept


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
@pytest.mark.outside
@pytest.mark.usefixtures("no_docker")
def test_a_file_system_without_links_is_refused_before_the_first_byte(
    run: Run, double: HubDouble, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "no links here")

    monkeypatch.setattr(os, "symlink", refuse)
    done = run("checkpoint", "pull", "lab/twin")
    assert done.returncode == 6
    hub = load_settings().hub_cache
    assert (
        f"{hub} is on a file system without symbolic links ({file_system_of(hub)})" in done.stderr
    )
    assert double.body_bytes == 0 or not (hub / "models--lab--twin").exists()


def test_a_file_system_is_named_by_the_longest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "a / ext4 rw 0 0\nb /mnt/my\\040disk vfat rw 0 0\nc /mnt/my exfat rw 0 0\nbroken\n\n"
    )
    assert file_system_of(Path("/mnt/my disk/hub"), mounts) == "vfat"
    assert file_system_of(Path("/mnt/my/hub"), mounts) == "exfat"
    assert file_system_of(Path("/home"), mounts) == "ext4"
    assert file_system_of(Path("/home"), tmp_path / "none") == "unknown"


@pytest.mark.parametrize(
    ("files", "bytes_read"),
    [
        ({"model.safetensors": 8, "consolidated.safetensors": 8, "config.json": 1}, 8),
        ({"pytorch_model.bin": 8, "model.pt": 8, "original/model.pt": 8}, 8),
        ({"model.safetensors": 8, "2_Dense/model.safetensors": 2}, 10),
        ({"config.json": 1, "tokenizer.json": 2}, 3),
    ],
)
def test_the_size_is_that_of_what_vllm_reads(files: dict[str, int], bytes_read: int) -> None:
    assert weights_bytes(files) == bytes_read
