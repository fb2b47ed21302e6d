"""What each model of a stack needs: its request, and its plan as if the others did not run."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from sparkdeploy.checks.survey import Survey, survey
from sparkdeploy.deploy.nodes import needed_nodes
from sparkdeploy.deploy.request import NAMES, PORT, Request, resolve
from sparkdeploy.errors import RecipeError, SparkdeployError
from sparkdeploy.estimate.hardware import Hardware
from sparkdeploy.gateway.fit import ModelFit, StackFit
from sparkdeploy.gateway.stack import ModelEntry, Stack
from sparkdeploy.node.cluster import open_nodes, this_node
from sparkdeploy.node.container import ListedContainer
from sparkdeploy.node.facts import NodeFact
from sparkdeploy.node.node import Nodes
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.make import decide, topology_for
from sparkdeploy.plan.memory import promised_bytes
from sparkdeploy.plan.observe import observe
from sparkdeploy.plan.observed import Observed, ObservedNode
from sparkdeploy.plan.on_hardware import plan_on
from sparkdeploy.plan.steps import Plan
from sparkdeploy.recipe.consent import asked, consent_hint, digest
from sparkdeploy.recipe.document import Document, KeyPath, ValueOrigin, is_set
from sparkdeploy.recipe.library import library
from sparkdeploy.recipe.load import Resolved, error_of
from sparkdeploy.recipe.paths import CHAT_TEMPLATE
from sparkdeploy.recipe.rules import Mistake
from sparkdeploy.server.phases import start_s
from sparkdeploy.settings import Settings
from sparkdeploy.yaml_text import in_line

LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class PlannedModel:
    model: ModelEntry
    request: Request
    resolved: Resolved
    plan: Plan

    @property
    def has_work(self) -> bool:
        """Say whether `up` of the stack would make, fetch or start anything of it."""
        return self.plan.has_work if self.model.keep == "always" else self.plan.prepares


@dataclass(frozen=True, slots=True)
class StackPlan:
    stack: Stack
    members: tuple[PlannedModel, ...]
    fit: StackFit
    hardware: Hardware | None = None
    """The machine that was named in the place of those at hand."""

    def __getitem__(self, name: str) -> PlannedModel:
        return {it.model.name: it for it in self.members}[name]

    @property
    def always(self) -> tuple[PlannedModel, ...]:
        return tuple(it for it in self.members if it.model.keep == "always")

    @property
    def download_bytes(self) -> int | None:
        """Return what is to be fetched, a repository of several models once; None if unknown."""
        sizes: dict[str, int | None] = {}
        for member in self.members:
            missing = member.plan.observed.missing
            sizes |= {f"{it.repo}@{it.revision}": it.missing_bytes for it in missing}
            if not missing:
                sizes[member.model.name] = member.plan.head.needs.download_bytes
        known = [size for size in sizes.values() if size is not None]
        return sum(known) if len(known) == len(sizes) else None


def plan_stack(
    stack: Stack,
    settings: Settings,
    consents: Sequence[str] = (),
    hardware: Hardware | None = None,
) -> StackPlan:
    """Decide for each model as if no other one of the stack ran; `consents` are assignments."""
    requests = requests_of(stack, settings, consents)
    names = frozenset(requests)
    if hardware is not None:
        made = [_member_on(hardware, it, requests[it.name], settings) for it in stack.models]
        seen_nodes = {it.facts.name: it for member in made for it in member.plan.observed.nodes}
        usable = dict(_usable_pools(seen_nodes.values(), names))
        return _stack_plan(stack, made, usable, settings, hardware)
    needed = frozenset[str]()
    for request in requests.values():
        needed |= _needed(request, settings)
    with open_nodes(settings, needed) if needed else this_node(settings) as nodes:
        seen = survey(nodes, settings.hub_cache)
        members = tuple(
            _member(model, requests[model.name], names - {model.name}, settings, nodes, seen)
            for model in stack.models
        )
        usable = dict(_usable_pools(_with_own_containers(nodes, seen), names))
    return _stack_plan(stack, members, usable, settings)


def _stack_plan(
    stack: Stack,
    members: Sequence[PlannedModel],
    usable: dict[str, int],
    settings: Settings,
    hardware: Hardware | None = None,
) -> StackPlan:
    fits = tuple(_fit_of(member, settings, hardware) for member in members)
    # Of a pool that nobody has measured one model at a time may take.
    for fit in fits:
        for pool in fit.takes.keys() - usable.keys():
            usable[pool] = max(it.takes.get(pool, 0) + it.floors.get(pool, 0) for it in fits)
    return StackPlan(stack, tuple(members), StackFit(usable, fits), hardware)


def _with_own_containers(nodes: Nodes, seen: Survey) -> Iterator[ObservedNode]:
    for node in nodes:
        fact = seen.seen.get(node.name)
        if fact is not None:
            listing = node.listing if fact.docker is not None else ()
            yield ObservedNode(fact, containers=tuple(it for it in listing if it.is_own))


def requests_of(
    stack: Stack, settings: Settings, consents: Sequence[str] = ()
) -> dict[str, Request]:
    """Return what starts each model: the recipe, on a port of its own and under its name."""
    if not any(is_set("allow_unsafe", it) for it in consents):
        _require_consent_to_clients(stack, settings)
    taken = {stack.port, *(it.port for it in stack.models if it.port is not None)}
    requests = {}
    for model in stack.models:
        with naming(model.name):
            typed = (*model.assignments, *consents)
            resolved = resolve(Request(model.recipe, typed), settings)
            _require_consent(resolved, model, stack, settings)
            port = model.port or _free_port(resolved.recipe.serve.port, taken)
            taken.add(port)
            own = resolved.recipe.model.served_names
            names = [*dict.fromkeys((model.name, *own))]
            added = [f"{PORT}={port}", f"{NAMES}={in_line(names)}"]
            if resolved.recipe.limits.idle_stop_s is not None:
                # The gateway knows who still waits; a server that ends by itself does not.
                added.append("limits.idle_stop_s=null")
            is_cluster = resolved.recipe.cluster.least_nodes > 1
            requests[model.name] = Request(
                model.recipe, (*typed, *added), Deployment(model.name), is_cluster
            )
    return requests


def _free_port(first: int, taken: Set[int]) -> int:
    return next((it for it in range(first, LAST_PORT) if it not in taken), LAST_PORT)


def _require_consent_to_clients(stack: Stack, settings: Settings) -> None:
    """Raise ConsentNeededError where a stranger's stack says who else may use the models."""
    named = {"allowed_origins": stack.allowed_origins, "allowed_hosts": stack.allowed_hosts}
    asked_for = [
        Mistake((key,), f"{', '.join(names)}: pages of that name may use the models", "")
        for key, names in named.items()
        if names
    ]
    origins: dict[KeyPath, ValueOrigin] = {(): stack.origin}
    if not asked_for or not library(settings).foreign_files(origins):
        return
    record = settings.state_dir / "consents" / digest(asked_for, origins, (), "")
    what, hint = f"stack {stack.path}", "--allow-unsafe takes it"
    _require_record(record, what, origins, asked_for, hint)


