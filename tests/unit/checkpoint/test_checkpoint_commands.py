"""`checkpoint pull`, `ls` and `rm`, and what `up` fetches, against a hub of our own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.deploy.request import Request, bring_models, resolve
from sparkdeploy.errors import CheckpointError
from sparkdeploy.node.lock import node_lock
from sparkdeploy.node.node import Nodes, node_behind
from sparkdeploy.plan.make import draft_plan
from sparkdeploy.plan.steps import Action, Plan
from sparkdeploy.settings import load_settings
from tests.hub.double import HubDouble, Repo
from tests.unit.checkpoint.tensor_kinds import shares_of
from tests.unit.program import Run

pytestmark = [pytest.mark.outside, pytest.mark.usefixtures("no_docker")]

COMMIT, MOVED = "1" * 40, "2" * 40
SETS = ("model.repo=lab/twin", "engine=cpu-0.32", "serve.attention_backend=null")


@pytest.fixture
def double(small_twin: Path, hub: HubDouble) -> HubDouble:
    hub.repos["lab/twin"] = Repo({COMMIT: small_twin}, {"main": COMMIT})
    return hub


def plan_of(recipe: str, *sets: str) -> Plan:
    settings = load_settings()
    request = Request(recipe, (*SETS, *sets))
    nodes = Nodes(node_behind("laptop", None))
    return draft_plan(resolve(request, settings), settings, nodes, request.deployment)


def test_pull_says_bytes_disk_and_licence_and_answers_with_the_folder(
    run: Run, double: HubDouble
) -> None:
    done = run("checkpoint", "pull", "lab/twin")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"models--lab--twin/snapshots/{COMMIT}")
    said = done.stderr.splitlines()[0]
    assert said.startswith("lab/twin at 111111111111: ")
    assert "to download of" in said
    assert "free in" in said
    assert said.endswith("licence apache-2.0")


def test_ls_shows_what_rm_then_deletes(run: Run, double: HubDouble) -> None:
    run("checkpoint", "pull", "lab/twin")
    listed = run.answer("checkpoint", "ls", "--json")
    assert [(item["kind"], item["name"]) for item in listed] == [("download", "lab/twin")]
    assert listed[0]["state"] == "main = 111111111111, verified"
    titles, line = run("checkpoint", "ls").stdout.splitlines()
    assert titles.split() == ["kind", "size", "name", "state"]
    assert line.startswith("download ")
    assert line.endswith("  lab/twin  main = 111111111111, verified")
    assert run("checkpoint", "rm", "lab/twin").returncode == 1
    assert run("checkpoint", "rm", "lab/twin", "--yes").returncode == 0
    assert run.answer("checkpoint", "ls", "--json") == []
    assert HubLock(load_settings().state_dir).pin("lab/twin", "main") is None
    assert run("checkpoint", "rm", "lab/twin", "--yes").returncode == 6


def test_rm_deletes_nothing_that_an_up_uses_or_while_another_command_changes_the_machine(
    run: Run, double: HubDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("checkpoint", "pull", "lab/twin")
    monkeypatch.setattr("sparkdeploy.deploy.lock.LOCK_WAIT_S", 0.0)
    settings = load_settings()
    for ending, words in (("", "is being changed by"), ("-main.use", "lab/twin is used by")):
        name = f"{settings.node_name}{ending}"
        with node_lock(settings.lock_dir, name, command="sparkdeploy up", uses=("lab/twin",)):
            refused = run("checkpoint", "rm", "lab/twin", "--yes")
        assert (refused.returncode, words in refused.stderr) == (4, True)


def test_a_plan_fetches_a_missing_model_after_a_yes(double: HubDouble) -> None:
    plan = plan_of("baseline")
    assert plan.checkpoint.action is Action.FETCH
    asked: list[str] = []

    def agree(question: str) -> bool:
        asked.append(question)
        return True

    with pytest.raises(CheckpointError, match="nothing is downloaded: is its disk there") as unit:
        bring_models(plan, load_settings(), agree, may_download=False)
    assert "--prepare" in (unit.value.hint or "")
    assert bring_models(plan, load_settings(), agree)
    assert len(asked) == 1
    assert asked[0].startswith("Download lab/twin (")
    after = plan_of("baseline")
    assert after.checkpoint.action is Action.REUSE
    assert not bring_models(after, load_settings(), lambda _question: False)


def test_a_drafter_is_fetched_with_its_model(double: HubDouble, small_twin: Path) -> None:
    double.repos["lab/draft"] = replace(double.repos["lab/twin"])
    drafter = ("serve.speculative={method: dflash, tokens: 3, model: lab/draft}",)
    plan = plan_of("baseline", "engine=cuda-0.33", *drafter)
    assert bring_models(plan, load_settings(), lambda _question: True)
    lock = HubLock(load_settings().state_dir)
    assert {repo for repo, _ in lock.pins()} == {"lab/twin", "lab/draft"}


FP8_COMMIT = "8" * 40
PREBUILT = (
    "--set=checkpoint.fp8_dense.mode=prebuilt",
    "--set=checkpoint.fp8_dense.source=lab/fp8",
    *(f"--set={assignment}" for assignment in SETS),
)


@pytest.fixture
def fp8_double(double: HubDouble, fp8_twin: Path) -> HubDouble:
    double.repos["lab/fp8"] = Repo({FP8_COMMIT: fp8_twin}, {"main": FP8_COMMIT})
    return double


def test_build_writes_a_standalone_checkpoint_that_verify_knows(
    run: Run, fp8_double: HubDouble, tmp_path: Path
) -> None:
    run("checkpoint", "pull", "lab/twin")
    out = str(tmp_path / "standalone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparkdeploy.node.facts.free_bytes", lambda _path: 10)
        refused = run("checkpoint", "build", "hybrid", *PREBUILT, "--standalone", out)
    assert (refused.returncode, "10 B are free" in refused.stderr) == (6, True)
    done = run("checkpoint", "build", "hybrid", *PREBUILT, "--standalone", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{out}: 12 FP8 weights, 23 MTP tensors"
    pin = HubLock(load_settings().state_dir).pin("lab/fp8", "main")
    assert pin is not None
    assert pin.commit == FP8_COMMIT
    assert run.answer("checkpoint", "verify", out, "--deep", "--json")["unhashed"] == []
    kept = [item for item in run.answer("checkpoint", "ls", "--json") if item["kind"] == "fp8"]
    assert [item["state"] for item in kept] == [f"from lab/fp8@{FP8_COMMIT}"]
    assert run("checkpoint", "rm", kept[0]["name"], "--yes").returncode == 0
    assert shares_of(Path(out))["shared experts", "F8_E4M3"].tensors == 12


def test_verify_deep_holds_a_download_against_the_hub(run: Run, double: HubDouble) -> None:
    folder = run("checkpoint", "pull", "lab/twin").stdout.strip()
    found = run.answer("checkpoint", "verify", "lab/twin", "--deep", "--json")
    assert found["hashed_files"] >= 4
    shard = next(load_settings().hub_cache.glob("**/snapshots/*/model-00001*"))
    assert str(shard).startswith(folder)
    blob = shard.resolve()
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    done = run("checkpoint", "verify", "lab/twin", "--deep")
    assert done.returncode == 6
    assert "model-00001" in done.stderr
