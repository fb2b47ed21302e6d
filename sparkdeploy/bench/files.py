"""Records and captures as files: written whole, read strictly, and kept in one folder."""

import errno
import functools
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from sparkdeploy import atomic_files, yaml_text
from sparkdeploy.atomic_files import make_private, write_private
from sparkdeploy.bench.record import SCHEMA_VERSION, Run
from sparkdeploy.errors import BenchError, UsageError
from sparkdeploy.stored_json import read_json
from sparkdeploy.terminal.safe_text import visible_json

T = TypeVar("T")
PROBE_BYTES = 1 << 18
"""A record of all suites is about as large."""


@functools.cache
def shipped(name: str) -> Any:  # noqa: ANN401 - YAML content
    """Return what a YAML file of this room holds; it is a part of the program, like its code."""
    return yaml_text.load_file(Path(__file__).parent / name)


def write_whole(text: str, path: Path) -> None:
    """Write a file that appears whole or not at all; BenchError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_text(path, text)
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error.strerror}") from error


def require_writable(path: Path) -> None:
    """Raise BenchError where a record could not be written, before an hour is spent on one."""
    try:
        make_private(path.parent)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        atomic_files.probe(path.parent, PROBE_BYTES)
    except OSError as error:
        raise BenchError(
            f"{path} could not be written: {error.strerror}",
            hint="make room, or name another place: --save FILE.json",
        ) from error


def read_content(path: Path, what: str) -> Any:  # noqa: ANN401 - any JSON
    """Return what a JSON file holds; BenchError says that it is no `what`."""
    try:
        return read_json(path)
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}") from error
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BenchError(f"{path} is not a {what}: {error}") from error


@functools.cache
def adapter_of(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def checked(content: Any, kind: type, path: Path) -> Any:  # noqa: ANN401 - JSON as its type
    """Return the content as its type; BenchError names the first field that is damaged."""
    try:
        # As JSON and strictly: the text "nan" is no number.
        return adapter_of(kind).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BenchError(f"{path} is damaged: {place}: {first['msg']}") from error


def json_text(value: object, form: Any) -> str:  # noqa: ANN401 - a type
    """Return a value as it is written; control characters in it are escaped as JSON has it."""
    return visible_json(adapter_of(form).dump_json(value, indent=1).decode()) + "\n"


def write_private_json(path: Path, value: object, form: Any, *, is_durable: bool = False) -> None:  # noqa: ANN401 - a type
    """Write a file of the user's own, whole or not at all; BenchError when it cannot be written."""
    try:
        write_private(path, json_text(value, form), is_durable=is_durable)
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error.strerror}", hint="make room") from error


def record_text(run: Run) -> str:
    return json_text(run, Run)


def write_record(run: Run, path: Path) -> None:
    write_whole(record_text(run), path)


def read_versioned(path: Path, form: type, what: str, schema: int, kind: str | None = None) -> Any:  # noqa: ANN401 - `form`
    """Return a file of ours as `form`, without unknown fields; BenchError if it is newer."""
    content = read_content(path, what)
    version = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(version, int) or content.get("kind") != kind:
        raise BenchError(f"{path} is not a {what}")
    if version > schema:
        raise BenchError(
            f"{path} has schema {version}, and this sparkdeploy reads up to {schema}",
            hint="update sparkdeploy",
        )
    return checked(content, form, path)


def read_record(path: Path) -> Run:
    run: Run = read_versioned(path, Run, "record of a run", SCHEMA_VERSION)
    return run


def read_all(folder: Path, read: Callable[[Path], T]) -> tuple[list[T], tuple[str, ...]]:
    found: list[T] = []
    damaged: list[str] = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(read(path))
        except BenchError as error:
            damaged.append(error.message)
    return found, tuple(damaged)


@dataclass(frozen=True, slots=True)
class KeptRun:
    run: Run
    path: Path

    @property
    def is_whole(self) -> bool:
        return bool(self.run.suites) and all(suite.is_complete for suite in self.run.suites)


@dataclass(frozen=True, slots=True)
class RunStore:
    """Records in one folder, each named by id, label (the newest whole run) or file."""

    folder: Path

    def runs(self) -> tuple[tuple[KeptRun, ...], tuple[str, ...]]:
        kept, damaged = read_all(self.folder, lambda path: KeptRun(read_record(path), path))
        return tuple(sorted(kept, key=lambda item: item.run.run_id)), damaged

    def free_id(self, wanted: str) -> str:
        """Return the id, numbered where a run of it is there: runs may begin in one second."""
        taken, number = wanted, 1
        while (self.folder / f"{taken}.json").exists():
            number += 1
            taken = f"{wanted}-{number}"
        return taken

    def find(self, name: str) -> KeptRun:
        """Return the record of that id, label or file; BenchError naming those there are."""
        if name.endswith(".json") or "/" in name:
            return KeptRun(read_record(Path(name)), Path(name))
        kept, damaged = self.runs()
        named = [item for item in kept if name in {item.run.run_id, item.run.label}]
        whole = [item for item in named if item.is_whole or item.run.run_id == name]
        if named:
            return (whole or named)[-1]
        there = ", ".join(dict.fromkeys(item.run.label for item in kept))
        hint = f"there is: {there}" if there else "`sparkdeploy bench` makes one"
        raise BenchError(f"no run {name} in {self.folder}", hint="; ".join([hint, *damaged]))


def run_id(started: datetime, label: str, suites: str) -> str:
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{label}-{suites}").strip("-")
    return f"{started:%Y%m%dT%H%M%SZ}-{words}"