def _require_consent(
    resolved: Resolved, model: ModelEntry, stack: Stack, settings: Settings
) -> None:
    """Raise ConsentNeededError for what the stack's own `set` may only do with consent."""
    if not model.assignments or resolved.recipe.allow_unsafe:
        return
    own = stack.origin
    origins = {key: own if it.line is None else it for key, it in resolved.origins.items()}
    needed = [*asked(resolved.recipe, origins, library(settings).foreign_files({(): own}))]
    for asked_for in needed:
        if asked_for.path[0] == "mods" or asked_for.path == CHAT_TEMPLATE:
            # Their files are held against what was consented to where a recipe names them.
            what = ".".join(map(str, asked_for.path))
            raise RecipeError(
                f"{own}: model {model.name}: `set` of a stack from elsewhere names no {what}",
                hint="write it into the recipe; --allow-unsafe takes it as it is",
            )
    mods, template = resolved.mods, resolved.template_hash
    record = settings.state_dir / "consents" / digest(needed, origins, mods, template)
    if needed:
        what, hint = f"model {model.name} of {stack.path}", consent_hint(model.recipe, needed)
        _require_record(record, what, origins, needed, hint)


def _require_record(
    record: Path,
    what: str,
    origins: dict[KeyPath, ValueOrigin],
    asked_for: Sequence[Mistake],
    hint: str,
) -> None:
    """Raise ConsentNeededError unless somebody has agreed before, which the record remembers."""
    if not record.is_file():
        raise error_of(what, Document({}, origins), [], asked_for, hint=hint, record=record)


def _needed(request: Request, settings: Settings) -> frozenset[str]:
    """Return the nodes that serve a model together; none for this machine alone."""
    if not request.cluster:
        return frozenset()
    with naming(request.deployment.name):
        return needed_nodes(resolve(request, settings), settings)


