"""The complete rewritten checkpoint, and the look that finds every flaw of one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.checkpoint.contents import model_sizes, read_config, read_tensors
from sparkdeploy.checkpoint.fp8 import expected_fp8
from sparkdeploy.checkpoint.fp8_shard import Fp8Shard, Order, fetch_shard
from sparkdeploy.checkpoint.manifest import MANIFEST_FILE, read_manifest
from sparkdeploy.checkpoint.ranges import FolderRanges
from sparkdeploy.checkpoint.safetensors import TensorData, read_header, write_file
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.checkpoint.verify import verify_bytes, verify_headers
from sparkdeploy.errors import CheckpointError
from tests.fakes.checkpoints import edit_json, edit_tensors, ignore, standalone, tensors_of
from tests.unit.checkpoint.conftest import tree
from tests.unit.checkpoint.tensor_kinds import shares_of

GATE = "model.language_model.layers.0.mlp.shared_expert.gate_proj"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="session")
def shard(fp8_twin: Path, small_twin: Path, tmp_path_factory: pytest.TempPathFactory) -> Fp8Shard:
    folder = tmp_path_factory.mktemp("store") / "shard"
    return _shard(fp8_twin, small_twin, folder)


@pytest.fixture
def made(folder: Path, shard: Fp8Shard, tmp_path: Path) -> Path:
    """A standalone checkpoint that a test may damage."""
    out = tmp_path / "standalone"
    standalone(open_folder(folder), shard, out)
    return out


def _shard(fp8: Path, twin: Path, out: Path) -> Fp8Shard:
    order = Order(model_sizes(read_config(twin)), "lab", twin)
    return fetch_shard(FolderRanges(fp8), order, out, ignore)


def contents_of(folder: Path) -> dict[str, bytes]:
    """Every tensor's bytes."""
    return {
        name: content
        for path in folder.glob("*.safetensors")
        for name, (_, _, content) in tensors_of(path).items()
        if isinstance(content, bytes)
    }


def test_fp8_stands_under_the_original_names_and_all_else_is_as_it_was(
    made: Path, small_twin: Path, fp8_twin: Path
) -> None:
    before, after = read_tensors(small_twin), read_tensors(made)
    fp8 = expected_fp8(model_sizes(read_config(small_twin))).keys()
    assert set(after) == set(before) | fp8
    found, plain, fp8_bytes = (contents_of(folder) for folder in (made, small_twin, fp8_twin))
    for name, located in after.items():
        assert found[name] == (fp8_bytes if name in fp8 else plain)[name], name
        if name in before:
            assert located.file == before[name].file


def test_it_is_complete_with_mtp_and_readable_by_everybody(made: Path, small_twin: Path) -> None:
    manifest = read_manifest(made)
    assert manifest is not None
    assert (manifest.fp8_layer_count, manifest.mtp_tensor_count) == (12, 2 * 3 + 17)
    for path in made.rglob("*"):
        assert path.stat().st_mode & 0o777 == 0o644
        assert not path.is_symlink()
    assert made.stat().st_mode & 0o777 == 0o755
    for path in made.glob("*.safetensors"):
        assert read_header(path).metadata["format"] == "pt"
    names = {path.name for path in small_twin.iterdir()}
    assert {path.name for path in made.iterdir()} == names | {MANIFEST_FILE}


def test_the_source_is_not_touched_and_twice_is_once(
    folder: Path, shard: Fp8Shard, tmp_path: Path
) -> None:
    before = tree(folder)
    standalone(open_folder(folder), shard, tmp_path / "out")
    first = tree(tmp_path / "out")
    standalone(open_folder(folder), shard, tmp_path / "out")
    assert tree(tmp_path / "out") == first
    assert tree(folder) == before


