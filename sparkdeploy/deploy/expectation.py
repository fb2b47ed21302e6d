"""What a start is checked against: kept on the container, which outlives its plan."""

import contextlib
import functools
import json
import shlex
from collections.abc import (
    Iterator,
    Mapping,
)
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

from pydantic import TypeAdapter

from sparkdeploy import labels
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.checks.rdma import chosen_adapters, rdma_checks, read_rdma
from sparkdeploy.checks.report import Finding, Verdict, node_finding
from sparkdeploy.errors import CheckpointError, NodeError, UnhealthyError
from sparkdeploy.estimate.memory import MemoryClaim
from sparkdeploy.image.inside import all_reduce, rdma
from sparkdeploy.node.container import NAME_START, ContainerFact, ContainerSpec, ListedContainer
from sparkdeploy.node.host import DockerRefusedError
from sparkdeploy.node.node import Node, Nodes, at_once, named
from sparkdeploy.node.ports import free_port
from sparkdeploy.plan.container import probe_spec, wants_rdma
from sparkdeploy.plan.launch import (
    PlannedBackend,
    allows_sockets,
    planned_backends,
    planned_transport,
)
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.plan.preflight import refuse_to_start
from sparkdeploy.plan.steps import NodePlan, Plan
from sparkdeploy.server.crash import root_cause
from sparkdeploy.server.facts import BackendCheck, EngineFacts, Match, compare_backends
from sparkdeploy.server.phases import read_whole
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_gib


