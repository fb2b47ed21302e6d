"""What a running `up` has named and not started yet: `clean` and the `rm` commands leave it alone.

An `up` prepares images and checkpoints without the node's lock, for that takes minutes. Meanwhile
it keeps a note beside the locks, which every user of the machine reads, and whose lock says that
the command still runs.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sparkdeploy.errors import NodeError
from sparkdeploy.node.lock import lock_holder, node_lock
from sparkdeploy.plan.observed import ModelFact

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sparkdeploy.deploy.launch import Launch
    from sparkdeploy.node.lock import Holder
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.settings import Settings

ENDING = ".use"


@contextlib.contextmanager
def naming(plan: Plan, launch: Launch) -> Iterator[None]:
    """Name the plan's images and models inside the block, in which they are prepared."""
    settings = launch.settings
    name = f"{settings.node_name}-{launch.deployment}{ENDING}"
    with contextlib.ExitStack() as note:
        # Of two `up`s of one deployment the second names nearly the same, and need not.
        with contextlib.suppress(NodeError):
            note.enter_context(
                node_lock(
                    settings.lock_dir,
                    name,
                    command=f"sparkdeploy {launch.command}",
                    deployment=launch.deployment,
                    uses=tuple(_named_by(plan)),
                )
            )
        yield


def _named_by(plan: Plan) -> Iterator[str]:
    yield from (step.stage.tag for step in plan.images)
    models = (plan.observed.model, *plan.observed.companions)
    for model in models:
        if isinstance(model, ModelFact):
            yield str(model.root)
            if model.overlay is not None:
                yield str(model.overlay.path)
        elif model is not None:
            yield model.repo


def users_of(names: Iterable[str], settings: Settings) -> dict[str, Holder]:
    """Return those of the image tags, repositories and folders that a running `up` has named."""
    wanted = set(names)
    found: dict[str, Holder] = {}
    folder = settings.lock_dir
    for path in sorted(folder.glob(f"{settings.node_name}-*{ENDING}.lock")):
        holder = lock_holder(folder, path.name.removesuffix(".lock"))
        if holder is not None:
            found.update(dict.fromkeys(wanted.intersection(holder.uses), holder))
    return found


def refuse_used(names: Iterable[str], settings: Settings) -> None:
    """Raise NodeError when a running `up` has named one of these."""
    for name, holder in users_of(names, settings).items():
        raise NodeError(
            f"{name} is used by {holder.describe()}", hint="wait until it has ended, then again"
        )
