"""Which checkpoint a name means, what a hub says of it, and which conversions fit it."""

from __future__ import annotations

import os
import queue
import shutil
import threading
from pathlib import Path

import pytest

from sparkdeploy.authoring.model_facts import WhenMissing, facts_of
from sparkdeploy.checkpoint import published, threads
from sparkdeploy.checkpoint.contents import model_sizes, read_config, shared_expert_shapes
from sparkdeploy.checkpoint.conversion import Conversion, unfit
from sparkdeploy.checkpoint.fp8_shard import Order, fetch_shard, shard_folder, shard_store
from sparkdeploy.checkpoint.hub_lock import HubLock, RevisionPin
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.published import Remote, published_config
from sparkdeploy.checkpoint.ranges import FolderRanges
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe.schema import Weights
from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.step import Step
from tests.families import NAMES, config
from tests.families.checkpoints import METHODS, plain
from tests.unit.checkpoint.conftest import COMMIT
from tests.unit.program import Run


@pytest.fixture
def stored(hub_cache: Path, small_twin: Path, fp8_twin: Path) -> None:
    """A download, one without the branch main, a prepared checkpoint, and fetched FP8 tensors."""
    settings = load_settings()
    shutil.copytree(hub_cache, settings.hub_cache, symlinks=True)
    root = settings.hub_cache / "models--lab--twin"
    shutil.copytree(root, settings.hub_cache / "models--lab--only", symlinks=True)
    (settings.hub_cache / "models--lab--only" / "refs" / "main").unlink()
    source = open_folder(root / "snapshots" / COMMIT)
    build_overlay(source, Conversion(lm_head="int8"), settings.data_dir / "m" / "ck" / "twin-1")
    order = Order(model_sizes(read_config(small_twin)), "lab", model=small_twin)
    fetch_shard(
        FolderRanges(fp8_twin),
        order,
        shard_folder(shard_store(settings), order),
        lambda _done, _total: None,
    )


def test_every_name_that_is_listed_is_known(run: Run, stored: None) -> None:
    names = {item["name"]: item["kind"] for item in run.answer("checkpoint", "ls", "--json")}
    assert sorted(names.values()) == ["download", "download", "fp8", "prepared"]
    for name, kind in names.items():
        found = run.answer("checkpoint", "verify", name, "--json")
        assert found["fp8_weights"] == (12 if kind == "fp8" else 0)
        deep = run.answer("checkpoint", "verify", "--deep", name, "--json")
        assert (deep["unhashed"], deep["hashed_files"] > 0) == ([], True)


def test_a_changed_fp8_tensor_is_named(run: Run, stored: None) -> None:
    (shard,) = shard_store(load_settings()).glob("*/*.safetensors")
    with shard.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    done = run("checkpoint", "verify", "--deep", shard.parent.name)
    assert done.returncode == 6
    assert "fp8_" in done.stderr
    assert "has changed" in done.stderr


@pytest.mark.parametrize(
    "name", ["nonsense", "x" * 300, "a/b/c", "lab/none", "\x1b[2J/x", "/", ".", "lab/x@y@z", ""]
)
def test_nonsense_gets_one_clear_sentence(run: Run, stored: None, name: str) -> None:
    done = run("checkpoint", "verify", name)
    assert done.returncode == 6
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert said.endswith("is no checkpoint on this machine.")
    assert said.isprintable()


def test_a_path_that_nobody_has_is_a_mistake_in_usage(run: Run, stored: None) -> None:
    done = run("checkpoint", "verify", "~nobody/x")
    assert done.returncode == 2
    assert done.stderr == "error: there is no folder '~nobody/x'\n"


FP8 = Conversion(fp8_mode="online")
INT8 = Conversion(lm_head="int8")
MTP = Conversion(fp8_mode="online", mtp="required")
ALL = Conversion(fp8_mode="online", fp8_layers="all")
SHARED = Conversion(shared_experts="int4")
SHRUNK = Conversion(mtp="required", mtp_weights="int4-fp8")
# BERT has no head at all, and Mamba's configuration says nothing of one.
WITH_HEADS = [name for name in NAMES if name not in {"bert"}]


@pytest.mark.parametrize("family", ["qwen3.5-moe", "qwen3-next"])
def test_qwens_hybrids_have_every_conversion(family: str) -> None:
    for conversion in (FP8, INT8, MTP, SHARED, SHRUNK):
        assert list(unfit(config(family), conversion)) == []


def test_names_of_shared_experts_are_those_of_the_checkpoint() -> None:
    names = dict(shared_expert_shapes(model_sizes(config("qwen3-next"))))
    assert names.keys() <= plain("qwen3-next").keys()
    assert len(names) == 3 * 8


@pytest.mark.parametrize("family", ["llama", "qwen3-dense", "gpt-oss", "glm4-moe", "deepseek-v3"])
def test_who_has_no_shared_experts_of_that_kind_is_told(family: str) -> None:
    assert "layers is shared_expert" in next(unfit(config(family), FP8))
    for conversion, field in ((SHARED, "checkpoint.shared_experts"), (SHRUNK, "mtp_weights")):
        assert any(field in reason for reason in unfit(config(family), conversion))


