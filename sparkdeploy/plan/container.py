"""The one container shape: decided here, made by the node package."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from sparkdeploy import __version__, labels
from sparkdeploy.node.container import ContainerSpec, Mount, Ulimit
from sparkdeploy.plan import launch
from sparkdeploy.plan.known_bad import RecipeOnEngine, mended
from sparkdeploy.plan.launch import uses_sockets
from sparkdeploy.recipe.fallbacks import launched
from sparkdeploy.vllm_plugin.sparkdeploy_vllm.node_variables import belongs_to_node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.plan.observed import ModelFact
    from sparkdeploy.plan.steps import NodeRank, Topology
    from sparkdeploy.recipe.answers import Answers
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Recipe

UNPRIVILEGED_ID = 65532
"""User and group of the container when the model folder belongs to root."""
SHM_SIZE_BYTES = 10 * 2**30
GUARD_MEMLOCK_BYTES = 256 * 2**20
"""Lets the guard lock its own pages, so that it still runs when memory is gone."""
GIB = 2**30
PYTHON = ("/opt/venv/bin/python", "-I")
GUARD_ENTRYPOINT = (*PYTHON, "-m", "sparkdeploy_vllm.guard")
MAX_RESTARTS = 3
INFINIBAND = "/dev/infiniband"
KERNEL_LOG = "/dev/kmsg:/dev/kmsg:r"
"""The guard reads there what the GPU's driver says of memory."""
UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template as it was read and judged, and where its copy for the container lies."""

    path: Path
    """In the state folder, named by the digest of what it holds."""
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class HostFolders:
    cache: Path
    key_file: Path
    chat_template: Template | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    name: str
    is_public: bool = False

    @property
    def exposure(self) -> str:
        return labels.PUBLIC if self.is_public else "loopback"


def container_name(deployment: str) -> str:
    return f"sparkdeploy-{deployment}"


def container_user(model: ModelFact) -> tuple[int, int]:
    """Return uid and gid: the model folder's owner, or an unprivileged pair for root's."""
    if model.owner_uid == 0:
        return UNPRIVILEGED_ID, UNPRIVILEGED_ID
    return model.owner_uid, model.owner_gid


def _path_inside(model: ModelFact) -> str:
    if model.overlay is not None:
        return f"/m/ck/{model.overlay.path.name}"
    return str(PurePosixPath("/m/hub") / model.name / model.files)


def has_adapters(resolved: Resolved, topology: Topology, rank: NodeRank) -> bool:
    # One node of several that are configured may serve alone: it has nobody to reach.
    return bool(rank.rdma) and resolved.engine.runs_on == "cuda" and not topology.is_alone


def wants_rdma(resolved: Resolved, topology: Topology, rank: NodeRank) -> bool:
    """Say whether a node's container gets the adapters that config.yaml names."""
    env = launch.fabric_env(resolved, topology, rank)
    return has_adapters(resolved, topology, rank) and not uses_sockets(env)


@dataclass(frozen=True, slots=True)
class NodePaths:
    folders: HostFolders
    model: ModelFact
    companions: tuple[ModelFact, ...] = ()


def rank_spec(  # noqa: PLR0913 - what was decided of one node
    resolved: Resolved,
    topology: Topology,
    rank: NodeRank,
    *,
    image: str,
    deployment: Deployment,
    paths: NodePaths,
    memory_bytes: int | None = None,
) -> ContainerSpec:
    """Return the container of one node; `memory_bytes` is what it is planned to take."""
    recipe = resolved.recipe
    deployment = deployment if rank.is_head else Deployment(deployment.name)
    uid, gid = container_user(paths.model)
    case = RecipeOnEngine(recipe, resolved.engine, topology.gpus, paths.model.layers)
    serve = launch.serve_argv(
        launched(mended(case), resolved.engine),
        _path_inside(paths.model),
        [_path_inside(item) for item in paths.companions],
        is_public=deployment.is_public,
    )
    memory = {} if memory_bytes is None else {labels.MEMORY: str(memory_bytes)}
    empty = _empty(resolved, topology, rank, image=image, user=f"{uid}:{gid}")
    return replace(
        empty,
        name=container_name(deployment.name),
        entrypoint=GUARD_ENTRYPOINT,
        command=(
            *_guard_options(recipe, deployment, topology, rank, paths.model.answers),
            *_node_options(empty.env),
            "--",
            *launch.rank_command(recipe, topology, rank, serve),
        ),
        mounts=_mounts(paths, is_public=deployment.is_public),
        labels={**_labels(recipe, deployment, topology, rank, paths.model.answers), **memory},
    )


