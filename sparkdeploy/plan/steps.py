"""The plan: its steps and problems, as data that is printed and applied unchanged."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from sparkdeploy.checks.report import Finding, Verdict, said
from sparkdeploy.errors import NodeError
from sparkdeploy.node.cluster import MASTER_PORT, RAY_PORT, ClusterConfig
from sparkdeploy.plan.known_bad import RecipeOnEngine
from sparkdeploy.plan.observed import ModelFact, Observed
from sparkdeploy.recipe.cluster_sizes import nodes_needed
from sparkdeploy.recipe.image_name import is_tag
from sparkdeploy.recipe.image_pins import InspectedEngine
from sparkdeploy.terminal.step import PlannedStep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.estimate.memory import MemoryClaim
    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.container import ContainerFact, ContainerSpec
    from sparkdeploy.plan.container import Deployment, HostFolders
    from sparkdeploy.recipe.load import Resolved


BUDGET_CHECK = "machine.room"


class Action(Enum):
    """What a step does; the value is the sign it is printed with."""

    REUSE = "="
    BUILD = "+"
    FETCH = "v"
    PREPARE = "*"
    START = ">"
    REPLACE = "~"

    @property
    def is_work(self) -> bool:
        return self is not Action.REUSE


@dataclass(frozen=True, slots=True)
class ImageStep:
    stage: Stage
    action: Literal[Action.REUSE, Action.BUILD, Action.FETCH]
    """FETCH: of a tag that nobody has asked for yet."""
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointStep:
    """What vLLM mounts: the download itself, a finished overlay, or one to be prepared."""

    action: Literal[Action.REUSE, Action.PREPARE, Action.FETCH]
    reason: str
    write_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Needs:
    """What a rank takes from its node; None where it cannot be known yet."""

    image_bytes: int | None
    """On Docker's disk while images are built or loaded; 0 when all are there."""
    download_bytes: int | None
    write_bytes: int | None
    memory_bytes: int | None = None
    sent_bytes: int | None = 0
    """From the head to this node, before compression."""
    weights_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node does: its container is kept, started, or put in the place of an older one."""

    rank: NodeRank
    action: Literal[Action.REUSE, Action.START, Action.REPLACE]
    reason: str
    spec: ContainerSpec | None
    """None as long as the model is missing, whose owner decides the container's user, and for a
    node that does not answer."""
    folders: HostFolders | None
    claim: MemoryClaim | None
    """None where the node's memory is not known."""
    needs: Needs
    stopped: ContainerFact | None = None
    """The very container that is asked for, stopped: it starts again, and none is made."""

    @property
    def node(self) -> str:
        return self.rank.node


@dataclass(frozen=True, slots=True)
class Plan:
    resolved: Resolved
    deployment: Deployment
    topology: Topology
    folders: HostFolders
    """The head's."""
    observed: Observed
    images: tuple[ImageStep, ...]
    checkpoint: CheckpointStep
    nodes: tuple[NodePlan, ...] = ()
    """One a node, by rank."""
    findings: tuple[Finding, ...] = ()

    @property
    def head(self) -> NodePlan:
        return self.nodes[0]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.resolved.recipe.serve.port}"

    @property
    def case(self) -> RecipeOnEngine:
        """What is compared with what releases are known to do wrong."""
        recipe, model = self.resolved.recipe, self.observed.model
        layers = model.layers if model is not None else None
        return RecipeOnEngine(recipe, self.resolved.engine, self.topology.gpus, layers)

    @property
    def timing_key(self) -> str:
        """Return the key under which the durations of such starts are remembered.

        On a CPU it is another one: a rehearsal's minute is no promise of what the recipe takes.
        """
        node_count = len(self.topology.nodes)
        nodes = f" on {node_count} nodes" if node_count > 1 else ""
        where = " on a CPU" if self.resolved.engine.runs_on == "cpu" else ""
        return f"{self.images[-1].stage.tag} {self.resolved.recipe.name}{where}{nodes}"

    @property
    def is_unchecked(self) -> bool:
        """Whether nobody could say how much memory the model takes."""
        return any(
            item.check == BUDGET_CHECK and item.verdict is Verdict.NOT_SEEN
            for item in self.findings
        )

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(item for item in self.findings if item.verdict is Verdict.FAIL)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(item for item in self.findings if item.verdict is Verdict.WARN)

    @property
    def prepares(self) -> bool:
        actions = [self.checkpoint.action, *(step.action for step in self.images)]
        sends = any(planned.needs.sent_bytes != 0 for planned in self.nodes)
        return sends or any(action.is_work for action in actions)

    @property
    def has_work(self) -> bool:
        return self.prepares or any(planned.action.is_work for planned in self.nodes)


