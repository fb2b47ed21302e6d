"""Looking at a node: which registry is asked, and what a closed cache is called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy.errors import NodeError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.node import Node, Nodes, node_behind
from sparkdeploy.plan import observe as module
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.make import draft_plan
from sparkdeploy.plan.models import locate_model
from sparkdeploy.plan.observed import MissingModel, ObservedNode
from sparkdeploy.plan.steps import Plan
from sparkdeploy.recipe.document import KeyPath
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.paths import DRAFTERS, FP8_SOURCE, MODEL_PATH
from sparkdeploy.settings import load_settings
from tests.fakes.containers import FakeContainers
from tests.fakes.fabric import node_fact, spark


def only(engine: FakeContainers) -> Nodes:
    return Nodes(node_behind("here", engine.host))


def test_the_configured_registry_is_the_one_that_is_asked(shipped: Library) -> None:
    settings = load_settings({"SPARKDEPLOY_CONTAINER_REGISTRY": "mirror.lab:5000"})
    engine = FakeContainers()
    resolved = load_recipe(shipped, "v2")
    nodes = only(engine)
    seen = module.observe(resolved, settings, nodes, Deployment("main"))
    assert seen.base_source == "registry"
    assert engine.looked_up == ["mirror.lab:5000/library/debian:bookworm-slim"]


def test_a_cache_this_user_may_not_enter_is_named(
    shipped: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = str(tmp_path / "hub")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", closed)

    monkeypatch.setattr("sparkdeploy.plan.models._find_source", refuse)
    settings = replace(load_settings(), hub_cache=tmp_path / "hub")
    with pytest.raises(NodeError, match=closed):
        locate_model(load_recipe(shipped, "v2").recipe, settings)


def test_a_container_of_somebody_else_with_the_name_is_a_problem_from_the_start(
    shipped: Library,
) -> None:
    stranger = ContainerFact("x", "sparkdeploy-main", "i", "exited", {})
    nodes, resolved = only(FakeContainers.of(stranger)), load_recipe(shipped, "v2")
    for name, is_problem in (("main", True), ("other", False)):
        plan = draft_plan(resolved, load_settings(), nodes, Deployment(name))
        found = [item.seen for item in plan.problems if item.check == "deployments.name"]
        assert len(found) == is_problem


@pytest.mark.parametrize(
    ("sizes", "missing_bytes"), [((5, None), None), ((5, 7), 12), ((None,), None), ((), 0)]
)
def test_a_worker_is_sent_what_the_head_has_yet_to_fetch(
    sizes: tuple[int | None, ...], missing_bytes: int | None
) -> None:
    models = tuple(MissingModel("a/b", "fetch", size_bytes) for size_bytes in sizes)
    head, worker = (ObservedNode(node_fact(number)) for number in (1, 2))
    nodes = Nodes(Node("spark-1", spark(1)), (Node("spark-2", spark(2)),))
    assert module._with_weights(worker, head, models, nodes).missing_bytes == missing_bytes


def planned_folder(shipped: Library, folder: Path, *settings: str) -> Plan:
    resolved = load_recipe(shipped, "baseline", (f"model.path={folder}", *settings))
    nodes = only(FakeContainers())
    return draft_plan(resolved, load_settings(), nodes, Deployment("main"))


@pytest.mark.parametrize(
    ("file", "settings", "is_problem"),
    [
        ("README.md", (), True),
        ("model-00001-of-00002.safetensors", (), False),
        ("consolidated.safetensors", (), False),
        ("pytorch_model.bin", (), False),
        ("model-Q4.gguf", (), False),
        ("README.md", ("serve.load_format=dummy",), False),
    ],
)
def test_a_folder_without_weights_is_a_problem_unless_none_are_needed(
    shipped: Library, tmp_path: Path, file: str, settings: tuple[str, ...], is_problem: bool
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (folder / file).write_text("x")
    made = planned_folder(shipped, folder, *settings)
    found = [item for item in made.problems if item.check == "model.weights"]
    assert bool(found) == is_problem
    if is_problem:
        assert f"{folder} holds no weights: no .safetensors files" in found[0].seen
        assert found[0].blocks == "prepare"
        budget = next(item for item in made.findings if item.check == "machine.room")
        assert "memory was not checked" in budget.seen


CONSENT = ("allow_unsafe=true",)


def exchange_problems(plan: Plan) -> list[str]:
    return [item.seen for item in plan.problems if item.check == "folders.exchange"]


@pytest.mark.parametrize(("mode", "is_problem"), [(0o755, False), (0o777, True), (0o1777, False)])
def test_a_hub_cache_that_every_user_may_write_to_is_a_problem(
    shipped: Library, tmp_path: Path, mode: int, is_problem: bool
) -> None:
    snapshot = tmp_path / "hub" / "models--lab--tiny" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (snapshot / "model.safetensors").write_text("x")
    (tmp_path / "hub").chmod(mode)
    settings = replace(load_settings(), hub_cache=tmp_path / "hub")
    nodes = only(FakeContainers())
    for consent in ((), CONSENT):
        revision = ("model.repo=lab/tiny", f"model.revision={'a' * 40}")
        resolved = load_recipe(shipped, "baseline", (*revision, *consent))
        plan = draft_plan(resolved, settings, nodes, Deployment("main"))
        assert not plan.observed.missing
        assert bool(exchange_problems(plan)) == (is_problem and not consent)


@pytest.mark.parametrize("changed", ["run.sh", "patches/a.diff", "patches", "."])
def test_a_mod_that_others_may_change_is_a_problem(
    shipped: Library, tmp_path: Path, changed: str
) -> None:
    mod = tmp_path / "mod"
    (mod / "patches").mkdir(parents=True)
    (mod / "run.sh").write_text("true\n")
    (mod / "patches" / "a.diff").write_text("")
    setting = f"mods=[{{folder: {mod}}}]"
    nodes = only(FakeContainers())
    for path, consent, count in ((None, (), 0), (mod / changed, (), 1), (None, CONSENT, 0)):
        if path is not None:
            path.chmod(0o777)
        resolved = load_recipe(shipped, "baseline", (setting, *consent))
        plan = draft_plan(resolved, load_settings(), nodes, Deployment("main"))
        found = exchange_problems(plan)
        assert len(found) == count
        assert all(f"{(mod / changed).resolve()}: every user" in it for it in found)


SETTINGS_THAT_NAME_A_FOLDER = {
    MODEL_PATH: "model.path={}",
    FP8_SOURCE: "checkpoint.fp8_dense={{mode: prebuilt, source: {}}}",
    DRAFTERS[0]: "serve.speculative={{method: draft_model, model: {}, tokens: 2}}",
    ("serve", "lora", 0, "path"): "serve.lora=[{{name: sql, path: {}}}]",
}


@pytest.mark.parametrize("key", SETTINGS_THAT_NAME_A_FOLDER)
def test_a_folder_that_others_may_exchange_is_a_problem_without_consent(
    shipped: Library, tmp_path: Path, key: KeyPath
) -> None:
    folder = tmp_path / "shared" / "weights"
    folder.mkdir(parents=True)
    name = "adapter_config.json" if "lora" in key else "config.json"
    (folder / name).write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    setting = SETTINGS_THAT_NAME_A_FOLDER[key].format(folder)
    nodes = only(FakeContainers())
    for mode, consent, count in ((0o755, (), 0), (0o777, (), 1), (0o777, CONSENT, 0)):
        folder.parent.chmod(mode)
        resolved = load_recipe(shipped, "baseline", (setting, *consent))
        plan = draft_plan(resolved, load_settings(), nodes, Deployment("main"))
        found = [item for item in plan.problems if item.check == "folders.exchange"]
        assert len(found) == count
        assert all(str(item.fix).startswith(f"chmod o-w {folder.parent}, or") for item in found)
