"""A replacement from its first change to its last, with nobody else about."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

from sparkdeploy import labels
from sparkdeploy.node.container import ContainerSpec
from sparkdeploy.node.host import DockerHost
from tests.launching import begin, wait_and_settle

Outcome = TypeVar("Outcome")


def put_in_place(
    host: DockerHost,
    spec: ContainerSpec,
    *,
    crashes_dir: Path,
    wait: Callable[[str], Outcome],
    details: Mapping[str, Any] | None = None,
) -> Outcome:
    """Replace (or start) the deployment of a spec and wait for it."""
    begun = begin(host, spec, spec.labels[labels.DEPLOYMENT], crashes_dir=crashes_dir)
    return wait_and_settle(begun, wait=wait, changing=nullcontext, details=lambda: details or {})
