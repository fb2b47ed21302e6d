"""The server that is measured: a deployment or an address, reached once and described."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sparkdeploy import labels
from sparkdeploy.bench.origin import deployment_origin, endpoint_origin, recipe_origin
from sparkdeploy.deploy.deployments import require_deployment
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.serving import model_of, read_key_file, require_answers
from sparkdeploy.errors import UsageError
from sparkdeploy.server.client import ServedModel
from sparkdeploy.server.trust import ca_file as trusted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkdeploy.bench.record import RecipeOrigin, RunOrigin
    from sparkdeploy.settings import Settings


_SUCH_AS = "such as http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Access:
    """What a URL needs beside itself; a deployment of sparkdeploy needs neither."""

    key_file: Path | None = None
    model: str | None = None
    """The served name; None is the first that the server names."""
    ca_file: Path | None = None
    """Certificates to trust; None is the system's, or a variable's."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    base_url: str
    api_key: str | None = field(repr=False)
    model: str
    max_model_len: int | None
    container_id: str | None
    origin: RunOrigin
    ca_file: Path | None = None
    require_listener: Callable[[], None] | None = None

    def opened(self) -> ServedModel:
        """Return a client of its own; a session is for one thread."""
        return ServedModel(
            self.base_url,
            self.api_key,
            model=self.model,
            ca_file=self.ca_file,
            require_listener=self.require_listener,
        )


def reach_deployment(name: str, settings: Settings) -> Endpoint:
    with connect(settings) as host:
        fact = require_deployment(host, name).current
        with model_of(fact, settings) as model:
            require_answers(fact, model)
            origin = deployment_origin(host, fact, model)
            return _endpoint(model, fact.container_id, origin)


def server_at(url: str, access: Access) -> ServedModel:
    base_url = url.rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(base_url)
        _ = parts.port
    except ValueError as error:
        # The address may hold a password, so it is not in the message.
        raise UsageError(f"--url is no address: {error}", hint=_SUCH_AS) from error
    if "@" in parts.netloc:
        # Neither printed, recorded nor sent: not even in this message.
        raise UsageError(
            "the address holds a user or a password, which a record would tell to everyone",
            hint="leave it out; a key goes into a file: --key-file FILE",
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{url!r} is no address", hint=_SUCH_AS)
    ca_file = trusted(access.ca_file) if parts.scheme == "https" else None
    key = read_key_file(access.key_file)
    return ServedModel(base_url, key, model=access.model, ca_file=ca_file)


def reach_url(url: str, access: Access) -> Endpoint:
    """Return the server at an address; UnhealthyError when it does not answer."""
    with server_at(url, access) as model:
        return _endpoint(model, None, endpoint_origin(model))


def reach(side: str, settings: Settings, access: Access) -> Endpoint:
    """Return the server behind a deployment's name or an address."""
    return reach_url(side, access) if "://" in side else reach_deployment(side, settings)


def _endpoint(model: ServedModel, container_id: str | None, origin: RunOrigin) -> Endpoint:
    return Endpoint(
        base_url=model.base_url,
        api_key=model.api_key,
        model=model.name,
        max_model_len=model.max_model_len(),
        container_id=container_id,
        origin=origin,
        ca_file=model.ca_file,
        require_listener=model.require_listener,
    )


@dataclass(frozen=True, slots=True)
class ServedSide:
    model: ServedModel
    label: str
    """What a person calls it."""
    recipe: RecipeOrigin | None = None
    """As it was deployed; None for an address."""


def served_side(side: str, settings: Settings, access: Access) -> ServedSide:
    if "://" in side:
        return ServedSide(server_at(side, access), side)
    with connect(settings) as host:
        fact = require_deployment(host, side).current
        recipe = recipe_origin(fact)
    model = model_of(fact, settings)
    require_answers(fact, model)
    label = f"{side} ({fact.labels.get(labels.RECIPE, 'no recipe')})"
    return ServedSide(model, label, recipe)
