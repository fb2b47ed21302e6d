"""Builds one image stage, or finds that it is there already."""

from __future__ import annotations

import collections
import json
import re
import tempfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image import network
from sparkdeploy.image.base import make_debian_base
from sparkdeploy.image.compilation import compile_wheel, refuse_start
from sparkdeploy.image.context import ContextFile, write_tar
from sparkdeploy.image.failures import Scene, ended_by_node, failed
from sparkdeploy.image.proof import prove
from sparkdeploy.image.stages import LEFTOVER_LABEL
from sparkdeploy.node.private_folder import make_private

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.console import Step
    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.container import ImageFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.reports import BuildEvent
    from sparkdeploy.settings import Settings

TAIL_LINES = 30
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DOCKERFILE_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)")
_IMAGE_ID = re.compile(r"^ ---> ([0-9a-f]{12})$")


def find_built(host: DockerHost, stage: Stage) -> ImageFact | None:
    """Return the stage's image when it is there: by our label, never because a tag exists.

    Raises NodeError when the tag is on an image that is not ours.
    """
    image = host.find_image(stage.tag)
    if image is None:
        return None
    if image.labels.get(labels.KIND) != "image":
        raise NodeError(
            f"image {stage.tag} exists and is not ours",
            hint=f"give it another name: docker tag {stage.tag} OTHER && docker rmi {stage.tag}",
        )
    return image if image.labels.get(labels.FINGERPRINT) == stage.fingerprint else None


def build_stage(host: DockerHost, stage: Stage, settings: Settings, step: Step) -> ImageFact:
    """Build a stage unless its fingerprint is there already; return the image.

    The tag appears with the finished image and never before. Raises BuildError with the end of
    the log, RecipeError for an index URL with credentials and NodeError when Docker does not
    answer.
    """
    found = find_built(host, stage)
    if found is not None:
        return found
    if stage.debian is not None:
        return make_debian_base(host, stage, settings, step)
    _require_below(host, stage)
    if stage.source is not None:
        refuse_start(stage, host, settings)
        stage = replace(stage, compiled=compile_wheel(host, stage, settings, step))
    progress = _Progress(step)
    if stage.runs_on is None:
        _build(host, stage, settings, progress, _Made(stage.tag, stage.labels()))
    else:
        _build_and_prove(host, stage, settings, progress)
    built = find_built(host, stage)
    if built is None:
        raise BuildError(f"{stage.tag} did not appear after its build")
    return built


@dataclass(frozen=True, slots=True)
class _Made:
    """Under which tag and labels a build's result appears."""

    tag: str
    labels: Mapping[str, str]


@dataclass(slots=True)
class _Progress:
    """Follows a build: what to show, the end of the log, the images on the way."""

    step: Step
    where: str = ""
    tail: collections.deque[str] = field(
        default_factory=lambda: collections.deque(maxlen=TAIL_LINES)
    )
    image_ids: list[str] = field(default_factory=list)
    pulled: dict[str, tuple[int, int]] = field(default_factory=dict)

    def follow(self, event: BuildEvent) -> None:
        if event.layer and event.done_bytes is not None and event.total_bytes:
            self._follow_pull(event.layer, event.done_bytes, event.total_bytes)
            return
        for line in _CONTROL.sub("", event.text).splitlines():
            self._follow_line(line.rstrip())

    def _follow_pull(self, layer: str, done_bytes: int, total_bytes: int) -> None:
        self.pulled[layer] = (done_bytes, total_bytes)
        done, total = (sum(column) for column in zip(*self.pulled.values(), strict=True))
        self.step.progress(done, total)

    def _follow_line(self, line: str) -> None:
        if not line:
            return
        self.tail.append(line)
        if match := _IMAGE_ID.match(line):
            self.image_ids.append(match[1])
        elif match := _DOCKERFILE_STEP.match(line):
            self.where = f"step {match[1]}/{match[2]}"
            self.step.say(f"{self.where}: {match[3]}")
        else:
            self.step.say(f"{self.where}: {line.strip()}")


