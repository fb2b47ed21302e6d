"""A connection to a Docker Engine, and what its failures mean to us."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

import docker
import docker.errors
import requests.exceptions
import urllib3.exceptions

from sparkdeploy.errors import NodeError
from sparkdeploy.node import reports
from sparkdeploy.node.listener import CALL_TIMEOUT_S, START_HINT, require_listener

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.node.reports import EngineInfo


SDK_ERRORS = (
    docker.errors.DockerException,
    requests.exceptions.RequestException,
    urllib3.exceptions.HTTPError,  # the engine died while its answer was streaming
)


class NotInDockerError(NodeError):
    """The Docker Engine has no container or image of that name."""


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn what the SDK raises into NodeError, chained; `doing` begins the message."""
    try:
        yield
    except docker.errors.NotFound as error:
        raise NotInDockerError(f"{doing}: not found", detail=error.explanation) from error
    except docker.errors.APIError as error:
        raise NodeError(f"{doing}: {error.explanation or error}") from error
    except SDK_ERRORS as error:
        raise NodeError(
            f"{doing}: the Docker Engine does not answer ({type(error).__name__})",
            detail=str(error),
            hint=START_HINT,
        ) from error


@contextlib.contextmanager
def _addressable(address: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise NodeError(
            f"{address} is no address of a Docker Engine: {error}",
            hint="DOCKER_HOST or docker_host is like unix:///var/run/docker.sock",
        ) from error


class DockerConnection:
    """A connection to one Docker Engine; a context manager."""

    def __init__(self, docker_host: str | None = None) -> None:
        """Connect and ask for the version; raise NodeError when nobody answers."""
        address = docker_host or "unix:///var/run/docker.sock"
        require_listener(address)
        with translated(f"docker at {address}"), _addressable(address):
            self._client = docker.DockerClient(
                base_url=address, version="auto", timeout=CALL_TIMEOUT_S
            )
        self._api = self._client.api
        self.address = address

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._client.close()

    def info(self) -> EngineInfo:
        """Ask the engine about itself."""
        with translated("docker info"):
            info = self._api.info()
        return reports.read_engine_info(info)
