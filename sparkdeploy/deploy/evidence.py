"""The folder that keeps what is known of a container that failed, with every secret taken out.

Secrets are known by the name beside them, by their shape, and by value where it is known.
"""

import contextlib
import itertools
import json
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparkdeploy import __version__, atomic_files
from sparkdeploy.atomic_files import make_private
from sparkdeploy.node.container import is_name
from sparkdeploy.node.host import DockerHost
from sparkdeploy.secret_shapes import (
    REMOVED,
    SHORTEST_KNOWN,
    environment_secrets,
    names_a_secret,
    text_without_secrets,
)
from sparkdeploy.server.crash import guard_reports, root_cause
from sparkdeploy.server.phases import read_whole
from sparkdeploy.terminal.safe_text import visible, visible_log

KEPT_CRASHES = 20
ROOT_CAUSE = "00-root-cause.txt"
"""One line: what it died of. Its name puts it on top."""


def save_evidence(
    host: DockerHost,
    container_id: str,
    crashes_dir: Path,
    *,
    deployment: str,
    details: Mapping[str, Any] | None = None,
) -> Path:
    """Save all that is known of a container, for its owner alone; return the new folder.

    Only the newest KEPT_CRASHES folders stay. Raises OSError when the disk does not take it.
    """
    folder = _new_folder(crashes_dir, deployment)
    # The keys of all deployments stand beside the evidence in the state folder.
    keys = known_secrets(crashes_dir.parent / "keys") + environment_secrets()
    write_evidence(host, container_id, folder, details=details or {}, keys=keys)
    folders = [item for item in crashes_dir.iterdir() if item.is_dir()]
    for oldest in sorted(folders, key=lambda item: item.stat().st_mtime)[:-KEPT_CRASHES]:
        shutil.rmtree(oldest, ignore_errors=True)
    return folder


def newest_crash(crashes_dir: Path, deployment: str) -> Path | None:
    """Return the latest of a deployment's; the names of other deployments may begin alike."""
    if not is_name(deployment):
        return None
    begun = re.compile(rf"{re.escape(deployment)}-\d{{8}}T\d{{6}}Z(-\d+)?")
    paths = crashes_dir.glob(f"{deployment}-2*")
    folders = (path for path in paths if begun.fullmatch(path.name) and path.is_dir())
    return max(folders, key=lambda path: path.stat().st_mtime, default=None)


def write_evidence(
    host: DockerHost,
    container_id: str,
    folder: Path,
    *,
    details: Mapping[str, Any],
    keys: tuple[str, ...],
) -> None:
    """Write the files of `save_evidence` into a folder; `keys` are secrets by value."""
    record = host.inspect(container_id)
    raw_log = b"".join(host.logs(container_id))
    log = raw_log.decode(errors="replace")
    facts: dict[str, Any] = {
        "inspect": record_without_secrets(record, keys),
        "guard": guard_reports(log),
        "versions": _versions(host, record, raw_log),
        **details,
    }
    headline = visible(text_without_secrets(_headline(record, log, details), keys))
    atomic_files.write_text(folder / ROOT_CAUSE, headline)
    # It is read with `cat`, and the container may write anything: also a secret with a colour
    # in its middle, which is whole only when the colour is gone.
    shown = text_without_secrets(visible_log(log), keys)
    atomic_files.write_text(folder / "container.log", shown)
    for name, value in facts.items():
        text = json.dumps(value_without_secrets(value, keys), indent=2, sort_keys=True, default=str)
        atomic_files.write_text(folder / f"{name}.json", text + "\n")


def _headline(record: Mapping[str, Any], log: str, details: Mapping[str, Any]) -> str:
    """Say what it died of: as whoever waited found it, or from the log and how it ended."""
    cause = details.get("cause")
    if isinstance(cause, dict):
        words = [str(cause[part]) for part in ("name", "meaning", "line") if cause.get(part)]
        return ": ".join(words) + "\n"
    state = record.get("State") or {}
    if state.get("Running"):
        return "none: it was running\n"
    cause = root_cause(
        f"{log}\n{state.get('Error') or ''}",
        state.get("ExitCode"),
        oom_killed=bool(state.get("OOMKilled")),
    )
    return f"{cause.name}: {cause.describe()}\n"


def _versions(host: DockerHost, record: Mapping[str, Any], log: bytes) -> dict[str, str | None]:
    return {
        "sparkdeploy": __version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.release()} {platform.machine()}",
        "docker": host.info().version,
        "vllm": read_whole([log]).facts.vllm_version,
        "image": (record.get("Config") or {}).get("Image"),
        "image_id": record.get("Image"),
    }


def _new_folder(crashes_dir: Path, deployment: str) -> Path:
    make_private(crashes_dir)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    endings = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    folders = (crashes_dir / f"{deployment}-{stamp}{ending}" for ending in endings)
    folder = next(folder for folder in folders if not folder.exists())
    folder.mkdir(mode=0o700)
    return folder


def known_secrets(keys_dir: Path) -> tuple[str, ...]:
    values = []
    with contextlib.suppress(OSError):
        for path in keys_dir.iterdir():
            with contextlib.suppress(OSError, UnicodeDecodeError):
                values.append(path.read_text().strip())
    return tuple(value for value in values if len(value) >= SHORTEST_KNOWN)


def value_without_secrets(value: Any, known: Iterable[str] = ()) -> Any:  # noqa: ANN401 - any JSON
    """Return a JSON value in which what a secret-sounding key names is replaced, and every text."""
    if isinstance(value, dict):
        return {
            name: REMOVED
            if isinstance(item, str) and names_a_secret(str(name))
            else value_without_secrets(item, known)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [value_without_secrets(item, known) for item in value]
    return text_without_secrets(value, known) if isinstance(value, str) else value


def record_without_secrets(record: Mapping[str, Any], known: Iterable[str] = ()) -> dict[str, Any]:
    config = dict(record.get("Config") or {})
    pairs = (pair.partition("=") for pair in config.get("Env") or ())
    config["Env"] = [
        name + sign + (REMOVED if names_a_secret(name) else value) for name, sign, value in pairs
    ]
    cleaned: dict[str, Any] = value_without_secrets({**record, "Config": config}, known)
    return cleaned
