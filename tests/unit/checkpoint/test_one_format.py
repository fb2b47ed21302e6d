"""Of a repository with its weights in several formats, the one comes that vLLM reads."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.checkpoint.repo_files import unread_weights, weights_bytes
from sparkdeploy.settings import load_settings
from tests.hub.double import HubDouble, Repo, hub_double

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
def double(
    small_twin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubDouble]:
    """The model in three formats."""
    folder = tmp_path / "three"
    shutil.copytree(small_twin, folder)
    for name in ("original/model.safetensors", "metal/model.bin", "model-Q8_0.gguf"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x" * 300_000)
    with hub_double() as made:
        made.repos["lab/twin"] = Repo({COMMIT: folder}, {"main": COMMIT})
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        yield made


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