def test_one_flipped_bit_is_found_anywhere(made: Path) -> None:
    for path in sorted(made.glob("*.safetensors")):
        content = path.read_bytes()
        for at in (read_header(path).data_offset, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
            with pytest.raises(CheckpointError, match=path.name):
                verify_bytes(made, {}, ignore)
        path.write_bytes(content)
    verify_bytes(made, {}, ignore)


def _edit(folder: Path, change: Callable[[dict[str, TensorData]], object]) -> None:
    places = {}
    for path in folder.glob("*.safetensors"):
        places.update(dict.fromkeys(edit_tensors(path, change), path.name))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _halve_scale(tensors: dict[str, TensorData]) -> None:
    name = f"{GATE}.weight_scale_inv"
    if name in tensors:
        tensors[name] = ("BF16", (1, 1), b"xx")


def _index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit_json(folder / INDEX, change)


def _name_another_kind_of_file(folder: Path) -> None:
    _index(folder, lambda content: content["weight_map"].update({"lm_head.weight": "config.json"}))


def _edit_config(folder: Path, part: str, **changes: object) -> None:
    edit_json(folder / "config.json", lambda config: config[part].update(changes))


def _duplicate(folder: Path) -> None:
    write_file(folder / "more.safetensors", {"lm_head.weight": ("BF16", (1,), b"xx")})
    _index(folder, lambda content: content["weight_map"].update({"x": "more.safetensors"}))
    write_file(
        folder / "more.safetensors",
        {"lm_head.weight": ("BF16", (1,), b"xx"), "x": ("BF16", (1,), b"xx")},
    )


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: _edit(f, lambda t: t.pop("mtp.layers.0.mlp.gate.weight", None)), "draft layer"),
        (lambda f: _edit(f, lambda t: t.pop(f"{GATE}.weight_scale_inv", None)), "missing: "),
        (lambda f: _edit(f, _halve_scale), r"weight_scale_inv is BF16 \[1, 1\]"),
        (lambda f: _index(f, lambda c: c["weight_map"].pop("lm_head.weight")), "does not list"),
        (lambda f: _index(f, lambda c: c.update(metadata=[])), "metadata of the index is not"),
        (lambda f: _index(f, lambda c: c.update(metadata=None)), "metadata of the index is not"),
        (_name_another_kind_of_file, "'config.json' is no .safetensors file"),
        (lambda f: _edit_config(f, "text_config", hidden_size=256), "config.json says"),
        (_duplicate, "two indexed files hold lm_head.weight"),
        (lambda f: (f / MANIFEST_FILE).write_text("{"), "is not whole"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json of sparkdeploy.json"),
    ],
    ids=[
        *("mtp", "scale", "scale-shape", "unlisted", "metadata", "no-metadata", "kind"),
        *("config", "twice", "manifest", "lost"),
    ],
)
def test_every_flaw_is_found_and_named(
    made: Path, damage: Callable[[Path], object], said: str
) -> None:
    damage(made)
    with pytest.raises(CheckpointError) as caught:
        verify_headers(made)
    assert re.search(said, f"{caught.value.message}\n{caught.value.detail}")


def test_a_checkpoint_is_told_by_kind_and_dtype(made: Path) -> None:
    shares = shares_of(made)
    assert shares["shared experts", "F8_E4M3"].tensors == 12
    drafting = [shares[f"MTP {part}", "BF16"] for part in ("experts", "layer without experts")]
    assert sum(share.tensors for share in drafting) == 23
    assert shares["LM head", "BF16"].size_bytes == 320 * 128 * 2


def test_another_checkpoint_is_replaced_only_when_that_was_said(
    made: Path, folder: Path, shard: Fp8Shard
) -> None:
    before = tree(made)
    edit_json(folder / "config.json", lambda it: it.update(note="newer"))
    with pytest.raises(CheckpointError, match="holds another checkpoint"):
        standalone(open_folder(folder), shard, made)
    assert tree(made) == before
    standalone(open_folder(folder), shard, made, overwrite=True)
    assert read_config(made)["note"] == "newer"