def probe_spec(
    resolved: Resolved,
    topology: Topology,
    rank: NodeRank,
    *,
    image: str,
    model: ModelFact | None,
    command: tuple[str, ...],
) -> ContainerSpec:
    """Return a container like a node's own, with a program instead of vLLM."""
    uid, gid = container_user(model) if model is not None else (UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    return replace(
        _empty(resolved, topology, rank, image=image, user=f"{uid}:{gid}"),
        entrypoint=PYTHON,
        command=command,
        labels={labels.KIND: "container", labels.ROLE: "check"},
    )


def _empty(
    resolved: Resolved, topology: Topology, rank: NodeRank, *, image: str, user: str
) -> ContainerSpec:
    """Return what a node's containers have in common, whatever runs in them."""
    engine = resolved.engine
    of_fabric = launch.fabric_env(resolved, topology, rank)
    env = launch.serve_env(resolved.recipe, engine) | of_fabric
    with_rdma = has_adapters(resolved, topology, rank) and not uses_sockets(of_fabric)
    memlock = UNLIMITED if with_rdma else GUARD_MEMLOCK_BYTES
    return ContainerSpec(
        name="",
        image=image,
        entrypoint=(),
        command=(),
        env=dict(sorted(env.items())),
        mounts=(),
        user=user,
        gpus="none" if engine.runs_on == "cpu" else "all",
        # Docker's own default for /tmp is noexec, where compiled kernels cannot be loaded from.
        tmpfs={"/tmp": "rw,exec,nosuid,nodev,mode=1777"},  # noqa: S108 - inside the container
        shm_size_bytes=SHM_SIZE_BYTES,
        # A rehearsal may run where even root may not raise limits, and it guards no GPU memory.
        ulimits=(Ulimit("memlock", memlock),) if engine.runs_on != "cpu" else (),
        devices=(INFINIBAND,) if with_rdma else (),
        cap_add=("IPC_LOCK",) if with_rdma else (),
    )


def _guard_options(
    recipe: Recipe, deployment: Deployment, topology: Topology, rank: NodeRank, answers: Answers
) -> list[str]:
    options = ["--memory-floor-bytes", str(int(recipe.limits.memory_floor_gib * GIB))]
    if rank.is_head:
        options += ["--health-url", f"http://127.0.0.1:{recipe.serve.port}/health"]
        options += _stall_options(recipe, answers)
    if topology.is_alone and recipe.limits.idle_stop_s is not None:
        options += ["--idle-stop-s", f"{recipe.limits.idle_stop_s:g}"]
    if topology.is_alone:
        # One rank of several cannot come back by itself, so its guard restarts nothing.
        options += ["--max-restarts", str(MAX_RESTARTS)]
    if deployment.is_public:
        options += ["--key-file", launch.KEY_TARGET]
    return options


def _node_options(env: Mapping[str, str]) -> tuple[str, ...]:
    """Name what was said of this node; what an image brings of the kind is another machine's."""
    of_this_node = sorted(filter(belongs_to_node, env))
    return ("--node-env", ",".join(of_this_node)) if of_this_node else ()


def _stall_options(recipe: Recipe, answers: Answers) -> list[str]:
    """The head's guard speaks for all ranks: its server counts for them."""
    limits = recipe.limits
    if not limits.stall_s:
        return []
    options = ["--stall-s", f"{limits.stall_s:g}"]
    if answers.writes_text:
        options += ["--canary-model", recipe.model.served_names[0]]
    if limits.canary_idle_s is not None:
        options += ["--canary-s", f"{limits.canary_idle_s:g}"]
    return options


def _mounts(paths: NodePaths, *, is_public: bool) -> tuple[Mount, ...]:
    model, folders = paths.model, paths.folders
    models = (model, *paths.companions)
    # Two adapters may come from one repository.
    roots = dict.fromkeys((str(item.root), f"/m/hub/{item.name}") for item in models)
    mounts = [Mount(*item) for item in roots]
    # Where the links of a repository's folder lead; two models may have a file in common.
    shared = [path for item in models for path in item.shared]
    stored = {f"/m/hub/blobs/{path.parent.name}/{path.name}": path for path in shared}
    mounts += [Mount(str(path), target) for target, path in sorted(stored.items())]
    if model.overlay is not None:
        mounts.append(Mount(str(model.overlay.path), f"/m/ck/{model.overlay.path.name}"))
    mounts.append(Mount(str(folders.cache), launch.CACHE_TARGET, "rw"))
    if is_public:
        mounts.append(Mount(str(folders.key_file), launch.KEY_TARGET))
    if folders.chat_template is not None:
        mounts.append(Mount(str(folders.chat_template.path), launch.CHAT_TEMPLATE_TARGET))
    return tuple(mounts)


def _labels(
    recipe: Recipe, deployment: Deployment, topology: Topology, rank: NodeRank, answers: Answers
) -> Mapping[str, str]:
    among_others = {labels.NODES: ",".join(topology.nodes), labels.RANK: str(rank.number)}
    return {
        labels.KIND: "container",
        labels.VERSION: __version__,
        labels.DEPLOYMENT: deployment.name,
        labels.ROLE: "serving" if rank.is_head else "worker",
        labels.RECIPE: recipe.name,
        labels.PORT: str(recipe.serve.port),
        labels.SERVED_NAME: recipe.model.served_names[0],
        labels.ANSWERS: answers.as_label(),
        labels.EXPOSURE: deployment.exposure,
        labels.STARTUP_TIMEOUT: f"{recipe.limits.startup_timeout_s:g}",
        **({} if topology.is_alone else among_others),
    }
