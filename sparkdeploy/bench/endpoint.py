"""The server that is measured, reached once, and what made it: its image, log and machine."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparkdeploy import __version__, labels
from sparkdeploy.bench.record import (
    CheckpointOrigin,
    ClientOrigin,
    EngineOrigin,
    ImageOrigin,
    MachineOrigin,
    RecipeOrigin,
    RunOrigin,
)
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.deploy.deployments import require_deployment
from sparkdeploy.deploy.nodes import ClusterRecord, connect
from sparkdeploy.deploy.serving import model_of, read_key_file, require_answers
from sparkdeploy.errors import BenchError, UsageError
from sparkdeploy.node.facts import THIS_MACHINE, parse_meminfo, read_gpus, read_or_none
from sparkdeploy.plan.container import container_name
from sparkdeploy.recipe.answers import Task
from sparkdeploy.recipe.report import values_to_show
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.secret_shapes import text_without_secrets
from sparkdeploy.server.client import ServedModel
from sparkdeploy.server.log_lines import LineSplitter, read_line
from sparkdeploy.server.phases import PhaseTracker
from sparkdeploy.server.trust import ca_file as trusted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.facts import Machine
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.settings import Settings

_BACKENDS = {
    Task.EMBEDDINGS: "openai-embeddings",
    Task.RERANK: "vllm-rerank",
    Task.TRANSCRIPTIONS: "openai-audio",
}
CHECKPOINT_MOUNT = "/m/ck/"
MODEL_MOUNT = "/m/hub/"
"""Where `plan.container` mounts prepared checkpoints and downloads."""
_SUCH_AS = "such as http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Access:
    """What a URL needs beside itself; a deployment of sparkdeploy needs neither."""

    key_file: Path | None = None
    model: str | None = None
    """The served name; None is the first that the server names."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    server: ServedModel
    """Asked already, and closed: `server.again()` is open."""
    origin: RunOrigin
    max_model_len: int | None
    container_id: str | None = None

    @property
    def label(self) -> str:
        recipe = self.origin.recipe.name if self.origin.recipe else "no recipe"
        deployment = self.origin.deployment
        return self.origin.url if deployment is None else f"{deployment} ({recipe})"


def measure_hint(task: Task, name: str = "NAME") -> str:
    """Say how a deployment is measured that writes no text."""
    kind = _BACKENDS.get(task, "vllm-pooling")
    return (
        f"vLLM's own tool measures it, in its container: `docker exec {container_name(name)} "
        f"vllm bench serve --backend {kind} --help=all` (docs/bench.md has a whole line)"
    )


def reach_deployment(name: str, settings: Settings) -> Endpoint:
    with connect(settings) as host:
        fact = require_deployment(host, name).current
        answers = ClusterRecord.below(settings.state_dir).answers(fact)
        if not answers.writes_text:
            raise BenchError(
                f"{name} answers {answers.describe()}, and only the writing of text is measured",
                hint=measure_hint(answers.main, name),
            )
        with model_of(fact, settings) as model:
            require_answers(fact, model)
            origin = deployment_origin(host, fact, model)
            return Endpoint(model, origin, model.max_model_len(), fact.container_id)


def server_at(url: str, access: Access) -> ServedModel:
    base_url = url.rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(base_url)
        _ = parts.port
    except ValueError as error:
        # The address may hold a password, so it is not in the message.
        raise UsageError(f"--url: not an address: {error}", hint=_SUCH_AS) from error
    if "@" in parts.netloc:
        # Neither printed, recorded nor sent: not even in this message.
        raise UsageError(
            "the address holds a user or a password, which a record would tell to everyone",
            hint="leave it out; a key goes into a file: --key-file FILE",
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"not an address: {url!r}", hint=_SUCH_AS)
    ca_file = trusted() if parts.scheme == "https" else None
    key = read_key_file(access.key_file)
    return ServedModel(base_url, key, model=access.model, ca_file=ca_file)


def reach_url(url: str, access: Access) -> Endpoint:
    """Return the server at an address; UnhealthyError when it does not answer."""
    with server_at(url, access) as model:
        return Endpoint(model, endpoint_origin(model), model.max_model_len())


def reach(side: str, settings: Settings, access: Access) -> Endpoint:
    """Return the server behind a deployment's name or an address."""
    return reach_url(side, access) if "://" in side else reach_deployment(side, settings)


MAX_RECIPE_CHARACTERS = 1 << 20
PYTHON = platform.python_version()
_FLAGS = re.compile(r"non-default args: (?P<flags>\{.*\})")


def endpoint_origin(model: ServedModel) -> RunOrigin:
    is_here = urlsplit(model.base_url).hostname in {"127.0.0.1", "localhost", "::1"}
    version = model.version()
    return RunOrigin(
        url=text_without_secrets(model.base_url),
        model=model.name,
        client=ClientOrigin(__version__, PYTHON, "here" if is_here else "over the network"),
        engine=EngineOrigin(version=version) if version else None,
        machine=machine_origin(THIS_MACHINE) if is_here else None,
    )


