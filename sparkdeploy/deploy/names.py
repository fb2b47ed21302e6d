"""Which deployment a command is about: a user with one of them may leave its name out."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.deployments import list_deployments, no_deployment
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.errors import NodeError, UsageError
from sparkdeploy.node.container import is_name
from sparkdeploy.node.facts import is_another
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

SPELT_OUT = 3
NOTHING = ""
"""No deployment is called so."""


class NothingDeployedError(NodeError):
    """No name was given, and there is no deployment that could be meant."""


@dataclass(frozen=True, slots=True)
class KnownDeployments:
    """The names of deployments on this machine, what is left over of some included."""

    own: tuple[str, ...] = ()
    """What a command without a name may be about."""
    others: tuple[str, ...] = ()
    """Of other users of this machine, or of a cluster that another machine heads."""

    def only_one(self, command: Sequence[str], behind: str = "") -> str:
        """Return what a command without a name is about, never anything of another user.

        `command` is what is typed before the name, word by word, and `behind` what follows it.
        Raises UsageError where several may be meant, `main` among them or not, or where all are
        others'; NothingDeployedError where there is none.
        """
        if len(self.own) == 1:
            return self.own[0]
        names = self.own or self.others
        if not names:
            raise NothingDeployedError("nothing is deployed", hint="start with `sparkdeploy up`")
        before = ["sparkdeploy", *command]
        typed = [f"{shlex.join([*before, name])} {behind}".rstrip() for name in names]
        shown = " or ".join(f"`{words}`" for words in typed[:SPELT_OUT])
        more = f"; there is: {', '.join(names)}" if len(names) > SPELT_OUT else ""
        message = (
            f"there are {len(names)} deployments: which one?"
            if len(names) > 1
            else "what is deployed is not yours: name it"
        )
        raise UsageError(message, hint=f"{shown}{more}")


def said(name: str | None, command: Sequence[str], behind: str = "") -> str:
    """Return the name that was given, or that of the user's only deployment.

    `command` is what was typed, word by word and without `sparkdeploy`, and `behind` what follows
    the name. Raises as `KnownDeployments.only_one` does.
    """
    return name if name is not None else _known().only_one(command, behind)


def several(names: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
    """Return the names that were given, each once, or those of all of the user's deployments.

    Raises as `said` does where nobody named one and the user has none.
    """
    if names:
        return tuple(dict.fromkeys(names))
    known = _known()
    return known.own or (known.only_one(command),)


def to_change(name: str | None, command: Sequence[str]) -> str:
    """Return the name of what is to be ended or gone back from; NOTHING where nobody named one and
    there is none: what was wished is so. Raises as `said` does."""
    try:
        return said(name, command)
    except NothingDeployedError:
        return NOTHING


def there(name: str) -> str:
    """Return the name; NodeError where no deployment has it, and nothing of one is left over."""
    known = _known()
    names = (*known.own, *known.others)
    if name not in names:
        raise no_deployment(name, names)
    return name


def is_deployment(word: str) -> bool:
    """Say whether a word is the name of a deployment; what can be no name is not looked for."""
    if not is_name(word):
        return False
    known = _known()
    return word in (*known.own, *known.others)


def _known() -> KnownDeployments:
    settings = load_settings()
    with connect(settings) as host:
        found = list_deployments(host)
    others = tuple(
        item.name for item in found if item.is_of_another_head or is_another(item.current.user)
    )
    noted = ClusterRecord.below(settings.state_dir).deployments()
    names = dict.fromkeys((*(item.name for item in found), *noted))
    return KnownDeployments(tuple(name for name in names if name not in others), others)
