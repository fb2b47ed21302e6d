"""vLLM's wheel, compiled once in a container; kept, so that the same inputs compile nothing."""

import os
import shutil
import tempfile
import time
from pathlib import Path

from sparkdeploy import atomic_files, labels
from sparkdeploy.atomic_files import make_private
from sparkdeploy.errors import BuildError, Mistakes, NodeError
from sparkdeploy.image import network
from sparkdeploy.image.context import CHUNK_BYTES
from sparkdeploy.image.stages import Stage, fingerprint
from sparkdeploy.node import facts
from sparkdeploy.node.container import ContainerSpec, Mount
from sparkdeploy.node.host import DockerHost
from sparkdeploy.recipe.engine import SourceBuild
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.step import Step
from sparkdeploy.units import format_bytes, format_gib

GB, GIB = 10**9, 2**30
MEMORY_PER_COMPILER_GIB = 4
POLL_EVERY_S = 2.0
TAIL_LINES = 30
COMPILED_FROM = ("below", "architecture", "compile/compile.sh", "compile/source", "lock/torch.txt")
"""The inputs of an engine stage that its wheel depends on."""


def wheel_folder(stage: Stage, settings: Settings) -> Path:
    """Return where a stage's wheel is kept: by what is compiled, not by what is installed."""
    inputs = {name: value for name, value in stage.inputs.items() if name in COMPILED_FROM}
    return settings.cache_dir / "compiled" / fingerprint(inputs)[:16]


def find_wheel(stage: Stage, settings: Settings) -> Path | None:
    return next(iter(sorted(wheel_folder(stage, settings).glob("vllm-*.whl"))), None)


def refuse_start(stage: Stage, host: DockerHost, settings: Settings) -> None:
    """Raise before anything is fetched: NodeError for the machine, BuildError for the network."""
    if stage.source is None or find_wheel(stage, settings) is not None:
        return
    refuse_machine(
        stage.source,
        engine=stage.engine,
        disk_bytes=facts.free_bytes(Path(host.info().root_dir)),
        memory_bytes=facts.read_meminfo().get("MemAvailable"),
    )
    refuse_unreachable(stage.engine, settings)


def refuse_machine(
    source: SourceBuild, *, engine: str, disk_bytes: int | None, memory_bytes: int | None
) -> None:
    """Raise NodeError with everything the machine lacks; None could not be observed."""
    lacks = []
    if disk_bytes is not None and disk_bytes < source.disk_gb * GB:
        free = f"{format_bytes(disk_bytes)} are free"
        lacks.append(f"disk: it takes {source.disk_gb} GB below Docker's data root, and {free}")
    if memory_bytes is not None and memory_bytes < source.memory_gib * GIB:
        free = f"{format_gib(memory_bytes)} are free"
        lacks.append(f"memory: it takes {source.memory_gib} GiB, and {free}")
    if lacks:
        raise NodeError(
            f"engine {engine} cannot be compiled on this machine",
            detail=Mistakes("\n".join(lacks)),
            hint="free some, or take an engine made from wheels: cuda-0.25",
        )


def refuse_unreachable(engine: str, settings: Settings) -> None:
    """Raise BuildError when the sources that vLLM's build fetches itself are out of reach."""
    for what, url in (
        ("CUTLASS and the attention kernels", settings.hosts.source_forge),
        ("the CUDA build of torch", settings.hosts.torch_cuda_index),
    ):
        error = network.refusal(url, settings)
        if error is not None:
            raise BuildError(
                f"engine {engine} cannot be compiled here: {what} come from {url}, which does not"
                " answer",
                hint="take an engine made from wheels (cuda-0.25), or set https_proxy",
            ) from error


def compile_wheel(host: DockerHost, stage: Stage, settings: Settings, step: Step) -> Path:
    if kept := find_wheel(stage, settings):
        return kept
    wheels, ccache = wheel_folder(stage, settings), settings.cache_dir / "ccache"
    make_private(wheels)
    make_private(ccache)
    with tempfile.TemporaryDirectory(prefix="compile-", dir=settings.cache_dir) as scratch:
        inputs, work = Path(scratch) / "compile", Path(scratch) / "work"
        work.mkdir()
        for file in (*stage.context, *network.files(stage, settings)):
            path = inputs / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with file.open() as source, atomic_files.open_new(path, 0o644) as target:
                shutil.copyfileobj(source, target, CHUNK_BYTES)
        spec = compile_spec(stage, inputs, work, wheels=wheels, ccache=ccache)
        # Its name is the inputs': a command that was killed may have left one.
        host.remove(spec.name)
        _run(host, spec, step)
    wheel = find_wheel(stage, settings)
    if wheel is None:
        raise BuildError(f"engine {stage.engine}: the compiler ended well and left no wheel")
    return wheel


def compile_spec(
    stage: Stage, inputs: Path, work: Path, *, wheels: Path, ccache: Path
) -> ContainerSpec:
    """Return the container that compiles, as this user: it sees our own folders alone."""
    memory_gib = stage.source.memory_gib if stage.source is not None else MEMORY_PER_COMPILER_GIB
    jobs = max(1, min(os.cpu_count() or 1, memory_gib // MEMORY_PER_COMPILER_GIB))
    return ContainerSpec(
        name=f"sparkdeploy-compile-{stage.fingerprint[:12]}",
        image=stage.below or "",
        entrypoint=("/bin/sh",),
        command=("/compile/compile/compile.sh",),
        env={"MAX_JOBS": str(jobs), "NVCC_THREADS": "1"},
        mounts=(
            Mount(str(inputs), "/compile"),
            Mount(str(inputs / "network"), "/network"),
            Mount(str(work), "/work", "rw"),
            Mount(str(wheels), "/wheels", "rw"),
            Mount(str(ccache), "/ccache", "rw"),
        ),
        # Without capabilities root could not write to a folder of another user.
        user=f"{os.getuid()}:{os.getgid()}",
        gpus="none",
        tmpfs={"/tmp": "rw,exec,nosuid,nodev,mode=1777"},  # noqa: S108 - inside the container
        shm_size_bytes=64 * 2**20,
        labels={labels.KIND: "container", labels.ROLE: "compile", labels.ENGINE: stage.engine},
    )


def _run(host: DockerHost, spec: ContainerSpec, step: Step) -> None:
    container_id = host.create(spec)
    try:
        host.start(container_id)
        while (fact := host.find_container(container_id)) is not None and fact.is_running:
            step.say(_tail(host, container_id, 1) or "compiling")
            time.sleep(POLL_EVERY_S)
        if fact is None or fact.exit_code != 0:
            raise BuildError("vLLM did not compile", detail=_tail(host, container_id, TAIL_LINES))
    finally:
        host.remove(container_id)


def _tail(host: DockerHost, container_id: str, lines: int) -> str:
    text = b"".join(host.logs(container_id, tail=lines)).decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:])
