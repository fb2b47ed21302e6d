"""What made a run: read from the running deployment, its image, its log and its machine."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy import __version__, labels
from sparkdeploy.bench.origin import (
    CheckpointOrigin,
    ClientOrigin,
    EngineOrigin,
    ImageOrigin,
    MachineOrigin,
    Origin,
    RecipeOrigin,
)
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.commands.drafting import Request, draft_plan, resolve
from sparkdeploy.commands.image import image_chain
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.node.gpu import GPU_QUERY, parse_gpus
from sparkdeploy.node.machine import LocalMachine, output_or_none, read_or_none
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.server.log_lines import LineSplitter, read_line
from sparkdeploy.server.phases import PhaseTracker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.machine import Machine
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.settings import Settings

QUERY_TIMEOUT_S = 10.0
CHECKPOINT_MOUNT = "/m/ck/"
MODEL_MOUNT = "/m/hub/"
_FLAGS = re.compile(r"non-default args: (?P<flags>\{.*\})")
_SECRET = re.compile(r"('api_key': )('[^']*'|\[[^\]]*\])")


def client_origin(where: str) -> ClientOrigin:
    """Return what asks and counts."""
    return ClientOrigin(__version__, platform.python_version(), where)


def endpoint_origin(url: str, model: str, *, version: str | None, is_here: bool) -> Origin:
    """Return what is known of an endpoint that is only a URL."""
    machine = machine_origin(LocalMachine()) if is_here else None
    where = "here" if is_here else "over the network"
    engine = EngineOrigin(version=version) if version else None
    return Origin(url, model, client_origin(where), engine=engine, machine=machine)


def deployment_origin(
    host: DockerHost, fact: ContainerFact, settings: Settings, *, url: str, version: str | None
) -> Origin:
    """Return everything that made a deployment of ours."""
    record = host.inspect(fact.container_id)
    recipe = recipe_origin(host, fact, settings)
    return Origin(
        url=url,
        model=fact.labels.get(labels.SERVED_NAME, ""),
        client=client_origin("here"),
        deployment=fact.deployment,
        recipe=recipe,
        images=image_origins(host, fact, record),
        checkpoint=checkpoint_origin(record),
        engine=engine_origin(host.logs(fact.container_id), version=version),
        machine=machine_origin(LocalMachine(), docker=host.info().version),
    )


def recipe_origin(host: DockerHost, fact: ContainerFact, settings: Settings) -> RecipeOrigin:
    """Return the recipe; its values only where the container is what the recipe says today.

    A deployment made with --set, or from a recipe that was edited since, has a name and the
    container's own fingerprint.
    """
    name = fact.labels.get(labels.RECIPE, "")
    try:
        resolved = resolve(Request(name), settings)
        plan = draft_plan(resolved, settings, host, _deployment(fact))
    except SparkdeployError:
        return RecipeOrigin(name, fact.fingerprint)
    recipe = resolved.recipe
    expect = recipe.expect
    floor = expect.end_to_end_tok_s if expect else None
    source = f"{expect.source} on {expect.hardware}, {expect.engine}" if expect else ""
    if not _is_what_runs(plan, fact):
        return RecipeOrigin(name, fact.fingerprint, floor_tok_s=floor, floor_source=source)
    values = recipe.model_dump(by_alias=True, mode="json")
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return RecipeOrigin(name, digest, recipe.title, values, floor, source)


def image_origins(
    host: DockerHost, fact: ContainerFact, record: dict[str, Any]
) -> tuple[ImageOrigin, ...]:
    """Return the image that runs and those it stands on, with what was found in each at build."""
    reference = str(record["Config"]["Image"])
    upper = host.find_image(fact.image_id)
    if upper is None:
        return (ImageOrigin(reference, fact.image_id),)
    return tuple(
        ImageOrigin(
            reference if image is upper else next(iter(image.tags), image.image_id),
            image.image_id,
            image.labels.get(labels.FINGERPRINT, ""),
            _versions(image.labels.get(labels.PROOF, "")),
        )
        for image in image_chain(host, upper)
    )


def checkpoint_origin(record: dict[str, Any]) -> CheckpointOrigin | None:
    """Return the weights that are mounted."""
    mounts = {str(item["Destination"]): str(item["Source"]) for item in record["Mounts"]}
    for target, source in mounts.items():
        manifest = read_manifest(Path(source)) if target.startswith(CHECKPOINT_MOUNT) else None
        if manifest is not None:
            return CheckpointOrigin(
                source=manifest.source_name,
                revision=manifest.source_revision,
                manifest_fingerprint=manifest.fingerprint,
                treatment=manifest.treatment,
            )
    for target in mounts:
        if target.startswith(MODEL_MOUNT):
            name = target.removeprefix(MODEL_MOUNT)
            argv = " ".join(record["Args"])
            snapshot = re.search(re.escape(target) + r"/snapshots/(\w+)", argv)
            source = name.removeprefix("models--").replace("--", "/")
            return CheckpointOrigin(source, snapshot[1] if snapshot else None)
    return None


def engine_origin(log: Iterable[bytes], *, version: str | None) -> EngineOrigin:
    """Return what the engine says of itself in its log."""
    tracker, splitter = PhaseTracker(), LineSplitter()
    flags = ""
    for chunk in log:
        tracker.feed(chunk)
        for text in splitter.feed(chunk):
            if match := _FLAGS.search(read_line(text).text):
                flags = _SECRET.sub(r"\1'***'", match["flags"])
    tracker.finish()
    facts = tracker.facts
    return EngineOrigin(
        version=version or facts.vllm_version,
        flags=flags,
        attention_backend=facts.attention_backend,
        kv_cache_tokens=facts.kv_cache_tokens,
        kv_cache_gib=facts.kv_cache_gib,
        fp8_layers=facts.fp8_layers,
        lm_head=facts.lm_head,
    )


def machine_origin(machine: Machine, *, docker: str | None = None) -> MachineOrigin:
    """Return what the machine is; no host name, so that a record may be shared."""
    output = output_or_none(machine, GPU_QUERY, timeout_s=QUERY_TIMEOUT_S)
    gpus = parse_gpus(output) if output else ()
    memory = re.search(r"MemTotal:\s+(\d+) kB", read_or_none(machine, "/proc/meminfo") or "")
    cpus = re.findall(r"^processor\s*:", read_or_none(machine, "/proc/cpuinfo") or "", re.MULTILINE)
    return MachineOrigin(
        product=(read_or_none(machine, "/sys/class/dmi/id/product_name") or "").strip(),
        architecture=platform.machine(),
        kernel=(read_or_none(machine, "/proc/sys/kernel/osrelease") or "").strip(),
        cpu_count=len(cpus) or None,
        memory_bytes=int(memory[1]) * 1024 if memory else None,
        gpu=gpus[0].name if gpus else None,
        driver=gpus[0].driver_version if gpus else None,
        docker=docker,
    )


def _deployment(fact: ContainerFact) -> Deployment:
    is_public = fact.labels.get(labels.EXPOSURE) == Exposure.PUBLIC.value
    return Deployment(fact.deployment, Exposure.PUBLIC if is_public else Exposure.LOOPBACK)


def _is_what_runs(plan: Plan, fact: ContainerFact) -> bool:
    spec = plan.container.spec
    return spec is not None and spec.fingerprint() == fact.fingerprint


def _versions(proof: str) -> dict[str, str]:
    """Return the versions an image's proof tells; an image of another origin has none."""
    try:
        content = json.loads(proof)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or not isinstance(content.get("versions", {}), dict):
        return {}
    said = {name: content[name] for name in ("vllm", "python", "cuda") if content.get(name)}
    return {
        str(name): str(value) for name, value in {**said, **content.get("versions", {})}.items()
    }
