"""Builds one image stage, or finds that it is there already."""

import collections
import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from sparkdeploy import labels, yaml_text
from sparkdeploy.atomic_files import make_private
from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image import network
from sparkdeploy.image.base import base_of_root, debian_root
from sparkdeploy.image.compilation import compile_wheel, refuse_start
from sparkdeploy.image.context import ContextFile, write_tar
from sparkdeploy.image.proof import prove_stage
from sparkdeploy.image.stages import LEFTOVER_LABEL, Stage
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.facts import spelled
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.reports import BuildEvent
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.step import Step

TAIL_LINES = 30
MAX_LETTERS = 500
"""Of a line of the log: some programs draw megabytes on one."""
MAX_SUSPICIOUS = 10
WRITTEN = (PurePosixPath("/opt/venv"), PurePosixPath("/opt/sparkdeploy"))
"""Where an image of others gets what makes it an engine of ours."""
NEWEST_WITH_BUILDER = 29
"""The newest one of which that is known (docs/figures/engines.md)."""
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DOCKERFILE_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)")
_SUSPICIOUS = re.compile(r"command not found|No such file or directory|\bFAILED\b")
"""What a shell or `patch` says before a script goes on."""
_IMAGE_ID = re.compile(r"^ ---> ([0-9a-f]{12})$")


def find_built(host: DockerHost, stage: Stage) -> ImageFact | None:
    """Return the stage's image by our label; NodeError when its tag is on one that is not ours."""
    image = host.find_image(stage.tag)
    if image is None:
        return None
    if image.labels.get(labels.KIND) != "image":
        raise NodeError(
            f"image {stage.tag} exists and was not made by sparkdeploy",
            hint=f"give it another name: docker tag {stage.tag} OTHER && docker rmi {stage.tag}",
        )
    return image if image.fingerprint == stage.fingerprint else None


def _require_architecture(stage: Stage, image: ImageFact) -> None:
    is_known = stage.architecture and image.architecture
    if is_known and spelled(image.architecture) != stage.architecture:
        raise BuildError(
            f"{stage.tag} is for {stage.architecture}, and Docker made it for {image.architecture}",
            hint="what it stands on may be of that kind: `docker images` shows it, and `docker rmi`"
            " lets the next build pull it anew",
        )


def build_stage(host: DockerHost, stage: Stage, settings: Settings, step: Step) -> ImageFact:
    """Build a stage unless its fingerprint is there; its tag appears with the finished image."""
    found = find_built(host, stage)
    if found is not None:
        return found
    _require_builder(host)
    if stage.debian is not None:
        # Not by an import: older engines note their own architecture on whatever they import.
        with debian_root(stage, settings, step) as archive:
            root = ContextFile("root.tar", archive)
            made = replace(stage, dockerfile=base_of_root(root.path), context=(root,))
            _Build(host, made, settings, step).run(made, made.tag, made.labels())
    else:
        _require_below(host, stage)
        _refuse_volumes(host, stage, settings)
        if stage.source is not None:
            refuse_start(stage, host, settings)
            stage = replace(stage, compiled=compile_wheel(host, stage, settings, step))
        build = _Build(host, stage, settings, step)
        if stage.runs_on is None:
            build.run(stage, stage.tag, stage.labels())
        else:
            build.run_and_prove()
    built = find_built(host, stage)
    if built is None:
        raise BuildError(f"{stage.tag} did not appear after its build")
    try:
        _require_architecture(stage, built)
    except BuildError:
        host.remove_image(stage.tag)
        raise
    return built


def _require_builder(host: DockerHost) -> None:
    """Refuse an engine that could not build what stands on this stage, before anything is done."""
    refusal = host.builder_refusal()
    if refusal is not None:
        raise BuildError(
            "this Docker Engine no longer has the builder that sparkdeploy uses",
            hint="build on another machine, and bring the images with docker save and docker load"
            f"; or install Docker Engine {NEWEST_WITH_BUILDER}",
            detail=refusal,
        )


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
    if image is None or image.fingerprint != stage.inputs["below"]:
        raise BuildError(
            f"stage {stage.name} of engine {stage.engine} stands on {stage.below}, which is not"
            " there",
            hint="build the stages from the lowest up",
        )


