"""Which deployment a command is about: with one of them its name may be left out."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from sparkdeploy.commands.reach import connect
from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.deployments import list_deployments, no_deployment
from sparkdeploy.errors import NodeError, UsageError
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

SPELT_OUT = 3


class NothingDeployedError(NodeError):
    """No name was given, and there is no deployment that could be meant."""


def said(name: str | None, command: str) -> str:
    """Return the name that was given, or that of the only deployment there is.

    `command` is what the user typed, without `sparkdeploy`. Raises UsageError where several could
    be meant, `main` among them or not, and NothingDeployedError where none is.
    """
    if name is not None:
        return name
    heads, others = _deployments()
    # A worker's part is another machine's deployment.
    return only_one(heads or others, command)


def there(name: str) -> str:
    """Return the name; NodeError where no deployment has it, and nothing of one is left over."""
    heads, others = _deployments()
    if name not in {*heads, *others}:
        raise no_deployment(name, (*heads, *others))
    return name


def only_one(names: Sequence[str], command: str) -> str:
    if len(names) == 1:
        return names[0]
    if not names:
        raise NothingDeployedError("nothing is deployed", hint="start with `sparkdeploy up`")
    typed = [shlex.join(["sparkdeploy", *shlex.split(command), name]) for name in names]
    shown = " or ".join(f"`{words}`" for words in typed[:SPELT_OUT])
    more = f" (there is: {', '.join(names)})" if len(names) > SPELT_OUT else ""
    raise UsageError(f"there are {len(names)} deployments: which one?", hint=f"{shown}{more}")


def _deployments() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of what this machine heads, what is left over included, and the others."""
    settings = load_settings()
    with connect(settings) as host:
        found = list_deployments(host)
    others = tuple(item.name for item in found if item.is_of_another_head)
    noted = ClusterRecord.below(settings.state_dir).deployments()
    names = dict.fromkeys((*(item.name for item in found), *noted))
    return tuple(name for name in names if name not in others), others
