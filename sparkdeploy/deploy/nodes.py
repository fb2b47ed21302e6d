"""Which deployment and which machines a command is about, and how it reaches them."""

from __future__ import annotations

import contextlib
import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.atomic_files import write_private
from sparkdeploy.deploy.deployments import deployments_in, no_deployment, nodes_with
from sparkdeploy.errors import NodeError, RecipeError, UsageError
from sparkdeploy.node.cluster import configured, name_here, open_nodes, this_node
from sparkdeploy.node.container import ListedContainer, is_name, refuse_no_name
from sparkdeploy.node.facts import is_another
from sparkdeploy.plan.steps import make_topology
from sparkdeploy.recipe.answers import Answers
from sparkdeploy.settings import Settings, load_settings
from sparkdeploy.stored_json import read_json
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.node import Nodes
    from sparkdeploy.recipe.load import Resolved

MAX_SHOWN = 3


def connect(settings: Settings) -> DockerHost:
    """Connect to this machine's Docker Engine; raise NodeError when nobody answers."""
    from sparkdeploy.node.host import DockerHost  # noqa: PLC0415 - the SDK takes 0.2 s to import

    return DockerHost(settings.docker_host)


def needed_nodes(resolved: Resolved, settings: Settings) -> frozenset[str]:
    config = configured(settings)
    return frozenset(make_topology(resolved, config, name_here(config)).nodes)


@contextlib.contextmanager
def connect_nodes(
    settings: Settings, deployment: str, also: frozenset[str] = frozenset()
) -> Iterator[Nodes]:
    """Connect to this machine, to all that may have something of a deployment, and to `also`."""
    noted = ClusterRecord.below(settings.state_dir).nodes(deployment)
    with contextlib.ExitStack() as opened:
        here = opened.enter_context(this_node(settings))
        nodes, found = here, deployments_in(here.here.listing).get(deployment)
        names = {*also, *nodes_with(found, noted)}
        try:
            if names:
                nodes = opened.enter_context(open_nodes(settings, frozenset(names), here.here))
        except (NodeError, RecipeError) as error:
            if also:
                raise
            console.warn(f"{error.message}; containers of {deployment} may be on other nodes")
        yield nodes


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    folder: Path

    @classmethod
    def below(cls, state_dir: Path) -> ClusterRecord:
        return cls(state_dir / "cluster")

    def nodes(self, deployment: str) -> tuple[str, ...]:
        """Return the nodes by rank; NodeError for an unreadable file, which does not say none."""
        file = self._file("deployments", deployment)
        try:
            return tuple(read_json(file))
        except FileNotFoundError:
            return ()
        except (OSError, ValueError) as error:
            raise NodeError(
                f"{file}, which names the nodes of {deployment}, cannot be read: {error}",
                hint=f"rm {shlex.quote(str(file))}; then look at each node: sparkdeploy status",
            ) from error

    def deployments(self) -> tuple[str, ...]:
        return tuple(sorted(path.stem for path in self.folder.glob("deployments/*.json")))

    def note(self, deployment: str, nodes: tuple[str, ...]) -> None:
        if nodes:
            write_private(self._file("deployments", deployment), json.dumps(nodes))
        else:
            self._file("deployments", deployment).unlink(missing_ok=True)

    def mark_unverified(self, deployment: str, container_id: str) -> None:
        """Keep that a container was started and has not been checked against its plan yet."""
        write_private(self._file("unverified", deployment), json.dumps(container_id))

    def clear_unverified(self, deployment: str) -> None:
        self._file("unverified", deployment).unlink(missing_ok=True)

    def is_unverified(self, deployment: str, container_id: str) -> bool:
        with contextlib.suppress(OSError, ValueError):
            return bool(read_json(self._file("unverified", deployment)) == container_id)
        return False

    def note_answers(self, fact: ListedContainer, answers: Answers) -> None:
        """Keep what the server of a container answers, where its label says something else."""
        file = self._file("answers", fact.deployment)
        if answers == Answers.of_label(fact.labels.get(labels.ANSWERS, "")):
            file.unlink(missing_ok=True)
        else:
            write_private(file, json.dumps([fact.container_id, answers.as_label()]))

    def answers(self, fact: ListedContainer) -> Answers:
        """Return what a container answers: as its server was seen to, else as it was planned."""
        with contextlib.suppress(OSError, ValueError):
            container_id, label = read_json(self._file("answers", fact.deployment))
            if container_id == fact.container_id:
                return Answers.of_label(label)
        return Answers.of_label(fact.labels.get(labels.ANSWERS, ""))

    def forget_answers(self, deployment: str) -> None:
        self._file("answers", deployment).unlink(missing_ok=True)

    def _file(self, kind: str, deployment: str) -> Path:
        # It was typed, and could lead to another file.
        refuse_no_name(deployment)
        return self.folder / kind / f"{deployment}.json"


def resolve_name(name: str | None, command: Sequence[str], behind: str = "") -> str:
    """Return the given name or the only deployment's; the words are for who has to choose."""
    return name if name is not None else _only(*_known(), command, behind)


def resolve_names(names: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
    """Return the names that were given, each once, or those of all of the user's deployments."""
    if names:
        return tuple(dict.fromkeys(names))
    own, others = _known()
    return own or (_only(own, others, command),)


def resolve_name_or_none(name: str | None, command: Sequence[str]) -> str | None:
    """Do as `resolve_name`; None where nothing is deployed."""
    if name is not None:
        return name
    own, others = _known()
    return _only(own, others, command) if own or others else None


def require_name(name: str) -> None:
    """Raise NodeError where no deployment has the name, and nothing of one is left over."""
    own, others = _known()
    if name not in (*own, *others):
        raise no_deployment(name, (*own, *others))


def is_deployment(word: str) -> bool:
    return is_name(word) and any(word in names for names in _known())


def _only(
    own: tuple[str, ...], others: tuple[str, ...], command: Sequence[str], behind: str = ""
) -> str:
    if len(own) == 1:
        return own[0]
    names = own or others
    if not names:
        raise NodeError("nothing is deployed", hint="start with `sparkdeploy up`")
    before = ["sparkdeploy", *command]
    typed = [f"{shlex.join([*before, name])} {behind}".rstrip() for name in names[:MAX_SHOWN]]
    shown = " or ".join(f"`{words}`" for words in typed)
    more = f"; there is: {', '.join(names)}" if len(names) > MAX_SHOWN else ""
    message = f"there are {len(names)} deployments: which one?"
    if len(names) == 1:
        message = "what is deployed is not yours: name it"
    raise UsageError(message, hint=f"{shown}{more}")


def _known() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return this user's names, with those of leftovers, and others' or another machine's."""
    settings = load_settings()
    with connect(settings) as host:
        found = deployments_in(host.own_containers())
    others = tuple(
        name for name, it in found.items() if it.is_of_another_head or is_another(it.current.user)
    )
    noted = ClusterRecord.below(settings.state_dir).deployments()
    own = dict.fromkeys(name for name in (*found, *noted) if name not in others)
    return tuple(own), others