def deployment_origin(host: DockerHost, fact: ContainerFact, model: ServedModel) -> RunOrigin:
    record = host.inspect(fact.container_id)
    return RunOrigin(
        url=text_without_secrets(model.base_url),
        model=fact.labels.get(labels.SERVED_NAME, ""),
        client=ClientOrigin(__version__, PYTHON, "here"),
        deployment=fact.deployment,
        recipe=recipe_origin(fact),
        images=image_origins(host, fact, record),
        checkpoint=checkpoint_origin(record),
        engine=engine_origin(host.logs(fact.container_id), version=model.version()),
        machine=machine_origin(THIS_MACHINE, docker=host.info().version),
    )


def recipe_origin(fact: ContainerFact) -> RecipeOrigin:
    """Return the recipe with the values that were deployed, as the container's label has them."""
    try:
        # Whatever is longer breaks off and is no JSON: anybody may write a label.
        written = fact.labels.get(labels.RECIPE_VALUES, "")[:MAX_RECIPE_CHARACTERS]
        return _origin_of(Recipe.model_validate_json(written))
    except ValueError:
        return RecipeOrigin(fact.labels.get(labels.RECIPE, ""), fact.fingerprint)


def _origin_of(recipe: Recipe) -> RecipeOrigin:
    values = values_to_show(recipe)
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    expect = recipe.expect
    floor = expect.end_to_end_tok_s if expect else None
    source = f"{expect.source} on {expect.hardware}, {expect.engine}" if expect else ""
    return RecipeOrigin(recipe.name, digest, recipe.title, values, floor, source)


def image_origins(
    host: DockerHost, fact: ContainerFact, record: dict[str, Any]
) -> tuple[ImageOrigin, ...]:
    reference = str(record["Config"]["Image"])
    upper = host.find_image(fact.image_id)
    if upper is None:
        return (ImageOrigin(reference, fact.image_id),)
    return tuple(
        ImageOrigin(
            reference if image is upper else next(iter(image.tags), image.image_id),
            image.image_id,
            image.fingerprint,
            _versions(image.proof),
        )
        for image in host.image_chain(upper)
    )


def checkpoint_origin(record: dict[str, Any]) -> CheckpointOrigin | None:
    mounts = {str(item["Destination"]): str(item["Source"]) for item in record["Mounts"]}
    for target, source in mounts.items():
        manifest = read_manifest(Path(source)) if target.startswith(CHECKPOINT_MOUNT) else None
        if manifest is not None:
            name, revision = manifest.source_name, manifest.source_revision
            return CheckpointOrigin(name, revision, manifest.fingerprint, manifest.conversion)
    for target in mounts:
        if target.startswith(MODEL_MOUNT):
            argv = " ".join(record["Args"])
            snapshot = re.search(re.escape(target) + r"/snapshots/(\w+)", argv)
            name = target.removeprefix(MODEL_MOUNT).removeprefix("models--").replace("--", "/")
            return CheckpointOrigin(name, snapshot[1] if snapshot else None)
    return None


def engine_origin(log: Iterable[bytes], *, version: str | None) -> EngineOrigin:
    tracker, splitter = PhaseTracker(), LineSplitter()
    flags = ""
    for chunk in log:
        tracker.feed(chunk)
        for text in splitter.feed(chunk):
            if match := _FLAGS.search(read_line(text).text):
                flags = text_without_secrets(match["flags"])
    tracker.feed(b"\n")
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
    gpu = next(iter(read_gpus(machine).gpus), None)
    cpus = re.findall(r"^processor\s*:", read_or_none(machine, "/proc/cpuinfo") or "", re.MULTILINE)
    return MachineOrigin(
        product=(read_or_none(machine, "/sys/class/dmi/id/product_name") or "").strip(),
        architecture=platform.machine(),
        kernel=(read_or_none(machine, "/proc/sys/kernel/osrelease") or "").strip(),
        cpu_count=len(cpus) or None,
        memory_bytes=parse_meminfo(read_or_none(machine, "/proc/meminfo") or "").get("MemTotal"),
        gpu=gpu.name if gpu else None,
        driver=gpu.driver_version if gpu else None,
        docker=docker,
    )


def _versions(proof: dict[str, Any]) -> dict[str, str]:
    """Return the versions an image's proof tells; an image of another origin has none."""
    more = proof.get("versions", {})
    if not isinstance(more, dict):
        return {}
    said = {name: proof[name] for name in ("vllm", "python", "cuda") if proof.get(name)}
    return {str(name): str(value) for name, value in {**said, **more}.items()}
