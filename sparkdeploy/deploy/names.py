"""Which deployment a command is about: a user with one of them may leave its name out."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from sparkdeploy.deploy.deployments import list_deployments, no_deployment
from sparkdeploy.deploy.nodes import ClusterRecord, connect
from sparkdeploy.errors import NodeError, UsageError
from sparkdeploy.node.container import is_name
from sparkdeploy.node.facts import is_another
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_SHOWN = 3


def resolve_name(name: str | None, command: Sequence[str], behind: str = "") -> str:
    """Return the name that was given, or that of the user's only deployment.

    `command` is what was typed, word by word and without `sparkdeploy`, and `behind` what follows
    the name. Raises UsageError where several may be meant, or where all are other users', and
    NodeError where there is none.
    """
    return name if name is not None else _only(*_known(), command, behind)


def resolve_names(names: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
    """Return the names that were given, each once, or those of all of the user's deployments.

    Raises as `resolve_name` does where nobody named one and the user has none.
    """
    if names:
        return tuple(dict.fromkeys(names))
    own, others = _known()
    return own or (_only(own, others, command),)


def resolve_name_or_none(name: str | None, command: Sequence[str]) -> str | None:
    """Return the name of what is to be ended or gone back from; None where there is none to name.

    Raises UsageError as `resolve_name` does.
    """
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
    """Say whether a word is the name of a deployment; what can be no name is not looked for."""
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
    """Return the names on this machine, what is left over of some included, and apart from them
    those of other users, or of what another machine heads."""
    settings = load_settings()
    with connect(settings) as host:
        found = list_deployments(host)
    others = tuple(
        item.name for item in found if item.is_of_another_head or is_another(item.current.user)
    )
    noted = ClusterRecord.below(settings.state_dir).deployments()
    names = dict.fromkeys((*(item.name for item in found), *noted))
    return tuple(name for name in names if name not in others), others
