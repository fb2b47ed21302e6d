"""`doctor`: look at the machine a recipe is for, all at once and for three seconds at most."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sparkdeploy.checks import docker, report
from sparkdeploy.checks.host import (
    CheckedHost,
    NeededHost,
    TargetName,
    TimeLimitedMachine,
    booting,
    host_findings,
    own_folders,
    processor,
)
from sparkdeploy.checks.machine import check_other_servers, gpu_symptoms, machine_symptoms
from sparkdeploy.checks.report import Finding, fail, not_seen
from sparkdeploy.checks.survey import survey
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.errors import RecipeError, SparkdeployError
from sparkdeploy.node.cluster import configured
from sparkdeploy.node.container import REPLACED_SUFFIX, ContainerFact, ListedContainer
from sparkdeploy.node.facts import THIS_MACHINE, Machine, spelled
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.lock import attendant_of
from sparkdeploy.node.node import Nodes, in_background, node_behind
from sparkdeploy.node.symptoms import SymptomFact, look_for_symptoms
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.make import decide
from sparkdeploy.plan.observe import observe
from sparkdeploy.plan.observed import Observed
from sparkdeploy.plan.preflight import doctor_findings
from sparkdeploy.plan.recipe_checks import recipe_findings
from sparkdeploy.plan.steps import Plan
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.settings import Settings

CONNECTION_DEADLINE_S = 1.5
"""How long the Docker Engine may take to say hello."""
DEADLINE_S = 2.5
T = TypeVar("T")


def doctor_report(
    resolved: Resolved, settings: Settings, plan: Plan | None = None
) -> dict[str, Any]:
    """Return the report for a crash folder; never raises for what the machine is like."""
    return report.as_dict(examine(resolved, settings, plan=plan))


def examine(
    resolved: Resolved,
    settings: Settings,
    machine: Machine = THIS_MACHINE,
    plan: Plan | None = None,
) -> tuple[Finding, ...]:
    """Return what every check found; no Docker, no GPU and no network are findings, not errors."""
    # A plan over several nodes is reported as it was made; that of one machine is made anew.
    deployment = plan.deployment if plan is not None else Deployment("main")

    def make() -> Plan:
        if plan is not None and not plan.topology.is_alone:
            return plan
        nodes = Nodes(node_behind(settings.node_name, host))
        found = survey(nodes, settings.hub_cache, limited)
        observed = observe(resolved, settings, nodes, deployment, found=found, asks_registry=False)
        if host is not None:
            observed = _with_ends(observed, host)
        return decide(resolved, settings, observed, deployment)

    limited = TimeLimitedMachine(machine)
    started_s = time.monotonic()
    connection = in_background(lambda: connect(settings))
    host = _result(connection, started_s + CONNECTION_DEADLINE_S)
    draft = in_background(make)
    restarts = in_background(host.always_restarted_gpu_containers if host is not None else tuple)
    neighbours = in_background(host.neighbours if host is not None else tuple)
    symptom_task = in_background(lambda: look_for_symptoms(limited))
    looked_at = _host(limited, resolved, settings)
    kind = in_background(lambda: processor(looked_at))
    units = in_background(lambda: booting(looked_at))
    of_host = host_findings(looked_at)
    until_s = started_s + DEADLINE_S
    seen_plan = _result(draft, until_s)
    endless, beside = _result(restarts, until_s), _result(neighbours, until_s)
    symptoms = _result(symptom_task, until_s) or SymptomFact()
    booted = _result(units, until_s) or frozenset()
    findings = (
        _engine_finding(_error_of(connection), _error_of(draft), seen_plan),
        *_architecture_findings(seen_plan, _result(kind, until_s)),
        *([] if host is None or endless is None else [docker.check_endless_restarts(endless)]),
        *_plan_findings(draft, seen_plan, booted, settings),
        *_cgroup_findings(seen_plan, symptoms),
        *machine_symptoms(symptoms),
        *(
            (*gpu_symptoms(symptoms), check_other_servers(beside, symptoms.programs))
            if resolved.engine.runs_on != "cpu"
            else ()
        ),
        *of_host,
        *recipe_findings(resolved.recipe, resolved.engine),
    )
    if host is not None and seen_plan is not None and endless is not None:
        host.__exit__()
    return findings


def _result(task: Future[T], until_s: float) -> T | None:
    """Return a result, or None when it has failed or is not there in time; raise a bug."""
    with contextlib.suppress(TimeoutError, SparkdeployError):
        return task.result(max(until_s - time.monotonic(), 0.0))
    return None


def _error_of(task: Future[Any]) -> SparkdeployError | None:
    error = task.exception() if task.done() else None
    return error if isinstance(error, SparkdeployError) else None


def _with_ends(observed: Observed, host: DockerHost) -> Observed:
    facts = (
        item
        if item.is_running or isinstance(item, ContainerFact)
        else host.find_container(item.container_id)
        for item in observed.head.containers
    )
    head = replace(observed.head, containers=tuple(it for it in facts if it is not None))
    return replace(observed, nodes=(head, *observed.nodes[1:]))


def _engine_finding(
    error: SparkdeployError | None, unplanned: SparkdeployError | None, plan: Plan | None
) -> Finding:
    if error is not None:
        return docker.check_engine(None, error.message, error.hint)
    if unplanned is not None:
        return not_seen(
            "docker.engine", f"it answers, but nothing was planned: {unplanned.message}"
        )
    info = plan.observed.head.facts.docker if plan is not None else None
    late = f"docker did not answer within {DEADLINE_S:g} s"
    return docker.check_engine(info, late, "sudo systemctl restart docker")


def _architecture_findings(plan: Plan | None, kind: str | None) -> Iterator[Finding]:
    node = plan.observed.head.facts if plan is not None else None
    if node is not None and node.docker is not None:
        yield docker.check_architecture(node.architecture, spelled(kind or "") or kind)


def _cgroup_findings(plan: Plan | None, symptoms: SymptomFact) -> Iterator[Finding]:
    if plan is not None and plan.resolved.engine.runs_on != "cpu":
        info = plan.observed.head.facts.docker
        if info is not None:
            yield docker.check_cgroup(info, symptoms.gpu_links)


def _plan_findings(
    draft: Future[Plan], plan: Plan | None, booted: frozenset[str], settings: Settings
) -> Iterator[Finding]:
    if plan is not None:
        yield from doctor_findings(plan)
        head = plan.observed.head
        yield from docker.deployment_findings(
            head.containers,
            booting=booted,
            attended=_attended(head.containers, settings),
        )
    elif (error := _error_of(draft)) is not None:
        yield fail("folders.model", error.message, error.hint or "")
    else:
        yield not_seen("machine.gpu", f"GPU and Docker did not answer within {DEADLINE_S:g} s")


def _attended(containers: Sequence[ListedContainer], settings: Settings) -> dict[str, str]:
    """Return the deployments that a command waits for or changes, each with that command."""
    names = {item.deployment for item in containers if item.name.endswith(REPLACED_SUFFIX)}
    found = {name: attendant_of(settings.lock_dir, settings.node_name, name) for name in names}
    return {name: it.describe() for name, it in found.items() if it is not None}


def _host(machine: TimeLimitedMachine, resolved: Resolved, settings: Settings) -> CheckedHost:
    usual = [Path("~/.cache/huggingface/hub").expanduser(), Path("/root/.cache/huggingface/hub")]
    others = dict.fromkeys(str(item) for item in usual if item != settings.hub_cache)
    return CheckedHost(
        machine,
        folders=own_folders(settings),
        other_hub_caches=tuple(others),
        model_folder="models--" + resolved.recipe.model.known_as.replace("/", "--"),
        targets=tuple(_targets(settings)),
        fabric=_fabric_addresses(settings),
    )


def _fabric_addresses(settings: Settings) -> frozenset[str]:
    # What is wrong with `cluster:` is said by the commands that need it.
    with contextlib.suppress(RecipeError):
        nodes = configured(settings).nodes
        return frozenset(port.ip for node in nodes for port in node.fabric)
    return frozenset()


def _targets(settings: Settings) -> Iterator[NeededHost]:
    hosts = settings.hosts
    yield _target("hub", hosts.hub, settings)
    yield _target("package_index", settings.build.index_url or hosts.package_index, settings)
    yield _target("container_registry", f"https://{hosts.container_registry}", settings)


def _target(name: TargetName, url: str, settings: Settings) -> NeededHost:
    scheme = urlsplit(url).scheme
    proxies = {key.lower(): value for key, value in settings.build.proxies.items()}
    proxy = proxies.get(f"{scheme}_proxy")
    host, bypassed = urlsplit(url).hostname or "", proxies.get("no_proxy", "").split(",")
    names = [item.strip().lstrip(".") for item in bypassed if item.strip()]
    if any(it in {"*", host} or host.endswith(f".{it}") for it in names):
        proxy = None
    # curl and requests take a proxy without a scheme for an http one.
    parts = urlsplit(url if not proxy else proxy if "://" in proxy else f"http://{proxy}")
    port = 443 if parts.scheme == "https" else 80
    # What is no number is for those who connect to refuse.
    with contextlib.suppress(ValueError):
        port = parts.port or port
    return NeededHost(name, parts.hostname or "", port, is_proxy=proxy is not None)