@dataclass(frozen=True, slots=True)
class Expectation:
    """The memory that is taken, and what the engine's log has to show."""

    memory: MemoryClaim | None
    backends: tuple[PlannedBackend, ...]
    converted: Mapping[str, int | str] | None
    """What the plugin's lines have to say, by their names in EngineFacts; None where the untouched
    download is served."""

    def as_label(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def verify_rank(node: Node, fact: ContainerFact, facts: EngineFacts | None = None) -> None:
    """Compare a rank's log, or the `facts` read of it, with what its container was made with."""
    expected = expectation_on(fact)
    if expected is None:
        return
    if facts is None:
        with named(node):
            facts = read_whole(node.docker.logs(fact.container_id, this_run=fact)).facts
    if not (node.is_here or facts.has_plugin_line):
        # A worker's log may say nothing of the plugin, as under Ray.
        expected = replace(expected, converted=None)
    try:
        check_backends(expected, facts)
    except UnhealthyError as error:
        if not node.is_here:
            error.message = f"{node.name}: {error.message}"
        raise


@functools.cache
def _reader() -> TypeAdapter[Expectation]:
    return TypeAdapter(Expectation)


def expectation_of(plan: Plan, planned: NodePlan) -> Expectation:
    """Raises CheckpointError when a prepared checkpoint has lost its manifest."""
    backends = planned_backends(plan.resolved)
    if planned.spec is not None:
        backends += planned_transport(plan.resolved, planned.spec.env, _adapters(plan, planned))
    return Expectation(planned.claim, backends, _converted(plan))


def _adapters(plan: Plan, planned: NodePlan) -> tuple[str, ...]:
    """Return the adapters that each process whose words stand in a rank's log has to take."""
    logged = plan.nodes if plan.topology.backend == "ray" and planned is plan.head else (planned,)
    chosen = [chosen_adapters(it.spec.env, it.rank.rdma) for it in logged if it.spec is not None]
    return tuple(name for name in chosen[0] if all(name in names for names in chosen))


def expectation_on(fact: ListedContainer) -> Expectation | None:
    """Return what a container was made with; None for one that was made by hand."""
    text = fact.labels.get(labels.EXPECTATION)
    return _reader().validate_json(text) if text else None


def _converted(plan: Plan) -> dict[str, int | str] | None:
    model, recipe = plan.observed.model, plan.resolved.recipe
    if not isinstance(model, ModelFact) or model.overlay is None:
        return None
    folder = Path(model.overlay.path)
    manifest = read_manifest(folder)
    if manifest is None:
        raise CheckpointError(
            f"{folder} has lost its manifest", hint=f"rm -r {shlex.quote(str(folder))}"
        )
    converted: dict[str, int | str] = {
        "fp8_layers": manifest.fp8_layer_count,
        "lm_head": manifest.conversion["lm_head"],
        "shared_int4_layers": manifest.shared_int4_count,
    }
    if recipe.serve.speculative is not None:
        # A draft model that shares the target's head drafts as well, only slower: nobody would see.
        if recipe.checkpoint.draft_lm_head is not None:
            converted["draft_head_rows"] = recipe.checkpoint.draft_lm_head.rows
        if (layer := manifest.draft_layer) is not None:
            converted["draft_int4_layers"] = layer.int4_layers
            converted["draft_fp8_layers"] = layer.fp8_layers
    return converted


def check_backends(expected: Expectation, facts: EngineFacts) -> None:
    """Warn of other back ends; UnhealthyError for another conversion, or NCCL's sockets."""
    for name, wanted in (expected.converted or {}).items():
        made = getattr(facts, name)
        # The plugin has no word for what it leaves alone.
        if (made or 0) != (wanted or 0):
            said = f"made {made or 'none'}" if facts.has_plugin_line else "said nothing"
            raise UnhealthyError(
                f"the recipe asks for {name}={wanted}, and the plugin {said}",
                hint="this is a fault of sparkdeploy: please report it with the crash folder",
            )
    failed: BackendCheck | None = None
    for found in compare_backends(expected.backends, facts):
        if found.is_failure:
            failed = failed or found
        elif found.match is Match.DIFFERS:
            console.warn(found.describe())
    if failed is not None:
        raise UnhealthyError(
            f"NCCL fell back: {failed.describe()}",
            hint="if that is fine: --set 'backends.warn_only=[transport]'",
        )


LOOK_TIMEOUT_S = 120
"""It takes a second; an image that has just arrived is read from a cold disk."""
SUM_TIMEOUT_S = 120
"""The program gives up by itself before; importing torch takes its time."""
GAVE_UP = "Timeout ("
"""How Python's faulthandler begins its words."""
SUM_NEEDS_BYTES = 4 * 2**30
"""A CUDA context and NCCL's buffers: on unified memory they are the machine's."""
SUBJECT = "NCCL all-reduce"


def require_rdma(plan: Plan, nodes: Nodes) -> None:
    """Raise NodeError with all that would keep NCCL from the adapters; the rest are warnings."""
    findings = probe_containers(plan, nodes)
    refuse_to_start(plan, tuple(it for it in findings if it.verdict is Verdict.FAIL))
    for finding in findings:
        if finding.verdict is not Verdict.OK:
            console.warn(finding.seen)


def probe_containers(plan: Plan, nodes: Nodes) -> tuple[Finding, ...]:
    """Look into the engine image on every node whose rank uses RDMA; none on machines without."""
    wanted = [it for it in plan.nodes if wants_rdma(plan.resolved, plan.topology, it.rank)]
    found = at_once(lambda planned: list(_probe(plan, planned, nodes.node(planned.node))), wanted)
    is_enough = allows_sockets(plan.resolved)
    return tuple(
        replace(it, verdict=Verdict.WARN) if is_enough and it.verdict is Verdict.FAIL else it
        for of_node in found
        for it in of_node
    )


def check_all_reduce(plan: Plan, nodes: Nodes) -> tuple[Finding, ...]:
    """Let NCCL add a tensor up over all nodes of the plan, in containers like those of a launch."""
    # Not beside a deployment: both would take from the same memory, and the guard ends what serves.
    try:
        reason = _why_not(plan, nodes)
        # That of a launch may be taken by what serves now.
        port = free_port(plan.head.rank.address) if not reason else 0
    except NodeError as error:
        reason = error.message
    if reason:
        return (_sum(plan.head.node, Verdict.NOT_SEEN, reason),)
    return tuple(at_once(lambda it: _add(plan, it, nodes.node(it.node), port), plan.nodes))


def _spec(plan: Plan, planned: NodePlan, program: str, *arguments: str) -> ContainerSpec:
    model = plan.observed.model
    spec = probe_spec(
        plan.resolved,
        plan.topology,
        planned.rank,
        image=plan.images[-1].stage.tag,
        model=model if isinstance(model, ModelFact) else None,
        command=("-c", Path(program).read_text(encoding="utf-8"), *arguments),
    )
    return replace(spec, name=f"{NAME_START}look-{uuid4().hex[:8]}")


def _probe(plan: Plan, planned: NodePlan, node: Node) -> Iterator[Finding]:
    spec = replace(_spec(plan, planned, rdma.__file__), gpus="none")
    subject, check = "container with /dev/infiniband", "container"
    if not _has_image(node, spec.image):
        seen = f"engine image: {_image_missing(plan, planned.node)}"
        fix = f"sparkdeploy up {plan.resolved.called} --cluster --prepare"
        yield node_finding(check, planned.node, Verdict.NOT_SEEN, seen, fix=fix)
        return
    try:
        code, output = node.docker.run_to_end(spec, timeout_s=LOOK_TIMEOUT_S)
    except NodeError as error:
        seen = f"{subject}: {error.message}"
        if isinstance(error, DockerRefusedError):
            # Such as a device that the machine does not have, or a limit its user may not raise.
            fix = f"on {planned.node}: ls -l /dev/infiniband"
            yield node_finding(check, planned.node, False, seen, "one that starts", fix)
        else:
            yield node_finding(check, planned.node, Verdict.NOT_SEEN, seen, fix=error.hint)
        return
    fact = read_rdma(_after_mark(output, rdma.MARK))
    if code == 0 and fact is not None:
        yield from rdma_checks(node.entry, fact, spec.env)
        return
    last = next(iter(output.strip().splitlines()[-1:]), "the program said nothing").strip()
    yield node_finding(check, planned.node, Verdict.NOT_SEEN, f"{subject}: {last}")


def _why_not(plan: Plan, nodes: Nodes) -> str:
    if plan.resolved.engine.runs_on != "cuda":
        return f"engine {plan.resolved.engine.name} runs on CPUs"
    for planned in plan.nodes:
        seen = plan.observed.node(planned.node)
        if seen is None or seen.facts.gpu is None:
            return f"no GPU was seen on {planned.node}"
        serving = next((it.deployment for it in seen.containers if it.is_running), None)
        if serving is not None:
            return f"{serving} runs on {planned.node}, and NCCL would take memory from it"
        if not _has_image(nodes.node(planned.node), plan.images[-1].stage.tag):
            return _image_missing(plan, planned.node)
        free_bytes = seen.facts.memory_available_bytes or 0
        if free_bytes < SUM_NEEDS_BYTES:
            has, needs = format_gib(free_bytes), format_gib(SUM_NEEDS_BYTES)
            return f"{has} of memory are free on {planned.node}, and it takes up to {needs}"
    return ""


@dataclass(frozen=True)
class _Added:
    sum: float
    """Of one element."""
    gb_per_s: float


def _add(plan: Plan, planned: NodePlan, node: Node, port: int) -> Finding:
    rank, count = planned.rank, len(plan.nodes)
    arguments = (str(rank.number), str(count), plan.head.rank.address, str(port))
    spec = _spec(plan, planned, all_reduce.__file__, *arguments)
    try:
        code, output = node.docker.run_to_end(spec, timeout_s=SUM_TIMEOUT_S)
    except NodeError as error:
        return _sum(planned.node, Verdict.FAIL, error.message, error.hint)
    added: _Added | None = None
    with contextlib.suppress(ValueError):
        added = TypeAdapter(_Added).validate_json(_after_mark(output, all_reduce.MARK))
    if code != 0 or added is None:
        value, fix = _why_no_sum(code, output)
        return _sum(planned.node, Verdict.FAIL, value, fix)
    if added.sum != count:
        fix = "report it with what `sparkdeploy cluster check --json` says: NCCL adds up wrongly"
        return _sum(planned.node, Verdict.FAIL, f"{added.sum:g}", fix, expected=str(count))
    facts = read_whole([output.encode()]).facts
    value = f"{facts.transport.describe() or 'no transport logged'}, {added.gb_per_s:g} GB/s"
    adapters = chosen_adapters(spec.env, rank.rdma)
    for found in compare_backends(planned_transport(plan.resolved, spec.env, adapters), facts):
        if found.match is Match.DIFFERS:
            verdict = Verdict.FAIL if found.is_failure else Verdict.WARN
            fix = "what the image or the node lacks stands above"
            return _sum(planned.node, verdict, value, fix, expected=found.planned.wanted)
    return _sum(planned.node, Verdict.OK, value)


def _sum(
    node: str, verdict: Verdict, value: str, fix: str | None = None, *, expected: str = ""
) -> Finding:
    expected = expected or ("a sum" if verdict is Verdict.FAIL else "")
    return node_finding("all_reduce", node, verdict, f"{SUBJECT}: {value}", expected, fix)


def _why_no_sum(code: int, output: str) -> tuple[str, str | None]:
    if GAVE_UP in output:
        fix = "do packets of full size pass (above)? a switch between them must let RoCE through"
        return f"no sum within {all_reduce.GIVE_UP_S} s", fix
    cause = root_cause(output, code, oom_killed=False)
    return cause.describe(), cause.hint


def _has_image(node: Node, tag: str) -> bool:
    with named(node):
        return node.docker.find_image(tag) is not None


def _image_missing(plan: Plan, node: str) -> str:
    return f"the image of {plan.resolved.recipe.name} is not on {node} yet"


def _after_mark(output: str, mark: str) -> str:
    """Return what stands behind the last mark of a line, wherever others' words end before it."""
    _, _, text = output.rpartition(mark)
    return text.partition("\n")[0]
