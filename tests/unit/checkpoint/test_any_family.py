"""Checkpoints of any family held against their configurations and against stated hashes."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkdeploy.checkpoint.hub_lock import HubLock, RevisionPin
from sparkdeploy.checkpoint.repo_files import RepoFile
from sparkdeploy.checkpoint.verify import verify_headers
from sparkdeploy.errors import CheckpointError
from sparkdeploy.settings import load_settings
from tests.families import NAMES, config
from tests.families.checkpoints import METHODS, Tensors, linears, packed, plain, write
from tests.unit.checkpoint.conftest import COMMIT, tree
from tests.unit.program import Run

# Of Qwen3.5-MoE every rule is known, and the twin is held against them.
KNOWN = [
    name
    for name in NAMES
    if name
    not in {
        *("bert", "cohere2", "falcon-h1", "gemma4", "granite-hybrid", "llama4", "mamba2"),
        "qwen3.5-moe",
    }
]
PACKED = ["llama", "qwen3-moe", "deepseek-v3", "nemotron-h", "qwen3-next"]


@pytest.mark.parametrize("family", KNOWN)
def test_a_checkpoint_with_all_that_its_configuration_promises_is_sound(
    tmp_path: Path, family: str
) -> None:
    found = verify_headers(write(tmp_path, plain(family), config(family)))
    assert found.tensors == len(plain(family))
    assert found.not_known == ()


@pytest.mark.parametrize("family", ["cohere2", "falcon-h1", "mamba2"])
def test_a_family_whose_tensors_are_not_known_is_not_called_broken(
    tmp_path: Path, family: str
) -> None:
    tensors: Tensors = {"model.embed_tokens.weight": ("BF16", (512, 256))}
    found = verify_headers(write(tmp_path, tensors, config(family)))
    assert "were not held against config.json" in found.not_known[0]


def test_an_architecture_and_a_packing_that_nobody_knows_are_named(tmp_path: Path) -> None:
    tensors: Tensors = {"model.layers.0.strange.weight": ("BF16", (4, 4))}
    found = {"model_type": "starship", "quantization_config": {"quant_method": "warp"}}
    said = verify_headers(write(tmp_path, tensors, found)).not_known
    assert any("'warp'" in line for line in said)
    assert any("'starship'" in line for line in said)


def problems(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        verify_headers(folder)
    return str(caught.value.detail)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_tensor_that_is_missing_or_of_another_shape_is_named(
    tmp_path: Path, data: st.DataObject
) -> None:
    family = data.draw(st.sampled_from(KNOWN))
    tensors = plain(family)
    name = data.draw(st.sampled_from(sorted(tensors)))
    dtype, shape = tensors.pop(name)
    assert name.removeprefix("model.") in problems(write(tmp_path, tensors, config(family)))
    tensors[name] = dtype, (*shape[:-1], shape[-1] + 1)
    assert name in problems(write(tmp_path, tensors, config(family)))


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_scale_that_is_missing_is_named(tmp_path: Path, data: st.DataObject) -> None:
    family, method = data.draw(st.sampled_from(PACKED)), data.draw(st.sampled_from(METHODS))
    tensors, found = packed(family, method)
    stem = data.draw(st.sampled_from(sorted(linears(family)))).removesuffix("weight")
    scales = [
        name
        for name in (f"{stem}weight_scale_inv", f"{stem}weight_scale", f"{stem}scales")
        if name in tensors
    ]
    del tensors[scales[0]]
    assert stem.rstrip(".") in problems(write(tmp_path, tensors, found))


SMALL_BYTES = 100_000
CONFIG = "config.json"


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.fixture
def snapshot(small_twin: Path) -> Path:
    """A twin as the hub's library keeps it: large blobs shared, small ones under git's hash."""
    cache = load_settings().hub_cache
    root = cache / "models--lab--twin"
    made = root / "snapshots" / COMMIT
    for folder in (root / "blobs", root / "refs", made):
        folder.mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    for file in small_twin.iterdir():
        content = file.read_bytes()
        etag = git_sha1(content)
        if len(content) >= SMALL_BYTES:
            etag = hashlib.sha256(content).hexdigest()
            xet = hashlib.sha256(b"xet" + content).hexdigest()
            store = cache / "blobs" / xet[:2]
            store.mkdir(parents=True, exist_ok=True)
            (store / xet).write_bytes(content)
            (root / "blobs" / etag).symlink_to(Path("../../blobs") / xet[:2] / xet)
        else:
            (root / "blobs" / etag).write_bytes(content)
        (made / file.name).symlink_to(Path("../../blobs") / etag)
    return made


def flip(path: Path) -> None:
    real = path.resolve()
    content = bytearray(real.read_bytes())
    content[-1] ^= 1
    real.write_bytes(content)


def own_folder(small_twin: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_twin, tmp_path / "own"))


def test_an_unpinned_snapshot_is_held_against_the_names_of_its_blobs(
    run: Run, snapshot: Path
) -> None:
    found = run.answer("checkpoint", "verify", "--deep", "lab/twin", "--json")
    assert found["unhashed"] == []
    assert found["hashed_files"] == len(list(snapshot.iterdir()))


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "twin.json"])
def test_a_changed_blob_is_found(run: Run, snapshot: Path, name: str) -> None:
    flip(snapshot / name)
    done = run("checkpoint", "verify", "--deep", "lab/twin")
    assert done.returncode == 6
    assert f"the content of {name} has changed" in done.stderr


def test_a_pin_states_the_hashes_of_small_files_too(run: Run, snapshot: Path) -> None:
    content = (snapshot / CONFIG).read_bytes()
    file = RepoFile("twin.json", len(content), None, git_sha1(content))
    pin = RevisionPin(COMMIT, is_verified=True, files=(file,))
    HubLock(load_settings().state_dir).set("lab/twin", "main", pin)
    done = run("checkpoint", "verify", "--deep", "lab/twin")
    assert done.returncode == 6
    assert "the content of twin.json has changed" in done.stderr


def test_files_that_nobody_states_a_hash_of_are_not_called_sound(run: Run, snapshot: Path) -> None:
    content = (snapshot / CONFIG).read_bytes()
    (snapshot / CONFIG).unlink()
    (snapshot / CONFIG).write_bytes(content)
    done = run("checkpoint", "verify", "--deep", "lab/twin")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = (line for line in done.stderr.splitlines() if "lab/twin:" in line)
    assert "no hash is known of 1 of 13 files" in line
    assert line.endswith(f"sparkdeploy checkpoint pull lab/twin@{COMMIT}")


def test_a_folder_of_ones_own_has_no_known_hashes(
    run: Run, small_twin: Path, tmp_path: Path
) -> None:
    folder = own_folder(small_twin, tmp_path)
    before = tree(folder)
    done = run("checkpoint", "verify", "--deep", str(folder))
    assert done.returncode == 1
    assert f"cd {folder} && sha256sum * > ../own.sha256" in done.stderr
    shown = run("checkpoint", "verify", "--deep", str(folder), "--json")
    assert (shown.returncode, len(json.loads(shown.stdout)["unhashed"])) == (1, 13)
    assert tree(folder) == before


def test_a_stale_total_is_a_warning(run: Run, small_twin: Path, tmp_path: Path) -> None:
    folder = own_folder(small_twin, tmp_path)
    index = folder / "model.safetensors.index.json"
    stated = json.loads(index.read_text())
    stated["metadata"]["total_size"] = "\x1b[2J"
    index.write_text(json.dumps(stated))
    done = run("checkpoint", "verify", str(folder), "--json")
    assert done.returncode == 0
    (warning,) = json.loads(done.stdout)["warnings"]
    assert warning in done.stderr
    assert warning.isprintable()
    assert warning.startswith("the index states ")
