"""An engine that answers a build as a test says."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, cast

from sparkdeploy.image.build import build_stage
from sparkdeploy.image.inside import rdma
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.reports import BuildEvent
from sparkdeploy.settings import BuildNetwork, load_settings
from sparkdeploy.terminal.step import Step


class RecordedStep(Step):
    """A step that keeps what it said."""

    def __init__(self) -> None:
        super().__init__("build", lambda: 1.0, lambda _text: None)
        self.shown: list[str] = []

    def say(self, text: str) -> None:
        self.shown.append(text)


@dataclass
class ScriptedHost:
    """An engine that answers a build with given events and makes the image when all went well."""

    events: Sequence[BuildEvent]
    images: dict[str, ImageFact] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    stage: Stage | None = None
    networks: list[str | None] = field(default_factory=list)
    platforms: list[str | None] = field(default_factory=list)
    said: tuple[int, str] = (0, "")
    rdma_missing: dict[str, str] = field(default_factory=dict)
    refusal: str | None = None
    architecture: str = ""

    def find_image(self, reference: str) -> ImageFact | None:
        return self.images.get(reference)

    def builder_refusal(self) -> str | None:
        return self.refusal

    def build(
        self,
        context: IO[bytes],
        *,
        tag: str,
        build_args: Mapping[str, str],
        image_labels: object,
        network: str | None,
        platform: str | None = None,
    ) -> Iterator[BuildEvent]:
        with tarfile.open(fileobj=context) as archive:
            member = archive.extractfile("Dockerfile")
            assert member is not None
            dockerfile = member.read().decode()
        yield from self.events
        self.networks.append(network)
        self.platforms.append(platform)
        if self.stage is not None and not any(event.error for event in self.events):
            found = labels_in(dockerfile)
            self.images[tag] = ImageFact(
                "sha256:new", (tag,), found, 1, architecture=self.architecture
            )

    def run_once(self, image: str, command: list[str], **_: object) -> tuple[int, str]:
        if rdma.MARK in command[-1]:
            return 0, rdma.MARK + json.dumps({"missing": self.rdma_missing})
        return self.said

    def remove_image(self, reference: str) -> None:
        self.images.pop(reference, None)

    remove_leftover_tag = remove_image

    def remove_leftovers(self, image_ids: Sequence[str]) -> None:
        self.removed += image_ids


def labels_in(dockerfile: str) -> dict[str, str]:
    text = dockerfile[dockerfile.rindex("\nLABEL ") :].replace("\\\n", " ")
    pairs = re.findall(r'"((?:[^"\\]|\\.)*)"="((?:[^"\\]|\\.)*)"', text)
    # As Docker reads them: `\u00e9` stays as it is, and a bare `$` begins a variable's name.
    assert not re.search(r"(?<!\\)\$", text)
    return {name: re.sub(r'\\(["$\\])', r"\1", value) for name, value in pairs}


def build(host: ScriptedHost, stage: Stage) -> tuple[ImageFact, list[str]]:
    """Build a stage as where nothing says how to reach the world; return it and what was shown."""
    step, settings = RecordedStep(), replace(load_settings(), build=BuildNetwork())
    fact = build_stage(cast("DockerHost", host), stage, settings, step)
    return fact, step.shown
