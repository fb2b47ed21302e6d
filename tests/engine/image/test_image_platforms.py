"""Images for processors that are emulated here: made, looked into, and carried elsewhere."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.errors import NodeError
from sparkdeploy.image.emulation import platform_of, refuse_without_emulation
from sparkdeploy.image.stages import DebianRecipe, Stage
from sparkdeploy.node import facts
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import Settings
from sparkdeploy.upkeep import images as image_shelf
from tests.engine.lab_stages import build, make_stage

# It answers for the plugin's self-check and says on which processor it was asked.
PYTHON = """#!/bin/sh
echo '{"vllm": "'$(uname -m)'", "fits": true, "apis": []}'
"""
TOP = """FROM {below}
LABEL hello=world
RUN mkdir -p /opt/venv/bin && printf '%s' "$(uname -m)" > /built-on
COPY python /opt/venv/bin/python
"""


@pytest.fixture
def foreign() -> facts.Architecture:
    """The other one of the two processors; skips where this machine does not emulate it."""
    other: facts.Architecture = "aarch64" if facts.architecture() == "x86_64" else "x86_64"
    try:
        refuse_without_emulation(other)
    except NodeError as error:
        pytest.skip(f"{error.message}; {error.hint}")
    return other


@pytest.fixture
def pair(host: DockerHost, foreign: facts.Architecture) -> Iterator[tuple[Stage, Stage]]:
    """A base of Debian packages and a stage on it, for the other processor."""
    kind: dict[str, Any] = {"architecture": foreign, "platform": platform_of(foreign)}
    base = make_stage("engine", "", debian=DebianRecipe("bookworm", ("ca-certificates",)), **kind)
    base = replace(base, context=())
    top = make_stage("plugin", TOP.format(below=base.tag), base, runs_on="cpu", **kind)
    program = replace(top.context[0], path="python", content=PYTHON.encode(), mode=0o755)
    yield base, replace(top, context=(program,))
    for stage in (top, base):
        host.remove_image(stage.tag)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 391 s on two cores with little beside it
def test_an_image_for_another_processor_is_made_proven_and_carried(
    host: DockerHost,
    pair: tuple[Stage, Stage],
    foreign: facts.Architecture,
    settings: Settings,
    tmp_path: Path,
) -> None:
    base, made = (build(host, stage, settings) for stage in pair)
    for image in (base, made):
        assert facts.known_architecture(image.architecture) == foreign
    assert made.proof["vllm"] == foreign
    assert host.run_once(made.image_id, ["cat", "/built-on"]) == (0, foreign)
    file = tmp_path / "images.tar"
    with file.open("wb") as out:
        out.writelines(host.save_images([stage.tag for stage in pair]))
    image_shelf.remove_images([stage.tag for stage in pair], settings)
    with file.open("rb") as archive:
        host.load_images(archive)
    found = host.find_image(pair[1].tag)
    assert found is not None
    assert facts.known_architecture(found.architecture) == foreign


def test_an_empty_image_is_made_for_the_platform_that_was_asked_for(
    host: DockerHost, settings: Settings
) -> None:
    other: facts.Architecture = "aarch64" if facts.architecture() == "x86_64" else "x86_64"
    kind: dict[str, Any] = {"architecture": other, "platform": platform_of(other)}
    below = make_stage("engine", "FROM scratch\nCOPY hello /\nENV A=b\n", **kind)
    above = make_stage("plugin", f"FROM {below.tag}\nCOPY hello /upper\n", below, **kind)
    try:
        for stage in (below, above):
            assert facts.known_architecture(build(host, stage, settings).architecture) == other
    finally:
        for stage in (above, below):
            host.remove_image(stage.tag)