def _refuse_volumes(host: DockerHost, stage: Stage, settings: Settings) -> None:
    """Refuse an image of others in which nothing that is added would stay."""
    reference = stage.local_image
    if stage.is_of_others and stage.registry_image is not None:
        reference = network.registry_reference(
            stage.registry_image, settings.hosts.container_registry
        )
    image = host.find_image(reference) if reference is not None else None
    for volume in image.volumes if image is not None else ():
        path = PurePosixPath(volume)
        if any(path.is_relative_to(it) or it.is_relative_to(path) for it in WRITTEN):
            raise BuildError(
                f"engine {stage.engine} does not fit what it stands on: {volume} is a volume of"
                " that image, and nothing that is added below it would stay",
                hint=stage.update_hint or "it takes an image without that VOLUME",
            )


@dataclass(slots=True)
class _Build:
    host: DockerHost
    stage: Stage
    settings: Settings
    step: Step
    where: str = ""
    log: collections.deque[str] = field(
        default_factory=lambda: collections.deque(maxlen=TAIL_LINES)
    )
    image_ids: list[str] = field(default_factory=list)
    pulled: dict[str, tuple[int, int]] = field(default_factory=dict)
    suspicious: dict[str, None] = field(default_factory=dict)
    """Lines that tell of failures within a mod, each once."""

    def run_and_prove(self) -> None:
        """Look into the image before it gets its tag; what was found becomes a label."""
        unproven = f"{self.stage.tag}-unproven"
        try:
            self.run(self.stage, unproven, {labels.KIND: "leftover"})
            image = self.host.find_image(unproven)
            if image is None:
                raise BuildError(f"{unproven} did not appear after its build")
            _require_architecture(self.stage, image)
            self.step.say("looking into the finished image")
            try:
                proof = prove_stage(self.host, self.stage, image.image_id)
            except NodeError as error:
                raise ended_by_node(self.stage, error, where=self.where, log=self.log) from error
            dockerfile = f"FROM {unproven}\n"
            proven = replace(self.stage, dockerfile=dockerfile, context=(), needs_network=False)
            self.run(proven, self.stage.tag, {**proven.labels(), labels.PROOF: proof})
            # A script without `set -e` goes on after a command that failed, and ends well.
            if self.stage.mod and self.suspicious:
                lines = "".join(f"\n  | {line}" for line in self.suspicious)
                console.warn(f"the mod {self.stage.mod} ended well, and said on its way:{lines}")
        finally:
            self.host.remove_leftover_tag(unproven)

    def run(self, stage: Stage, tag: str, image_labels: Mapping[str, str]) -> None:
        settings, dockerfile = self.settings, _labelled(stage.dockerfile, image_labels)
        files = [ContextFile("Dockerfile", dockerfile.encode()), *stage.context]
        make_private(settings.cache_dir)
        try:
            with tempfile.TemporaryFile(prefix="context-", dir=settings.cache_dir) as context:
                write_tar([*files, *network.files(stage, settings)], context)
                context.seek(0)
                for event in self.host.build(
                    context,
                    tag=tag,
                    build_args=network.build_args(stage, settings),
                    image_labels={},
                    network=network.build_network(stage, settings),
                    platform=stage.platform,
                ):
                    self._follow(event)
                    if event.error is not None:
                        raise failed(stage, self.where, self.log)
        except NodeError as error:
            # Nobody is there to remove them; the next build of this stage finds and removes them.
            self.image_ids.clear()
            raise ended_by_node(stage, error, where=self.where, log=self.log) from error
        except OSError as error:
            raise BuildError(
                f"the context of stage {stage.name} of engine {stage.engine} could not be written:"
                f" {error.strerror or error}",
                hint=f"free space below {settings.cache_dir}",
            ) from error
        finally:
            # From the last one down: a leftover that still has children cannot go.
            self.host.remove_leftovers(tuple(reversed(self.image_ids)))

    def _follow(self, event: BuildEvent) -> None:
        if event.layer and event.done_bytes is not None and event.total_bytes:
            self.pulled[event.layer] = (event.done_bytes, event.total_bytes)
            done, total = (sum(column) for column in zip(*self.pulled.values(), strict=True))
            self.step.progress(done, total)
            return
        text = _CONTROL.sub("", event.text)
        for line in filter(None, (it[:MAX_LETTERS].rstrip() for it in text.splitlines())):
            self.log.append(line)
            self.step.recent(self.log)
            if _SUSPICIOUS.search(line) and len(self.suspicious) < MAX_SUSPICIOUS:
                self.suspicious[line] = None
            if match := _IMAGE_ID.match(line):
                self.image_ids.append(match[1])
            elif match := _DOCKERFILE_STEP.match(line):
                self.where = f"step {match[1]}/{match[2]}"
                self.step.count(int(match[1]) - 1, int(match[2]), "steps")
                self.step.say(f"{self.where}: {match[3]}")
            else:
                self.step.say(f"{self.where}: {line.strip()}")


