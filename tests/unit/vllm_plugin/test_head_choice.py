"""Which tiles the INT8 head takes: tuned, shipped or default, and what it makes of bad files."""

# mypy: disable-error-code="import-not-found"

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkdeploy_vllm.head.tiles import DEFAULT, GB10, HOPPER, HeadKey, HeadTile, kernel_fingerprint
from sparkdeploy_vllm.tuning.tiles import (
    Choice,
    Tuned,
    choose,
    tuned_folder,
    tuned_path,
    write_tuned,
)

from tests.unit.vllm_plugin.conftest import PLUGIN_TREE

KEY = HeadKey("NVIDIA GB10", (12, 1), 248_320, 3072, kernel_fingerprint(), "3.6.0")
H200 = replace(KEY, card="NVIDIA H200", capability=(9, 0))
A100 = replace(KEY, card="NVIDIA A100-SXM4-80GB", capability=(8, 0))
TUNED = (
    HeadTile("gathered", rows=8, vocab=128, hidden=128, warps=4, stages=4),
    HeadTile("gathered", rows=16, vocab=128, hidden=64, warps=2, stages=3),
    HeadTile("gathered", rows=64, vocab=64, hidden=64, warps=8, stages=2),
)


def store(folder: Path, key: HeadKey = KEY, tiles: tuple[HeadTile, ...] = TUNED) -> Path:
    """Write tuned tiles as `tune_head` does."""
    tuned = [Tuned(tile, {tile.rows: 2.81}, {tile.rows: 2.93}) for tile in tiles]
    return Path(write_tuned(key, tuned, {"torch": "2.11.0"}, folder))


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite a file of tiles with one thing changed."""
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def test_without_a_file_each_card_gets_what_ships_for_it(tmp_path: Path) -> None:
    chosen = {key.card: choose(key, tmp_path) for key in (KEY, H200, A100)}
    assert {card: (c.source, c.tiles, c.ignored) for card, c in chosen.items()} == {
        "NVIDIA GB10": ("shipped", GB10.tiles, ""),
        "NVIDIA H200": ("shipped", HOPPER.tiles, ""),
        "NVIDIA A100-SXM4-80GB": ("default", DEFAULT.tiles, ""),
    }


def test_what_was_tuned_is_taken_and_says_what_it_was_tuned_for(tmp_path: Path) -> None:
    path = store(tmp_path)
    choice = choose(KEY, tmp_path)
    assert (choice.source, choice.tiles, choice.ignored) == ("tuned", TUNED, "")
    document = json.loads(path.read_text())
    assert document["key"] == {**asdict(KEY), "capability": [12, 1]}
    assert document["tiles"][0] == {
        **asdict(TUNED[0]),
        "ms": {"8": 2.81},
        "shipped_ms": {"8": 2.93},
    }


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, kernel="0123456789ab"),
        replace(KEY, triton="3.8.0"),
        replace(KEY, capability=(12, 0)),
        replace(KEY, card="NVIDIA RTX 6000"),
        replace(KEY, vocab=1024),
        replace(KEY, hidden=2048),
    ],
)
def test_a_foreign_file_is_ignored_and_says_what_it_is_for(tmp_path: Path, other: HeadKey) -> None:
    store(tmp_path, other).rename(tuned_path(KEY, tmp_path))
    choice = choose(KEY, tmp_path)
    assert (choice.source, choice.tiles) == ("shipped", GB10.tiles)
    assert str(tuned_path(KEY, tmp_path)) in choice.ignored
    assert "it was made for" in choice.ignored


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda it: it.update(schema=2), "schema"),
        (lambda it: it.pop("key"), "damaged: KeyError: 'key'"),
        (lambda it: it["key"].pop("triton"), "damaged: KeyError: 'triton'"),
        (lambda it: it.pop("tiles"), "damaged: KeyError"),
        (lambda it: it.update(tiles=[]), "must ascend"),
        (lambda it: it.update(tiles=[7]), "damaged: TypeError"),
        (lambda it: it["tiles"][0].pop("warps"), "damaged: KeyError: 'warps'"),
        (lambda it: it["tiles"][0].update(warps=3), "warps is 3"),
        (lambda it: it["tiles"][0].update(vocab=1 << 40), "vocab is"),
        (lambda it: it["tiles"][0].update(path="../../etc"), "path is"),
        (lambda it: it["tiles"][0].update(path="streamed"), "path is 'streamed'"),
        (lambda it: it["tiles"][0].update(path=["gathered"]), "path is"),
        # One request with and without speculation must share a tile.
        (lambda it: it["tiles"].pop(0), "must ascend from 8"),
        (lambda it: it["tiles"].pop(), "to 64 or more"),
        (lambda it: it["tiles"].reverse(), "must ascend"),
        (lambda it: it["tiles"].append(it["tiles"][-1]), "must ascend"),
    ],
)
def test_a_file_that_was_edited_is_ignored(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], why: str
) -> None:
    change(store(tmp_path), edit)
    choice = choose(KEY, tmp_path)
    assert (choice.source, choice.tiles) == ("shipped", GB10.tiles)
    assert why in choice.ignored


@given(content=st.binary(max_size=300) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["schema", "key", "tiles", "rows", "card"]), inner),
).map(lambda document: json.dumps(document).encode()))  # fmt: skip
def test_no_file_fails_a_start(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("tiles")
    tuned_path(KEY, folder).write_bytes(content)
    choice: Choice[HeadTile] = choose(KEY, folder)
    assert (choice.source, choice.tiles) == ("shipped", GB10.tiles)


def test_the_folder_is_in_the_cache_that_a_container_keeps() -> None:
    assert tuned_folder(KEY, {"XDG_CACHE_HOME": "/cache/xdg"}) == Path(
        "/cache/xdg/sparkdeploy/int8-head"
    )
    assert tuned_folder(KEY, {}) == Path("~/.cache/sparkdeploy/int8-head").expanduser()


def test_a_card_s_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    path = tuned_path(replace(KEY, card="../../NVIDIA / GB10 (a)"), tmp_path)
    assert path == tmp_path / "nvidia-gb10-a-sm121-248320x3072.json"


COMMAND = PLUGIN_TREE / "sparkdeploy_vllm" / "tune_head.py"
SERVING = ("head/*.py", "turboquant/*.py", "weights/*.py", "drafts/*.py", "*.py")


@pytest.mark.parametrize("pattern", SERVING)
def test_what_serves_never_imports_the_search(pattern: str) -> None:
    """Nothing can be tuned in a forward pass or a capture."""
    files = [it for it in (PLUGIN_TREE / "sparkdeploy_vllm").glob(pattern) if it != COMMAND]
    assert files
    for path in files:
        assert not re.search(r"tuning(\.| import )(search|stands)", path.read_text()), path
