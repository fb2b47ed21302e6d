"""A replacement from its first change to its last, with nobody else about."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sparkdeploy import labels
from sparkdeploy.node.container import ContainerSpec
from sparkdeploy.node.host import DockerHost
from tests.launching import begin, wait_and_commit

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
    ready: Outcome = wait_and_commit(begun, wait=wait, details=lambda: details or {})
    return ready