@pytest.mark.parametrize("family", WITH_HEADS)
def test_a_head_of_its_own_can_be_int8_and_a_tied_one_not(family: str) -> None:
    reasons = list(unfit(config(family), INT8))
    # Google's configurations do not say it.
    is_tied = config(family).get("tie_word_embeddings", family.startswith("gemma"))
    assert bool(reasons) == is_tied
    assert all("so none can be converted" in reason for reason in reasons)


def test_who_has_no_draft_layer_is_told() -> None:
    assert any("no draft layer" in reason for reason in unfit(config("llama"), MTP))
    draft = Conversion(draft_rows=64)
    assert any("draft head" in reason for reason in unfit(config("llama"), draft))


@pytest.mark.parametrize("family", ["qwen3.5-moe", "qwen3-next", "glm4-moe", "deepseek-v3"])
def test_whoever_has_layers_that_draft_takes_a_draft_vocabulary(family: str) -> None:
    assert list(unfit(config(family), Conversion(draft_rows=64))) == []
    (reason,) = unfit(config(family), Conversion(draft_rows=10**9))
    assert "more than the" in reason


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_drafter_s_tokens_come_from_any_head_tied_or_not(family: str) -> None:
    tied = {**config(family), "tie_word_embeddings": True}
    assert list(unfit(tied, Conversion(draft_rows=64, has_drafter=True))) == []


@pytest.mark.parametrize("method", [*METHODS, "mxfp4", "auto-round"])
def test_every_quantisation_takes_what_it_leaves_at_16_bits(method: str) -> None:
    stated = {**config("qwen3-next"), "quantization_config": {"quant_method": method}}
    for conversion in (INT8, Conversion(draft_rows=64), ALL):
        assert list(unfit(stated, conversion)) == []


@pytest.mark.parametrize("method", ["bitsandbytes", "gguf", "torchao", "", None, 1])
def test_what_engines_load_in_ways_of_their_own_is_refused(method: object) -> None:
    stated = {**config("llama"), "quantization_config": {"quant_method": method}}
    assert any("which is not converted" in reason for reason in unfit(stated, INT8))


def test_no_conversion_fits_every_model() -> None:
    assert list(unfit({"model_type": "starship"}, Conversion())) == []


QUOTED, LACKING = "cyankiwi/GLM-4.7-Flash-AWQ-4bit", "google/gemma-4-26B-A4B-it"


def test_the_hubs_own_word_goes_before_what_others_quote(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Remote(QUOTED, config={"model_type": "of the hub"})
    monkeypatch.setattr(published, "ask_in_time", lambda *_, **__: told)
    found = published_config(Weights(repo=QUOTED), load_settings())
    assert (found.config["model_type"], found.origin) == ("of the hub", "from the hub")


def test_what_others_quote_counts_where_the_hub_is_silent() -> None:
    found = published_config(Weights(repo=QUOTED), load_settings())
    assert found.config["model_type"] == "glm4_moe_lite"


def test_what_is_known_before_a_start_is_of_the_pinned_commit(hub_cache: Path) -> None:
    settings, other = load_settings(), "9" * 40
    shutil.copytree(hub_cache, settings.hub_cache, symlinks=True)
    snapshots = settings.hub_cache / "models--lab--twin" / "snapshots"
    shutil.copytree(snapshots / COMMIT, snapshots / other, symlinks=True)
    (snapshots / other / "config.json").unlink()
    (snapshots / other / "config.json").write_text('{"model_type": "pinned"}')
    HubLock(settings.state_dir).set("lab/twin", "main", RevisionPin(other))
    asked = Weights(repo="lab/twin")
    assert published_config(asked, settings).config == {"model_type": "pinned"}
    assert facts_of(asked, settings, {}, WhenMissing.NOBODY).config == {"model_type": "pinned"}


def test_a_configuration_that_lacks_a_part_is_none() -> None:
    with pytest.raises(CheckpointError, match="what is shipped of it lacks vision_config"):
        published_config(Weights(repo=LACKING), load_settings())


def test_a_hub_that_takes_its_time_is_waited_for_in_a_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threads, "QUIET_S", 0.0)
    monkeypatch.setattr(threads, "_LOOK_EVERY_S", 0.01)
    said = queue.SimpleQueue[str]()
    monkeypatch.setattr(Step, "say", lambda _step, text: said.put(text))
    answer = threads.run_within(60, lambda: said.get(timeout=20), "asking the hub about lab/twin")
    assert answer == "no answer yet, given up after 1m00s"
    assert capsys.readouterr().err.startswith("asking the hub about lab/twin: done")


def test_who_waits_too_long_for_a_hub_is_told_by_its_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threads, "QUIET_S", 0.01)
    with pytest.raises(TimeoutError):
        threads.run_within(0.05, threading.Event().wait, "asking the hub about lab/twin")
    assert capsys.readouterr().err.startswith("asking the hub about lab/twin: failed")