def _require_below(host: DockerHost, stage: Stage) -> None:
    """Refuse a missing lower stage: Docker would look for its name in a public registry."""
    if stage.local_image is not None and host.find_image(stage.local_image) is None:
        raise BuildError(
            f"engine {stage.engine} stands on image {stage.local_image}, which is not on this"
            " machine",
            hint="`docker images --no-trunc` shows the ids; NAME@sha256:... is pulled",
        )
    if stage.below is None:
        return
    image = host.find_image(stage.below)
    if image is None or image.labels.get(labels.FINGERPRINT) != stage.inputs["below"]:
        raise BuildError(
            f"stage {stage.name} of engine {stage.engine} stands on {stage.below}, which is not"
            " there",
            hint="build the stages from the lowest up",
        )


def _build_and_prove(
    host: DockerHost, stage: Stage, settings: Settings, progress: _Progress
) -> None:
    """Look into the image before it gets its tag; what was found becomes a label."""
    unproven = _Made(f"{stage.tag}-unproven", {labels.KIND: "leftover"})
    try:
        _build(host, stage, settings, progress, unproven)
        image = host.find_image(unproven.tag)
        if image is None:
            raise BuildError(f"{unproven.tag} did not appear after its build")
        progress.step.say("looking into the finished image")
        proven = {**stage.labels(), labels.PROOF: _proof(host, stage, image.image_id, progress)}
        again = replace(stage, dockerfile=f"FROM {unproven.tag}\n", context=(), needs_network=False)
        _build(host, again, settings, progress, _Made(stage.tag, proven))
    finally:
        host.remove_leftover_tag(unproven.tag)


def _build(
    host: DockerHost, stage: Stage, settings: Settings, progress: _Progress, made: _Made
) -> None:
    files = [
        ContextFile("Dockerfile", _labelled(stage.dockerfile, made.labels).encode()),
        *stage.context,
        *network.files(stage, settings),
    ]
    arguments = {**stage.build_args, **network.build_args(stage, settings)}
    make_private(settings.cache_dir)
    try:
        with tempfile.TemporaryFile(prefix="context-", dir=settings.cache_dir) as context:
            write_tar(files, context)
            context.seek(0)
            for event in host.build(
                context,
                tag=made.tag,
                build_args=arguments,
                image_labels={},
                network=network.build_network(stage, settings),
            ):
                progress.follow(event)
                if event.error is not None:
                    raise failed(_scene(stage, progress))
    except NodeError as error:
        # Nobody is there to remove them; the next build of this stage finds and removes them.
        progress.image_ids.clear()
        raise ended_by_node(_scene(stage, progress), error) from error
    except OSError as error:
        raise BuildError(
            f"the context of stage {stage.name} of engine {stage.engine} could not be written:"
            f" {error.strerror or error}",
            hint=f"free space below {settings.cache_dir}",
        ) from error
    finally:
        # From the last one down: a leftover that still has children cannot go.
        host.remove_leftovers(tuple(reversed(progress.image_ids)))


def _proof(host: DockerHost, stage: Stage, image_id: str, progress: _Progress) -> str:
    try:
        return prove(host, stage, image_id)
    except NodeError as error:
        raise ended_by_node(_scene(stage, progress), error) from error


def _scene(stage: Stage, progress: _Progress) -> Scene:
    return Scene(stage.name, stage.engine, progress.where, tuple(progress.tail))


def _labelled(dockerfile: str, values: Mapping[str, str]) -> str:
    """Return the Dockerfile with the labels in one instruction.

    Labels given to the builder itself become an instruction and a container each. Until then what
    the last half makes is a leftover, or a Docker Engine that dies in it leaves a container that
    nobody knows.
    """
    before, begin, last_half = f"\n{dockerfile.strip()}".rpartition("\nFROM ")
    base, _, instructions = last_half.partition("\n")
    dockerfile = f"{before}{begin}{base}\nLABEL {LEFTOVER_LABEL}\n{instructions}".lstrip("\n")
    pairs = (f"{json.dumps(name)}={_quoted(value)}" for name, value in values.items())
    return f"{dockerfile.rstrip()}\nLABEL " + " \\\n      ".join(pairs) + "\n"


def _quoted(value: str) -> str:
    """Return a value as the Dockerfile's parser reads it back: `$` would be a variable."""
    return json.dumps(value).replace("$", "\\$")