def awaited_preparation(plan: Plan) -> list[PlannedStep]:
    """Return what is to be made before containers start, as the steps that make it are called."""
    images = [step.stage for step in plan.images if step.action is Action.BUILD]
    awaited = [PlannedStep(f"image {stage.name}") for stage in images]
    if plan.checkpoint.action is Action.PREPARE:
        awaited.append(PlannedStep("checkpoint overlay"))
    return awaited


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain values for `--json`; `container` and `needs` are the head's."""
    recipe, model, is_here = plan.resolved.recipe, plan.observed.model, not plan.observed.missing
    specs = {it.node: asdict(it.spec) if it.spec is not None else None for it in plan.nodes}
    return {
        "schema": 1,
        "recipe": recipe.name,
        "engine": plan.resolved.engine.name,
        "deployment": plan.deployment.name,
        "exposure": plan.deployment.exposure,
        "node": plan.head.node,
        "images": [
            {"stage": step.stage.name, "tag": step.stage.tag, **_done_and_why(step)}
            for step in plan.images
        ],
        "checkpoint": {
            **_done_and_why(plan.checkpoint),
            "model": recipe.model.source,
            "path": str(model.root) if isinstance(model, ModelFact) and is_here else None,
            "write_bytes": plan.checkpoint.write_bytes,
        },
        "container": {**_done_and_why(plan.head), "spec": specs[plan.head.node]},
        "topology": asdict(plan.topology),
        "ranks": [
            {
                "node": planned.node,
                "rank": planned.rank.number,
                **_done_and_why(planned),
                "needs": asdict(planned.needs),
            }
            for planned in plan.nodes
        ],
        "nodes": specs,
        "needs": asdict(plan.head.needs),
        "checks": [asdict(check) for check in plan.observed.checks],
        "problems": [{**said(item), "blocks": item.blocks} for item in plan.problems],
        "warnings": [said(item) for item in plan.warnings],
        "unobserved": list(plan.observed.unobserved),
        "mods": [mod.name for mod in recipe.mods],
        "image": _image_as_dict(plan),
        "import": plan.resolved.translation.as_dict() if plan.resolved.translation else None,
        "has_work": plan.has_work,
    }


def _image_as_dict(plan: Plan) -> dict[str, Any] | None:
    engine, name = plan.resolved.engine, plan.resolved.image
    if name is None:
        return None
    contents = engine.contents if isinstance(engine, InspectedEngine) else None
    holds = asdict(replace(contents, release=None)) if contents is not None else {}
    holds.pop("release", None)
    return {"name": name, "pinned": None if is_tag(engine.image) else engine.image, "holds": holds}


def _done_and_why(step: ImageStep | CheckpointStep | NodePlan) -> dict[str, str]:
    return {"action": step.action.name.lower(), "reason": step.reason}


Backend = Literal["native", "ray"]


@dataclass(frozen=True, slots=True)
class NodeRank:
    """One node's rank in a deployment, and the addresses and devices by which others reach it."""

    node: str
    number: int = 0
    address: str = "127.0.0.1"
    interface: str = ""
    rdma: tuple[str, ...] = ()
    """All RDMA devices, twins included: NCCL reaches the port's full rate only over both."""
    gid_index: int | None = None

    @property
    def is_head(self) -> bool:
        return self.number == 0


@dataclass(frozen=True, slots=True)
class Topology:
    """The nodes of one deployment, the head first, and how the model is divided among them."""

    ranks: tuple[NodeRank, ...]
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    backend: Backend = "native"
    master_port: int = MASTER_PORT
    ray_port: int = RAY_PORT
    left_alone: tuple[str, ...] = ()
    """Nodes that are configured and not needed."""

    @property
    def is_alone(self) -> bool:
        return len(self.ranks) == 1

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def head(self) -> NodeRank:
        return self.ranks[0]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(rank.node for rank in self.ranks)

    @property
    def start_order(self) -> tuple[NodeRank, ...]:
        """Workers first; a Ray worker, though, has to find its head."""
        head, *workers = self.ranks
        return (head, *workers) if self.backend == "ray" else (*workers, head)


def alone(node: str) -> Topology:
    return Topology((NodeRank(node),))


def for_cluster(resolved: Resolved) -> Resolved:
    """Return the recipe with what its `cluster` section changes for several nodes."""
    override = resolved.recipe.cluster.speculative
    if override is None:
        return resolved
    speculative = None if override == "off" else override
    serve = resolved.recipe.serve.model_copy(update={"speculative": speculative})
    return replace(resolved, recipe=resolved.recipe.model_copy(update={"serve": serve}))


def make_topology(
    resolved: Resolved,
    config: ClusterConfig,
    head: str,
    gid_indexes: Mapping[str, int] | None = None,
    *,
    gpus_per_node: int = 1,
) -> Topology:
    """Give each node that is needed a rank: `head` 0, the others in the order of the file.

    `gid_indexes` has the RoCEv2 index by node. Raises NodeError when there are too few nodes, and
    RecipeError when the recipe's parallel sizes do not fit the nodes.
    """
    cluster = resolved.recipe.cluster
    nodes = sorted(config.nodes, key=lambda node: node.name != head)
    wanted = nodes_needed(cluster, gpus_per_node)
    if len(nodes) < wanted:
        raise NodeError(
            f"{resolved.recipe.name} spreads over {wanted} nodes, and {len(nodes)} are configured",
            hint=f"--set cluster.tensor_parallel={len(nodes)}, or add nodes to config.yaml",
        )
    gid_indexes = gid_indexes or {}
    ranks = tuple(
        NodeRank(
            node=node.name,
            number=number,
            address=node.ip,
            interface=node.fabric[0].interface,
            rdma=tuple(port.rdma for port in node.fabric if port.rdma is not None),
            gid_index=gid_indexes.get(node.name),
        )
        for number, node in enumerate(nodes[:wanted])
    )
    return Topology(
        ranks=ranks,
        tensor_parallel=cluster.tensor_parallel,
        pipeline_parallel=cluster.pipeline_parallel,
        data_parallel=cluster.data_parallel,
        backend=cluster.backend,
        master_port=config.master_port,
        ray_port=config.ray_port,
        left_alone=tuple(node.name for node in nodes[wanted:]),
    )
