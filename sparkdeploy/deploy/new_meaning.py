"""What a tag is to mean from the moment in which a start of it answers.

The container carries it, so whoever lets that container stay, or puts it away, decides about the
tag as well: the `up` that waits, or the next command when that one was detached or killed. Until
then image-lock.json has what the tag meant before.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from sparkdeploy import labels
from sparkdeploy.console import console
from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.deployments import uptime_s
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.image.pins import keep
from sparkdeploy.plan.container import container_name
from sparkdeploy.recipe.settled import SettledImage  # noqa: TC001 - pydantic reads it

if TYPE_CHECKING:
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class NewMeaning:
    tag: str
    settled: SettledImage

    def as_label(self) -> str:
        return _reader().dump_json(self).decode()

    def keep(self, settings: Settings) -> None:
        """Let the tag mean it from now on; where that cannot be written, only say so."""
        try:
            keep(settings, self.tag, self.settled)
        except SparkdeployError as error:
            # What answers stays, whatever becomes of the note.
            console.warn(f"{error.message}; the next `up` takes {self.tag} for what it was")


def keep_what_answered(fact: ContainerFact, deployment: str, settings: Settings) -> None:
    """Let a tag mean what a start that nobody had waited for has shown to be whole."""
    new = _meaning_on(fact, deployment, settings)
    if new is not None:
        new.keep(settings)
        console.info(f"{new.tag} is {new.settled.image} from now on")


def under_way(host: DockerHost, deployment: str, settings: Settings) -> NewMeaning | None:
    """Return what a start that is still under way is to make of its tag; None without one."""
    fact = host.find_container(container_name(deployment))
    if fact is None or not fact.is_running or not may_still_start(fact):
        return None
    return _meaning_on(fact, deployment, settings)


def may_still_start(fact: ContainerFact) -> bool:
    running_s, timeout_s = uptime_s(fact), fact.startup_timeout_s
    return running_s is not None and timeout_s is not None and running_s < timeout_s


def _meaning_on(fact: ContainerFact, deployment: str, settings: Settings) -> NewMeaning | None:
    # Others can write labels too: the note of an unsettled start is this user's own.
    record = ClusterRecord.below(settings.state_dir)
    if not record.is_unsettled(deployment, fact.container_id):
        return None
    try:
        return _reader().validate_json(fact.labels[labels.NEW_MEANING], strict=True)
    except (KeyError, ValueError):
        return None


@functools.cache
def _reader() -> TypeAdapter[NewMeaning]:
    return TypeAdapter(NewMeaning)
