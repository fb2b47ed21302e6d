"""Plans as tables: facts in, actions out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdeploy import labels
from sparkdeploy.checks.report import Verdict
from sparkdeploy.image.lock import Architecture
from sparkdeploy.image.stages import BaseSource, Stage
from sparkdeploy.node.container import ContainerFact, ImageFact
from sparkdeploy.node.facts import GpuFact, NodeFact
from sparkdeploy.node.ports import PortOwner
from sparkdeploy.plan.images import NOT_NEEDED, choose_base_source, image_steps
from sparkdeploy.plan.observed import MissingModel, Observed, ObservedNode
from sparkdeploy.plan.preflight import doctor_findings
from sparkdeploy.plan.report import plan_lines
from sparkdeploy.plan.steps import Action, Plan, plan_as_dict
from sparkdeploy.recipe.load import Library, load_engine
from sparkdeploy.settings import load_settings, resources
from tests.fakes.plans import (
    GIB,
    LAPTOP,
    SPARK,
    built,
    changed,
    drafter_fact,
    made_stages,
    model_fact,
    observed,
    plan,
    running,
)
from tests.unit.plain import plain_lines


def settled(shipped: Library) -> Observed:
    """What is observed after the plan for an empty Spark was applied."""
    first = plan(shipped, observed())
    assert first.head.spec is not None
    images = {step.stage.tag: built(step.stage) for step in first.images}
    return observed(images=images, containers=(running(first.head.spec),))


def ended(facts: Observed, code: int | None) -> ContainerFact:
    """The container that was observed, after its end."""
    (there,) = facts.head.containers
    assert isinstance(there, ContainerFact)
    return replace(there, state="exited", exit_code=code)


def actions(made: Plan) -> list[Action]:
    return [*(step.action for step in made.images), made.checkpoint.action, made.head.action]


def messages(made: Plan) -> str:
    return "\n".join(problem.seen for problem in made.problems)


def test_an_empty_spark_builds_everything_and_starts(shipped: Library) -> None:
    made = plan(shipped, observed())
    assert actions(made) == [Action.BUILD] * 3 + [Action.REUSE, Action.START]
    assert made.problems == ()


def test_after_applying_every_step_is_reuse(shipped: Library) -> None:
    made = plan(shipped, settled(shipped))
    assert actions(made) == [Action.REUSE] * 5
    assert not made.has_work


def test_a_serve_setting_replaces_the_container_and_rebuilds_nothing(shipped: Library) -> None:
    made = plan(shipped, settled(shipped), "v2", "serve.max_num_seqs=3")
    assert actions(made) == [Action.REUSE] * 4 + [Action.REPLACE]


@pytest.mark.parametrize("code", [1, 86, 87, 137, None])
def test_a_container_that_died_is_replaced(shipped: Library, code: int | None) -> None:
    facts = settled(shipped)
    died = ended(facts, code)
    made = plan(shipped, changed(facts, containers=(died,)))
    assert made.head.action is Action.REPLACE
    assert "exited" in made.head.reason


@pytest.mark.parametrize("code", [0, 143, 88])
def test_a_stopped_container_starts_again_where_it_is_what_is_asked_for(
    shipped: Library, code: int
) -> None:
    facts = settled(shipped)
    stopped = ended(facts, code)
    made = plan(shipped, changed(facts, containers=(stopped,)))
    assert (made.head.action, made.head.stopped) == (Action.START, stopped)
    assert made.head.reason == "stopped; the same container starts again"
    other = plan(shipped, changed(facts, containers=(stopped,)), "v2", "serve.max_num_seqs=3")
    assert (other.head.action, other.head.stopped) == (Action.REPLACE, None)
    killed = replace(stopped, oom_killed=True)
    assert plan(shipped, changed(facts, containers=(killed,))).head.action is Action.REPLACE


def test_baseline_mounts_the_untouched_download(shipped: Library) -> None:
    made = plan(shipped, observed(model=model_fact(treated=False)), "baseline")
    assert made.checkpoint.reason == "the untouched download is mounted"
    assert made.head.spec is not None
    assert [mount.target for mount in made.head.spec.mounts] == [
        "/m/hub/models--Intel--Qwen3.5-122B-A10B-int4-AutoRound",
        "/cache",
    ]


def test_files_of_the_shared_store_are_mounted_one_by_one(shipped: Library) -> None:
    stored = [Path(f"/hub/blobs/{digit * 2}/{digit * 64}") for digit in "ba"]
    model = model_fact(treated=False, shared=tuple(stored))
    made = plan(
        shipped, observed(model=model, companions=(replace(drafter_fact(), shared=(stored[0],)),))
    )
    assert made.head.spec is not None
    mounts = {mount.source: mount for mount in made.head.spec.mounts}
    for path in stored:
        assert mounts[str(path)].target == f"/m/hub/blobs/{path.parent.name}/{path.name}"
        assert mounts[str(path)].mode == "ro"
    assert len(mounts) == len(made.head.spec.mounts)
    assert "/hub/blobs" not in mounts


def test_a_missing_model_is_fetched_and_its_bytes_are_said(shipped: Library) -> None:
    missing = MissingModel("a/b", "sparkdeploy checkpoint pull a/b", 72 * 10**9)
    made = plan(shipped, observed(model=missing))
    assert made.checkpoint.action is Action.FETCH
    assert made.head.spec is None
    assert made.problems == ()
    assert made.head.needs.download_bytes == 72 * 10**9


@pytest.mark.parametrize(("gpu_gib", "fits"), [(40, False), (141, True)])
def test_a_gpu_with_memory_of_its_own_is_planned_with_that(
    shipped: Library, gpu_gib: int, fits: bool
) -> None:
    gpu = GpuFact("NVIDIA H200", "9.0", memory_bytes=gpu_gib * GIB)
    node = replace(SPARK, gpu=gpu, memory_available_bytes=20 * GIB)
    missing = MissingModel("a/b", "sparkdeploy checkpoint pull a/b", 72 * 10**9)
    told = messages(plan(shipped, observed(node=node, model=missing)))
    assert ("(0.85 of the GPU's memory)" in told) == (not fits), told
    assert "kept free for the machine" not in told


def test_a_download_that_was_cut_needs_room_for_the_rest_only(shipped: Library) -> None:
    node = replace(SPARK, data_free_bytes=40 * 10**9)
    cut = MissingModel("a/b", "sparkdeploy checkpoint pull a/b", 72 * 10**9, "main", 60 * 10**9)
    made = plan(shipped, observed(node=node, model=cut))
    assert made.problems == ()
    assert made.head.needs.download_bytes == 12 * 10**9
    assert "a/b is incomplete: 12.0 GB of 72.0 GB to download" in made.checkpoint.reason
    full = replace(SPARK, data_free_bytes=10**9)
    told = messages(plan(shipped, observed(node=full, model=cut)))
    assert "disk: a/b takes 12.0 GB more" in told
    nearly = replace(SPARK, data_free_bytes=12 * 10**9)
    drafter = MissingModel("c/d", "sparkdeploy checkpoint pull c/d", 10**9)
    both = observed(node=nearly, model=cut, companions=(drafter,))
    assert "disk: a/b and c/d take 13.0 GB more" in messages(plan(shipped, both))
    assert plan(shipped, observed(node=nearly, model=cut)).problems == ()


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (replace(SPARK, memory_available_bytes=50 * GIB), "only 50.0 GiB are available"),
        # Enough for the 101.1 GiB of the server, and not for the floor beside it.
        (replace(SPARK, memory_available_bytes=103 * GIB), "only 103.0 GiB are available"),
        (
            replace(SPARK, docker=replace(SPARK.docker, has_nvidia_runtime=False)),  # type: ignore[type-var]
            "no nvidia runtime",
        ),
    ],
)
def test_a_spark_that_is_not_ready_is_told_why(
    shipped: Library, node: NodeFact, words: str
) -> None:
    assert words in messages(plan(shipped, observed(node=node)))


def test_memory_of_the_deployment_that_will_be_replaced_counts_as_free(shipped: Library) -> None:
    facts = settled(shipped)
    busy = replace(SPARK, memory_available_bytes=10 * GIB)
    made = plan(shipped, changed(facts, node=busy), "v2", "serve.max_num_seqs=3")
    assert made.head.action is Action.REPLACE
    assert "memory" not in messages(made)
    stopped = changed(facts, node=busy, containers=(ended(facts, 0),))
    told = messages(plan(shipped, stopped, "v2", "serve.max_num_seqs=3"))
    assert "only 10.0 GiB are available" in told


def test_a_second_deployment_that_does_not_fit_is_refused(shipped: Library) -> None:
    facts = settled(shipped)
    other = replace(facts.head.containers[0], name="sparkdeploy-other")
    busy = replace(SPARK, memory_available_bytes=10 * GIB)
    made = plan(shipped, changed(facts, node=busy, containers=(other,)))
    assert "only 10.0 GiB are available" in messages(made)


def test_a_port_of_somebody_else_is_a_problem_and_our_own_is_not(shipped: Library) -> None:
    foreign = observed(port=PortOwner(process="nginx", pid=7))
    own = observed(port=PortOwner("main"))
    assert "port 8000 is in use by process nginx" in messages(plan(shipped, foreign))
    assert plan(shipped, own).problems == ()


@pytest.mark.parametrize("is_listening", [True, False])
def test_a_container_that_still_starts_is_not_said_to_run(
    shipped: Library, *, is_listening: bool
) -> None:
    port = PortOwner("main", is_listening=is_listening)
    made = plan(shipped, replace(settled(shipped), port=port))
    assert made.head.action is Action.REUSE
    words = "running as the recipe says" if is_listening else "starting, and as the recipe says"
    assert made.head.reason == words


@pytest.mark.parametrize(
    ("settings", "is_proposed"),
    [((), True), (("preview=a fork",), False), (("engine=image", "image=a/b:c"), False)],
)
def test_a_rehearsal_is_proposed_only_where_it_can_say_something(
    shipped: Library, settings: tuple[str, ...], is_proposed: bool
) -> None:
    made = plan(shipped, observed(node=LAPTOP), "baseline", *settings)
    (gpu,) = (item for item in made.problems if item.check == "machine.gpu")
    assert ("sparkdeploy rehearse baseline" in str(gpu.fix)) == is_proposed
    assert str(gpu.fix).startswith("run this on the Spark")


def test_the_doctor_names_the_user_that_the_container_has(shipped: Library) -> None:
    facts = observed(model=model_fact(owner_uid=0, owner_gid=0))
    found = {item.check: item.seen for item in doctor_findings(plan(shipped, facts))}
    assert found["folders.owner"] == "the container runs as uid 65532"


@pytest.mark.parametrize(
    ("proof", "verdict"),
    [
        ("", Verdict.WARN),
        ('{"selfcheck": "x"}', Verdict.FAIL),
        ('{"selfcheck": "fits"}', Verdict.OK),
    ],
)
def test_the_doctor_passes_an_image_only_whose_plugin_fits(
    shipped: Library, proof: str, verdict: Verdict
) -> None:
    facts = settled(shipped)
    images = {
        tag: replace(image, labels={**image.labels, labels.PROOF: proof})
        for tag, image in facts.head.images.items()
    }
    found = doctor_findings(plan(shipped, changed(facts, images=images)))
    assert [item.verdict for item in found if item.check == "docker.image"] == [verdict]


def test_nothing_observed_still_gives_a_plan(shipped: Library) -> None:
    blind = NodeFact("laptop", "x86_64", None, None, None, None)
    made = plan(
        shipped,
        Observed((ObservedNode(blind),), "registry", unobserved=("docker: no engine answers",)),
    )
    lines = plain_lines(plan_lines(made))
    assert any("docker: no engine answers" in line for line in lines)
    assert any("memory unknown" in line for line in lines)


def test_the_json_plan_holds_what_the_words_say(shipped: Library) -> None:
    content: dict[str, Any] = plan_as_dict(plan(shipped, observed()))
    assert content["has_work"] is True
    assert [image["action"] for image in content["images"]] == ["build"] * 3
    assert content["container"]["spec"]["network"] == "host"


def test_what_another_deployment_was_promised_is_not_free(shipped: Library) -> None:
    facts = settled(shipped)
    mine = facts.head.containers[0]
    loading = replace(
        mine,
        name="sparkdeploy-other",
        labels={**mine.labels, labels.DEPLOYMENT: "other", labels.MEMORY: str(100 * GIB)},
    )
    made = plan(shipped, changed(facts, containers=(loading,)))
    assert "only 19.0 GiB are available" in messages(made)
    stopped = replace(loading, state="exited")
    assert "memory" not in messages(plan(shipped, changed(facts, containers=(stopped,))))


def test_a_user_who_cannot_make_the_containers_folders_is_told_before(shipped: Library) -> None:
    made = plan(shipped, observed(caller_uid=1001))
    assert "belongs to uid 1000" in messages(made)
    assert made.problems[0].blocks == "prepare"
    assert plan(shipped, observed(caller_uid=1000)).problems == ()


def test_a_docker_disk_too_small_for_the_build_is_told_before(shipped: Library) -> None:
    node = replace(SPARK, docker_free_bytes=10**9)
    made = plan(shipped, observed(node=node), "v2", "engine=cpu-0.32")
    assert "disk: building the images takes 5.5 GB and /var/lib/docker has 1.0 GB" in messages(made)
    assert made.head.needs.image_bytes == 5_500_000_000
    about = [item for item in doctor_findings(made) if item.check == "docker.disk"]
    assert [item.verdict for item in about] == [Verdict.FAIL]


def test_memory_that_nobody_states_is_said_not_to_be_seen(shipped: Library) -> None:
    node = replace(SPARK, memory_available_bytes=None)
    about = [it for it in plan(shipped, observed(node=node)).findings if "memory" in it.check]
    assert [it.verdict for it in about if it.check == "machine.memory"] == [Verdict.NOT_SEEN]


def test_the_guard_is_told_when_an_idle_server_stops(shipped: Library) -> None:
    made = plan(shipped, observed(), "v2", "limits.idle_stop_s=1800")
    assert made.head.spec is not None
    options = made.head.spec.command[: made.head.spec.command.index("--")]
    assert options[options.index("--idle-stop-s") + 1] == "1800"
    usual = plan(shipped, observed()).head.spec
    assert usual is not None
    assert "--idle-stop-s" not in usual.command


ENGINE = load_engine(Library((resources() / "recipes",)), "cuda-0.25")
ARCHITECTURE: Architecture = "aarch64"
NAMES = ("base", "engine", "plugin")


def stages_from(source: BaseSource) -> tuple[Stage, ...]:
    return made_stages(ENGINE, source, ARCHITECTURE)


STAGES = stages_from("registry")


def images_of(stages: Iterable[Stage]) -> dict[str, ImageFact]:
    return {
        stage.tag: ImageFact(f"sha256:{stage.name}", (stage.tag,), stage.labels(), 1)
        for stage in stages
    }


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        ("", ["build", "build", "build"]),
        ("base", ["inputs unchanged", "build", "build"]),
        ("base engine", ["inputs unchanged", "inputs unchanged", "build"]),
        ("base engine plugin", ["inputs unchanged"] * 3),
        ("engine plugin", [NOT_NEEDED, "inputs unchanged", "inputs unchanged"]),
        ("plugin", [NOT_NEEDED, NOT_NEEDED, "inputs unchanged"]),
        ("base plugin", ["inputs unchanged", NOT_NEEDED, "inputs unchanged"]),
        ("engine", [NOT_NEEDED, "inputs unchanged", "build"]),
    ],
)
def test_nothing_below_a_stage_that_is_here_is_asked_for(here: str, expected: list[str]) -> None:
    images = images_of(stage for stage in STAGES if stage.name in here.split())
    steps = image_steps(STAGES, images)
    assert [step.stage for step in steps] == list(STAGES)
    assert [step.reason if step.action is Action.REUSE else "build" for step in steps] == expected


def test_an_image_with_the_tag_and_another_fingerprint_is_no_reason_to_skip_what_is_below() -> None:
    plugin = STAGES[-1]
    other = ImageFact("x", (plugin.tag,), {**plugin.labels(), labels.FINGERPRINT: "0" * 64}, 1)
    steps = image_steps(STAGES, {plugin.tag: other})
    assert {step.action for step in steps} == {Action.BUILD}


def test_what_changed_since_an_older_image_is_said() -> None:
    base, engine, plugin = STAGES
    changed = replace(engine, inputs={**engine.inputs, "dockerfile": "older", "below": "older"})
    older = replace(changed, tag="sparkdeploy/engine:older", fingerprint="older")
    kept = replace(plugin, tag="sparkdeploy/plugin:older", fingerprint="older")
    steps = image_steps(STAGES, images_of((base, older, kept)))
    assert [step.reason for step in steps] == [
        "inputs unchanged",
        "inputs changed: below, dockerfile",
        "inputs changed: the stage below",
    ]


def source_already_here(tags: set[str], source: BaseSource) -> BaseSource:
    """What is chosen beside these images, where a registry would have it the other way."""
    asked: Any = SimpleNamespace(registry_digest=lambda _image: source == "debian")
    return choose_base_source(ENGINE, ARCHITECTURE, tags, load_settings(), asked)


@pytest.mark.parametrize("source", ["registry", "debian"])
@pytest.mark.parametrize("name", NAMES)
def test_any_stage_tells_where_its_base_came_from(name: str, source: BaseSource) -> None:
    tags = {stage.tag for stage in stages_from(source) if stage.name == name}
    assert source_already_here(tags, source) == source


@pytest.mark.parametrize(
    ("upper", "lower"), [("plugin", "engine"), ("plugin", "base"), ("engine", "base")]
)
@pytest.mark.parametrize("source", ["registry", "debian"])
def test_an_upper_stage_decides_before_a_lower_one(
    upper: str, lower: str, source: BaseSource
) -> None:
    other: BaseSource = "debian" if source == "registry" else "registry"
    tags = {stage.tag for stage in stages_from(source) if stage.name == upper}
    tags |= {stage.tag for stage in stages_from(other) if stage.name == lower}
    assert source_already_here(tags, source) == source
