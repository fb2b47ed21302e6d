"""The deployments on a node, known by their labels alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from sparkdeploy.errors import NodeError
from sparkdeploy.node.container import (
    KEPT_MARK,
    REPLACED_SUFFIX,
    ContainerFact,
    ListedContainer,
)
from sparkdeploy.node.node import Node, named
from sparkdeploy.node.reports import parse_time
from sparkdeploy.plan.container import container_name
from sparkdeploy.recipe.library import library
from sparkdeploy.recipe.words import nearest
from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.safe_text import visible_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from sparkdeploy.node.host import DockerHost

STOP_TIMEOUT_S = 30
Seen = TypeVar("Seen", bound=ListedContainer)


@dataclass(frozen=True, slots=True)
class DeploymentContainers(Generic[Seen]):
    """One name: the container that serves it and, mid-replacement, the one it replaces."""

    name: str
    current: Seen
    """The container that stands for the name now: no deployment is without any."""
    serving: Seen | None
    replaced: Seen | None = None
    kept: tuple[ListedContainer, ...] = ()
    """Earlier ones, stopped, for `rollback`; the newest first."""

    @property
    def is_half_replaced(self) -> bool:
        """Say whether a replacement is under way, or was left so by a CLI that died."""
        return self.replaced is not None

    @property
    def is_of_another_head(self) -> bool:
        """Say whether this machine has only a worker's part of it."""
        return self.current.rank > 0 and bool(self.current.nodes)

    @property
    def containers(self) -> tuple[ListedContainer, ...]:
        current = tuple(fact for fact in (self.serving, self.replaced) if fact is not None)
        return (*current, *self.kept)


Listed: TypeAlias = DeploymentContainers[ListedContainer]
Inspected: TypeAlias = DeploymentContainers[ContainerFact]
"""A deployment whose current containers were inspected; kept ones are as the list has them."""


def replaced_name(deployment: str) -> str:
    return container_name(deployment) + REPLACED_SUFFIX


def kept_name(deployment: str, number: int) -> str:
    return f"{container_name(deployment)}{KEPT_MARK}{number}"


def kept_number(container: str) -> int:
    """Return which of the kept containers one is, by its name; 0 for one that is not kept."""
    _, mark, number = container.rpartition(KEPT_MARK)
    return int(number) if mark and number.isdecimal() else 0


def deployments_in(listing: Iterable[ListedContainer]) -> dict[str, Listed]:
    """Return every deployment by name; containers that are not ours are left out."""
    by_name: dict[str, list[ListedContainer]] = {}
    for item in listing:
        if item.is_own:
            by_name.setdefault(item.deployment, []).append(item)
    found = (_deployment(name, by_name[name], by_name[name]) for name in sorted(by_name))
    return {it.name: it for it in found if it is not None}


def inspect_deployment(host: DockerHost, listed: Listed) -> Inspected | None:
    wanted = [it for it in (listed.serving, listed.replaced) if it is not None]
    return _inspected(host, listed.name, [it.container_id for it in wanted], listed.kept)


def find_deployment(host: DockerHost, name: str) -> Inspected | None:
    """Return a deployment from a list of its containers, inspected; None without any."""
    listed = deployments_in(host.own_containers(name)).get(name)
    return inspect_deployment(host, listed) if listed is not None else None


def look_again(node: Node, name: str) -> Inspected | None:
    """Inspect a deployment's containers by name; list kept ones anew only after another command."""
    names = (container_name(name), replaced_name(name))
    with named(node):
        before = deployments_in(node.listing).get(name)
        kept = before.kept if before is not None else ()
        found = _inspected(node.docker, name, names, kept)
        if _current_ids(before) != _current_ids(found):
            node.forget_listing()
            now = deployments_in(node.listing).get(name)
            found = inspect_deployment(node.docker, now) if now is not None else None
    return found


def _current_ids(found: Listed | Inspected | None) -> set[str]:
    current = (found.serving, found.replaced) if found is not None else ()
    return {item.container_id for item in current if item is not None}


def _inspected(
    host: DockerHost, name: str, references: Iterable[str], kept: tuple[ListedContainer, ...]
) -> Inspected | None:
    facts = [host.find_container(reference) for reference in references]
    # A container may have been renamed since it was listed, and a name be a stranger's.
    own = [it for it in facts if it is not None and it.is_own and it.deployment == name]
    if not own and kept:
        newest = host.find_container(kept[0].container_id)
        own = [newest] if newest is not None else []
    return _deployment(name, own, kept)


def nodes_with(found: Listed | Inspected | None, noted: tuple[str, ...]) -> tuple[str, ...]:
    """Return who may have something of a deployment: noted, or named on its containers here."""
    named_here = (node for fact in (found.containers if found else ()) for node in fact.nodes)
    return tuple(dict.fromkeys((*noted, *named_here)))


def require_deployment(host: DockerHost, name: str) -> Inspected:
    known = deployments_in(host.own_containers())
    found = inspect_deployment(host, known[name]) if name in known else None
    if found is None:
        raise no_deployment(name, known)
    return found


def no_deployment(name: str, known: Collection[str]) -> NodeError:
    """Return the error that says which one was meant, or those that exist."""
    listed = f"there is: {', '.join(known)}" if known else "nothing is deployed"
    start = "" if known else "; start with `sparkdeploy up`"
    if name in library(load_settings()).recipe_files():
        listed, start = f"{name} is a recipe; {listed}", f"; `sparkdeploy up {name}` deploys it"
    return NodeError(
        f"no deployment named {visible_line(name)}", hint=nearest(name, known) or listed + start
    )


def refuse_as_worker(
    found: Listed | Inspected | None, *, there: str = "run the same command"
) -> None:
    """Raise NodeError for what another machine heads; `there` is what to do on that one."""
    if found is not None and found.is_of_another_head:
        name, head = found.name, found.current.nodes[0]
        raise NodeError(
            f"this machine is only a worker of {name}, which {head} heads",
            hint=f"on {head}, {there}; if {head} is gone for good: "
            f"docker rm -f {found.current.name}",
        )


def remove_containers(host: DockerHost, facts: Sequence[ListedContainer]) -> tuple[str, ...]:
    for fact in facts:
        if fact.is_running:
            host.stop(fact.container_id, timeout_s=STOP_TIMEOUT_S)
        host.remove(fact)
    return tuple(fact.name for fact in facts)


def uptime_s(fact: ContainerFact) -> float | None:
    if not fact.is_running:
        return None
    started = parse_time(fact.started_at)
    # A clock that was set back is no reason to show a start in the future.
    return max((datetime.now(UTC) - started).total_seconds(), 0.0) if started else None


def may_still_start(fact: ContainerFact) -> bool:
    running_s, timeout_s = uptime_s(fact), fact.startup_timeout_s
    return running_s is not None and timeout_s is not None and running_s < timeout_s


def _deployment(
    name: str, current: Iterable[Seen], kept: Iterable[ListedContainer]
) -> DeploymentContainers[Seen] | None:
    """Return what some containers are of a deployment; `kept` may have others beside kept ones."""
    numbered = {number: item for item in kept if (number := kept_number(item.name))}
    by_ending = {fact.name.removeprefix(container_name(name)): fact for fact in current}
    serving, replaced = by_ending.get(""), by_ending.get(REPLACED_SUFFIX)
    newest = max(by_ending.values(), key=lambda fact: kept_number(fact.name), default=None)
    stands = serving or replaced or newest
    if stands is None:
        return None
    newest_first = tuple(numbered[number] for number in sorted(numbered, reverse=True))
    return DeploymentContainers(name, stands, serving, replaced, newest_first)
