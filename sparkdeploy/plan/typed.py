"""A command as a person would type it: one flag a line, quoted for a shell."""

from __future__ import annotations

import csv
import io
import shlex
from itertools import chain
from typing import TYPE_CHECKING

from sparkdeploy.node.container import LOG_DRIVER, LOG_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sparkdeploy.node.container import ContainerSpec, Mount

_NEXT = " \\\n  "


def typed(argv: Sequence[str]) -> str:
    """Return a command that a shell takes as `argv`; each flag begins a line, with its values."""
    lines: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--") and lines != [[]]:
            lines.append([])
        lines[-1].append(word)
    return _NEXT.join(shlex.join(line) for line in lines)


def docker_run(spec: ContainerSpec) -> str:
    """Return the `docker run` that starts the same container."""
    first, *entry = spec.entrypoint
    options = [f"--{name}={value}" for name, value in _options(spec)]
    words = ["docker", "run", "--detach", *options, f"--entrypoint={first}"]
    return typed(words) + _NEXT + typed([spec.image, *entry, *spec.command])


def _options(spec: ContainerSpec) -> Iterator[tuple[str, str]]:
    yield "name", spec.name
    yield "user", spec.user
    yield "network", spec.network
    if spec.gpus == "all":
        yield "gpus", "all"
    yield "read-only", "true"
    yield from (("cap-drop", name) for name in spec.cap_drop)
    yield from (("cap-add", name) for name in spec.cap_add)
    yield from (("security-opt", option) for option in spec.security_options)
    yield from (("device", device) for device in spec.devices)
    yield "shm-size", str(spec.shm_size_bytes)
    yield from (("ulimit", f"{item.name}={item.value}:{item.value}") for item in spec.ulimits)
    yield from (("tmpfs", f"{path}:{options}") for path, options in spec.tmpfs.items())
    yield from (("mount", _mount(mount)) for mount in spec.mounts)
    yield from (("env", f"{name}={value}") for name, value in spec.env.items())
    yield from (("label", f"{name}={value}") for name, value in spec.labels.items())
    yield "restart", spec.restart_policy
    yield "stop-timeout", str(spec.stop_timeout_s)
    yield "log-driver", LOG_DRIVER
    yield from (("log-opt", f"{name}={value}") for name, value in LOG_SIZE.items())


def _mount(mount: Mount) -> str:
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    return _fields([*fields, *(["readonly"] if mount.mode == "ro" else [])])


def _fields(values: Iterable[str]) -> str:
    """Docker reads them as a line of CSV."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(chain(values))
    return line.getvalue()