@contextlib.contextmanager
def naming(model: str) -> Iterator[None]:
    """Put the model's name before the message of an error."""
    try:
        yield
    except SparkdeployError as error:
        if not error.message.startswith(f"model {model}"):
            error.message = f"model {model}: {error.message}"
        raise


def _member(
    model: ModelEntry,
    request: Request,
    others: frozenset[str],
    settings: Settings,
    nodes: Nodes,
    seen: Survey,
) -> PlannedModel:
    ranks = nodes.only(_needed(request, settings)) if request.cluster else nodes.alone()
    with naming(model.name):
        resolved = resolve(request, settings)
        observed = observe(resolved, settings, ranks, request.deployment, found=seen)
        observed = _as_if_alone(observed, others)
        topology = topology_for(resolved, ranks, observed)
        plan = decide(resolved, settings, observed, request.deployment, topology)
    return PlannedModel(model, request, resolved, plan)


def _member_on(
    hardware: Hardware, model: ModelEntry, request: Request, settings: Settings
) -> PlannedModel:
    with naming(model.name):
        resolved, deployment = resolve(request, settings), request.deployment
        plan = plan_on(hardware, resolved, settings, deployment, cluster=request.cluster)
    return PlannedModel(model, request, resolved, plan)


def _as_if_alone(observed: Observed, others: frozenset[str]) -> Observed:
    """Return what was observed as if the other models had been stopped."""
    port = observed.port
    is_theirs = port is not None and port.deployment in others
    nodes = tuple(_without(node, others) for node in observed.nodes)
    return replace(observed, nodes=nodes, port=None if is_theirs else port)


def _without(node: ObservedNode, others: frozenset[str]) -> ObservedNode:
    stopped = tuple(
        replace(it, state="exited") if it.deployment in others else it for it in node.containers
    )
    free_bytes = _available(node.facts, node.containers, others)
    return replace(
        node, containers=stopped, facts=replace(node.facts, memory_available_bytes=free_bytes)
    )


def _available(
    fact: NodeFact, containers: Sequence[ListedContainer], stopping: Set[str]
) -> int | None:
    """Return what is available once some deployments have given their memory back."""
    if fact.memory_available_bytes is None:
        return None
    freed = sum(
        it.promised_bytes for it in containers if it.is_running and it.deployment in stopping
    )
    total_bytes = fact.memory_total_bytes
    available = fact.memory_available_bytes + freed
    return available if total_bytes is None else min(available, total_bytes)


def _usable_pools(nodes: Iterable[ObservedNode], names: Set[str]) -> Iterator[tuple[str, int]]:
    """Yield how much there is of each node's memory and its GPU's for models."""
    for node in nodes:
        fact, containers = node.facts, node.containers
        if fact.memory_total_bytes is not None:
            unpromised = fact.memory_total_bytes - promised_bytes(containers, names)
            available = _available(fact, containers, names)
            yield fact.name, unpromised if available is None else min(available, unpromised)
        if fact.gpu is not None and fact.gpu.memory_bytes is not None:
            ours = {it.container_id for it in containers if it.deployment in names}
            others_bytes = sum(
                it.memory_bytes or 0 for it in fact.gpu_processes if it.container_id not in ours
            )
            yield _gpu_pool(fact.name), fact.gpu.memory_bytes - others_bytes


def _gpu_pool(node: str) -> str:
    return f"{node}'s GPU"


def _fit_of(member: PlannedModel, settings: Settings, hardware: Hardware | None = None) -> ModelFit:
    takes: dict[str, int] = {}
    floors: dict[str, int] = {}
    plan = member.plan
    for planned in plan.nodes:
        claim, node = planned.claim, planned.node
        # Nobody knows how much there is of it: nothing runs beside that.
        if hardware is None or hardware.shares_memory:
            takes[node] = claim.needed_bytes if claim is not None else 1
            floors[node] = claim.floor_bytes if claim is not None else 0
        seen = plan.observed.node(node)
        gpu = seen.facts.gpu if seen is not None else None
        if claim is not None and claim.vllm_bytes and gpu is not None and gpu.memory_bytes:
            takes[_gpu_pool(node)] = claim.vllm_bytes
    if not plan.topology.is_alone:
        # Nodes of two deployments would meet at one port of their head.
        takes[f"{plan.head.node}'s port for other nodes"] = 1
    took_s, is_measured = start_s(plan, settings.state_dir)
    return ModelFit(
        name=member.model.name,
        keep=member.model.keep,
        takes=takes,
        floors=floors,
        start_s=took_s,
        is_measured=is_measured,
        download_bytes=plan.head.needs.download_bytes,
    )
