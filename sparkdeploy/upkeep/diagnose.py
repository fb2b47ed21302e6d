"""`diagnose`: everything a bug report needs, in one file and without secrets."""

import contextlib
import errno
import gzip
import io
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from sparkdeploy import atomic_files
from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.doctor import doctor_report
from sparkdeploy.deploy.evidence import ROOT_CAUSE, known_secrets, newest_crash, write_evidence
from sparkdeploy.deploy.nodes import connect, resolve_name_or_none
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.image.context import ContextFile, write_tar
from sparkdeploy.monitor.status import current_rows
from sparkdeploy.recipe.load import library, load_recipe
from sparkdeploy.secret_shapes import environment_secrets, text_without_secrets
from sparkdeploy.settings import Settings, load_settings
from sparkdeploy.stored_json import open_regular
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.safe_text import visible, visible_line

FILE_MODE = 0o600
MAX_FILE_BYTES = 16 << 20
"""Of each file, so that a bundle can be attached to an issue."""
MAX_FOLDER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Bundle:
    path: Path
    root_cause: str
    files: dict[str, int]


def diagnose(subject: str | None, output: Path | None) -> Bundle:
    """Pack a crash folder, or what is known of a deployment: its newest crash and how it is now.

    `subject` is a deployment's name or a folder of evidence; None is the only deployment, or where
    there is none, the newest crash. The file is a tar.gz, readable by its owner only. Raises
    SparkdeployError when nothing is known of the subject or the file cannot be written.
    """
    settings = load_settings()
    subject = subject if subject is not None else _only_subject(settings)
    keys = known_secrets(settings.state_dir / "keys") + environment_secrets()
    with tempfile.TemporaryDirectory(prefix="sparkdeploy-") as scratch:
        found = _collect(subject, Path(scratch), settings, keys)
        if not found:
            raise SparkdeployError(
                f"nothing to pack of {subject}: no deployment, no folder, and no crash is kept",
                hint=f"`sparkdeploy status`, or a folder below {settings.crashes_dir}",
            )
        found |= dict(_surroundings(settings))
        contents = {
            visible_line(name): visible(text_without_secrets(text, keys)).encode()
            for name, text in sorted(found.items())
        }
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = output or Path(f"sparkdeploy-{Path(subject).name}-{now}.tar.gz")
    _pack(path, contents)
    sizes = {name: len(content) for name, content in contents.items()}
    cause = found.get(f"crash/{ROOT_CAUSE}") or found.get(f"now/{ROOT_CAUSE}") or "unknown"
    return Bundle(path, cause.strip(), sizes)


def _only_subject(settings: Settings) -> str:
    """Raises UsageError where there are several deployments."""
    folders = [path for path in settings.crashes_dir.glob("*") if path.is_dir()]
    try:
        name = resolve_name_or_none(None, ("diagnose",))
    except NodeError:
        # The Docker Engine itself is what has failed.
        if not folders:
            raise
        name = None
    if name is not None:
        return name
    if folders:
        return str(max(folders, key=lambda path: path.stat().st_mtime))
    raise NodeError(
        "nothing is deployed and no start has failed: there is nothing to pack",
        hint="`sparkdeploy doctor` says what is wrong with the machine",
    )


def _collect(
    subject: str, scratch: Path, settings: Settings, keys: tuple[str, ...]
) -> dict[str, str]:
    if (folder := _named_folder(subject, settings)) is not None:
        return _read_folder(folder, "crash")
    newest = newest_crash(settings.crashes_dir, subject)
    found = {} if newest is None else _read_folder(newest, "crash")
    try:
        with connect(settings) as host:
            if (deployment := find_deployment(host, subject)) is not None:
                container_id = deployment.current.container_id
                write_evidence(host, container_id, scratch, details={}, keys=keys)
                found |= _read_folder(scratch, "now")
    except NodeError as error:
        if not found:
            raise
        console.warn(f"how it is now is not in the file: {error.message}")
    return found


def _named_folder(subject: str, settings: Settings) -> Path | None:
    """Return the folder of evidence that is meant, not one that is called like a deployment."""
    folder = Path(subject)
    kept = settings.crashes_dir / subject
    # What no file system takes for a path is no folder: too long, or with a NUL in it.
    with contextlib.suppress(OSError, ValueError):
        if folder.is_dir() and (os.sep in subject or (folder / ROOT_CAUSE).is_file()):
            return folder
        return kept if kept.is_dir() else None
    return None


def _read_folder(folder: Path, place: str) -> dict[str, str]:
    """Return the ends of its files, so many bytes together at most; no link is followed."""
    found: dict[str, str] = {}
    left_bytes = MAX_FOLDER_BYTES
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(OSError):
            text, size_bytes = _end_of(path, min(left_bytes, MAX_FILE_BYTES))
            found[f"{place}/{path.name}"] = text
            left_bytes -= size_bytes
    return found


def _end_of(path: Path, limit_bytes: int = MAX_FILE_BYTES) -> tuple[str, int]:
    """Return a file's text and its bytes, of a very long log its end: there the failure stands.

    Raises OSError for a link and for what is no regular file.
    """
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        if not os.path.samestat(status, os.lstat(path)):
            raise OSError(errno.ELOOP, "it is a link")
        left_out = max(status.st_size - limit_bytes, 0)
        file.seek(left_out)
        content = file.read(limit_bytes)
    note = f"({left_out} bytes before this are left out)\n" if left_out else ""
    return note + content.decode(errors="replace"), len(content)


def _surroundings(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield what holds for the whole machine: doctor, deployments, settings, the last bug."""

    def doctor() -> object:
        return doctor_report(load_recipe(library(settings), settings.default_recipe), settings)

    def status() -> object:
        return list(map(asdict, current_rows()))

    looks = {"doctor.json": doctor, "status.json": status}
    for name, look in looks.items():
        try:
            seen = look()
        except SparkdeployError as error:
            # What cannot be seen may be the very fault that is reported.
            seen = {"not_seen": error.message}
        yield name, json.dumps(seen, indent=2, sort_keys=True, default=str) + "\n"
    for path in (settings.config_dir / "config.yaml", settings.state_dir / "crash.log"):
        with contextlib.suppress(OSError):
            yield path.name, _end_of(path.resolve())[0]


def _pack(path: Path, contents: dict[str, bytes]) -> None:
    """Write beside the target and rename: half an archive is none."""
    archive = io.BytesIO()
    write_tar((ContextFile(*item, FILE_MODE) for item in contents.items()), archive)
    try:
        atomic_files.write_bytes(path, gzip.compress(archive.getvalue()), FILE_MODE)
    except OSError as error:
        raise SparkdeployError(f"{path} cannot be written: {error.strerror}") from error
