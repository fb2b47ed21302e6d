"""What runs beside deployments, as Compose starts it: images of others, and their files."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy import yaml_text
from sparkdeploy.export.compose_file import services_text
from sparkdeploy.node.container import LOG_DRIVER, LOG_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.settings import Hosts

COMPOSE_FILE = "compose.yaml"
WRITTEN_BY = "written by `sparkdeploy export"
"""In each file that a later export may replace."""
UNCHECKED_LISTENER = (
    "a client does not look who listens on a deployment's port: while nothing of yours does, "
    "another user of that machine can, and would get what is sent, the key too"
)
"""What sparkdeploy's own requests are guarded against, and those of what is exported are not."""


@dataclass(frozen=True, slots=True)
class ExportedFile:
    path: str
    """Below the folder that it is written into."""
    text: str
    is_program: bool = False


@dataclass(frozen=True, slots=True)
class Export:
    """Files that belong together; the first is the one to print where no folder is named."""

    files: tuple[ExportedFile, ...]
    folders: tuple[str, ...] = ()
    """What the containers write into."""
    user: str = ""
    """UID:GID whose these folders are; empty where there is none."""
    next_step: str = ""
    """What to type in the folder."""
    notes: tuple[str, ...] = ()
    """What is to be known before it is used."""


def shipped_file(path: str, *, is_program: bool = False) -> ExportedFile:
    """Return a file of this package that is exported as it is."""
    text = Path(__file__).with_name(path).read_text(encoding="utf-8")
    return ExportedFile(path, text, is_program)


def image_of(name: str, hosts: Hosts) -> str:
    told = _images()[name]
    return f"{getattr(hosts, told['registry'])}/{told['image']}:{told['tag']}"


def neighbour_service(image: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML content
    """Return a service on the machine's own network, for that is where deployments listen.

    It has no capability, and `more` takes the place of what stands here.
    """
    return {
        "image": image,
        "network_mode": "host",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "restart": "unless-stopped",
        "logging": {"driver": LOG_DRIVER, "options": LOG_SIZE},
        **more,
    }


def read_only(source: str, target: str) -> dict[str, Any]:
    return {"type": "bind", "source": source, "target": target, "read_only": True}


def writable(source: str, target: str) -> dict[str, Any]:
    return {"type": "bind", "source": source, "target": target}


def compose_of(
    command: str,
    services: Mapping[str, Any],
    *,
    note: str = "",
    **more: Any,  # noqa: ANN401
) -> ExportedFile:
    """Return the Compose file of these services, as `sparkdeploy export COMMAND` writes it.

    `note` stands in a comment at its head.
    """
    return _marked(COMPOSE_FILE, command, note, services_text(services, **more))


def settings_of(
    command: str, path: str, content: dict[str, Any], *, note: str = ""
) -> ExportedFile:
    """Return a YAML file of settings, as `sparkdeploy export COMMAND` writes it."""
    return _marked(path, command, note, yaml_text.dump(content))


def _marked(path: str, command: str, note: str, text: str) -> ExportedFile:
    head = f"# {WRITTEN_BY} {command}`.\n" + (f"# Known: {note}.\n" if note else "")
    return ExportedFile(path, head + text)


@functools.cache
def _images() -> Mapping[str, Any]:
    return dict(yaml_text.load_file(Path(__file__).with_name("images.yaml")))
