"""Which stages a plan asks for, and from which source their base came."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sparkdeploy import labels
from sparkdeploy.image.stages import stages_of
from sparkdeploy.node.container import ImageFact
from sparkdeploy.plan.images import NOT_NEEDED, choose_base_source, image_steps
from sparkdeploy.plan.steps import Action
from sparkdeploy.recipe.load import Library, load_engine
from sparkdeploy.settings import load_settings, resources

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.image.lock import Architecture
    from sparkdeploy.image.stages import BaseSource, Stage

ENGINE = load_engine(Library((resources() / "recipes",)), "cuda-0.25")
ARCHITECTURE: Architecture = "aarch64"
NAMES = ("base", "engine", "plugin")


def stages_from(source: BaseSource) -> tuple[Stage, ...]:
    return stages_of(ENGINE, base_source=source, architecture=ARCHITECTURE, resources=resources())


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
