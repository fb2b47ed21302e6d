"""A connection to a Docker Engine, and what its failures mean to us."""

import contextlib
import json
import shlex
import socket
import warnings
from collections.abc import Iterator
from typing import Self

import docker
import docker.auth
import docker.errors
import requests.exceptions
import urllib3.exceptions

from sparkdeploy.errors import NodeError
from sparkdeploy.node import reports
from sparkdeploy.node.reports import DEFAULT_ADDRESS, EngineInfo, config_folder, other_context

CALL_TIMEOUT_S = 60
START_HINT = "start it: `sudo systemctl start docker`, or `sudo dockerd &` without systemd"
SDK_ERRORS = (
    docker.errors.DockerException,
    requests.exceptions.RequestException,
    urllib3.exceptions.HTTPError,  # the engine died while its answer was streaming
)
_STORE_ERROR = "Credentials store error: "
# What it warns of it raises as well, as soon as the helper is asked.
warnings.filterwarnings("ignore", module=r"docker\.credentials")


class NotInDockerError(NodeError):
    """The Docker Engine has no container or image of that name."""


class DockerRefusedError(NodeError):
    """The Docker Engine answered, and did not do what it was asked."""


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn what the SDK raises into NodeError, chained; `doing` begins the message."""
    try:
        yield
    except docker.errors.NotFound as error:
        raise NotInDockerError(f"{doing}: not found", detail=error.explanation) from error
    except docker.errors.APIError as error:
        raise DockerRefusedError(f"{doing}: {error.explanation or error}") from error
    except SDK_ERRORS as error:
        if str(error).startswith(_STORE_ERROR):
            cause = error.__cause__ or error
            raise _unreadable_login(f"{doing}: its login", "REGISTRY", cause) from error
        raise NodeError(
            f"{doing}: the Docker Engine does not answer ({type(error).__name__})",
            detail=str(error),
            hint=START_HINT,
        ) from error


def _require_listener(address: str) -> None:
    """Knock on a local socket first: the SDK leaks its own when nobody answers."""
    if address.startswith("ssh://"):
        # Its machine's memory, disks and models are not this one's.
        raise NodeError(
            f"docker at {address} is another machine's, and this command is about its own",
            hint=f"pass `--on {shlex.quote(address)}` where a command has it, "
            "or run it on that machine",
        )
    if not address.startswith("unix://"):
        return
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(CALL_TIMEOUT_S)
            probe.connect(address.removeprefix("unix://"))
    except PermissionError as error:
        raise NodeError(
            f"docker at {address} may not be used by this user",
            hint="sudo usermod -aG docker $USER, then log in again",
        ) from error
    except OSError as error:
        hint, other = START_HINT, other_context(address)
        if other is not None and other.address:
            hint += f"; `docker` itself asks {other.address} ({other.name}): export DOCKER_HOST="
            hint += shlex.quote(other.address)
        raise NodeError(
            f"docker at {address} does not answer: {error.strerror or error}", hint=hint
        ) from error


def refuse_unreadable_logins() -> None:
    """Raise NodeError for a login that the SDK would stumble over, whatever it is asked for."""
    try:
        text = (config_folder() / "config.json").read_text(encoding="utf-8")
        logins = json.loads(text)["auths"].items()
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return  # nothing that the SDK would take a login from
    for registry, entry in logins:
        try:
            docker.auth.AuthConfig.parse_auth({registry: entry}, raise_on_error=True)
        except (ValueError, TypeError, docker.errors.DockerException) as error:
            subject, cause = f"the login for {registry}", "it is no base64 of USER:PASSWORD"
            raise _unreadable_login(subject, shlex.quote(registry), cause) from error


def _unreadable_login(subject: str, registry: str, cause: object) -> NodeError:
    return NodeError(
        f"{subject} could not be read from {config_folder() / 'config.json'}: "
        f"{str(cause).strip().rstrip('.')}",
        hint=f"`docker login {registry}` writes it anew; or take it out of that file",
    )


class DockerConnection:
    """A connection to one Docker Engine; a context manager."""

    def __init__(self, docker_host: str | None = None) -> None:
        """Raise NodeError when nobody answers, this user may not ask, or a login is broken."""
        self.address = address = docker_host or DEFAULT_ADDRESS
        _require_listener(address)
        refuse_unreadable_logins()
        with translated(f"docker at {address}"):
            try:
                self._client = docker.DockerClient(
                    base_url=address, version="auto", timeout=CALL_TIMEOUT_S
                )
            except ValueError as error:
                raise NodeError(
                    f"{address} is no address of a Docker Engine: {error}",
                    hint="DOCKER_HOST or docker_host is like unix:///var/run/docker.sock",
                ) from error
        self._api = self._client.api
        # Before each log the SDK asks whether the container has a terminal: ours have none.
        self._api._check_is_tty = lambda _container: False  # type: ignore[attr-defined]
        self._info: EngineInfo | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def info(self) -> EngineInfo:
        """Return what the engine says of itself; a connection asks it once."""
        if self._info is None:
            with translated("docker info"):
                self._info = reports.read_engine_info(self._api.info(), self.address)
        return self._info