def _labelled(dockerfile: str, values: Mapping[str, str]) -> str:
    """Return the Dockerfile with the labels in one instruction.

    Labels given to the builder itself become an instruction and a container each. Until then what
    the last half makes is a leftover, or a Docker Engine that dies in it leaves a container that
    nobody knows.
    """
    before, begin, last_half = f"\n{dockerfile.strip()}".rpartition("\nFROM ")
    base, _, instructions = last_half.partition("\n")
    first = ""
    if base == "scratch":
        # An older engine makes what begins with anything but files for its own architecture.
        first, _, instructions = instructions.partition("\n")
        first += "\n"
    leftover = f"LABEL {LEFTOVER_LABEL}\n"
    dockerfile = f"{before}{begin}{base}\n{first}{leftover}{instructions}".lstrip("\n")
    # The Dockerfile's parser would take a `$` for a variable, and knows no `\u00e9`.
    pairs = (
        f"{json.dumps(name)}={json.dumps(value, ensure_ascii=False)}".replace("$", "\\$")
        for name, value in values.items()
    )
    return f"{dockerfile.rstrip()}\nLABEL " + " \\\n      ".join(pairs) + "\n"


_REFUSED = re.compile(r"^sparkdeploy-refused: (.*)$", re.MULTILINE)

_IN_THE_WAY = (
    "what the image itself says may stand in the way: its ONBUILD runs first, and its SHELL, PATH"
    " and other variables are what programs find there (`docker image inspect` shows them)"
)


def hints() -> list[dict[str, str]]:
    """Return what helps, by a pattern of a build's log; the first that is found counts."""
    rows: list[dict[str, str]] = yaml_text.load_file(Path(__file__).with_name("failures.yaml"))[
        "rows"
    ]
    return rows


def failed(stage: Stage, where: str, log: Iterable[str]) -> BuildError:
    """Return the error of a build; `where` is the instruction, `log` the end of its log."""
    detail = "\n".join(log)
    refused = _REFUSED.search(detail)
    if refused and stage.mod:
        return BuildError(
            f"the mod {stage.mod} does not fit {stage.below}: {refused[1]}",
            hint="it may be for another release of vLLM, or need a network (`network: true`); serve"
            " without mods: --set mods=[]",
            detail=detail,
        )
    if refused:
        return BuildError(
            f"engine {stage.engine} does not fit what it stands on: {refused[1]}",
            hint=stage.update_hint,
            detail=detail,
        )
    place = f" at {where}" if where else ""
    hint = next((row["hint"] for row in hints() if re.search(row["pattern"], detail)), None)
    if hint is None and stage.is_of_others:
        hint = _IN_THE_WAY
    if hint is not None and "$TORCH_SOURCE" in detail:
        # That instruction asks PyTorch's index alone.
        own = "torch_cuda_index" if stage.runs_on == "cuda" else "torch_cpu_index"
        hint = hint.replace("`index_url`", f"`{own}`")
    return BuildError(
        f"stage {stage.name} of engine {stage.engine} did not build: it failed{place}",
        detail=detail,
        hint=hint,
    )


def ended_by_node(
    stage: Stage, error: NodeError, *, where: str = "", log: Iterable[str] = ()
) -> BuildError:
    """As `failed`, where Docker itself failed or no longer answered."""
    made = failed(stage, where, [*log, *filter(None, (error.message, error.detail))])
    made.hint = made.hint or error.hint
    return made
