"""Build the plugin's wheel with the standard library alone: a PEP 517 backend and a function.

The wheel is byte-for-byte the same for the same sources (fixed times, sorted names), so an image
stage that contains it keeps its fingerprint. No build tool has to be downloaded inside an image.
"""

import base64
import hashlib
import os
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCE_TREE = Path(__file__).resolve().parent
PACKAGE = "sparkdeploy_vllm"


def write_wheel(target_dir: Path, *, source_tree: Path = SOURCE_TREE) -> Path:
    """Write `sparkdeploy_vllm-<version>-py3-none-any.whl` into `target_dir`; return its path."""
    project = tomllib.loads((source_tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stem = f"{PACKAGE}-{project['version']}"
    files = dict(_package_files(source_tree))
    files.update(_dist_info(f"{stem}.dist-info", project))
    return _write_zip(target_dir / f"{stem}-py3-none-any.whl", f"{stem}.dist-info/RECORD", files)


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, object] | None = None,  # noqa: ARG001 - fixed by PEP 517
    metadata_directory: str | None = None,  # noqa: ARG001 - fixed by PEP 517
) -> str:
    """PEP 517: build into `wheel_directory`, return the file's name."""
    return write_wheel(Path(wheel_directory)).name


def build_editable(
    wheel_directory: str,
    config_settings: Mapping[str, object] | None = None,  # noqa: ARG001 - fixed by PEP 660
    metadata_directory: str | None = None,  # noqa: ARG001 - fixed by PEP 660
) -> str:
    """PEP 660: a wheel whose only module is a .pth file that names this source tree."""
    project = tomllib.loads((SOURCE_TREE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stem = f"{PACKAGE}-{project['version']}"
    files = {f"__editable__.{PACKAGE}.pth": f"{SOURCE_TREE}\n".encode()}
    files.update(_dist_info(f"{stem}.dist-info", project))
    path = Path(wheel_directory) / f"{stem}-py3-none-any.whl"
    return _write_zip(path, f"{stem}.dist-info/RECORD", files).name


def _package_files(source_tree: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted((source_tree / PACKAGE).rglob("*.py")):
        yield path.relative_to(source_tree).as_posix(), path.read_bytes()


def _dist_info(folder: str, project: Mapping[str, object]) -> dict[str, bytes]:
    metadata = (
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        f"Summary: {project['description']}\nRequires-Python: {project['requires-python']}\n"
    )
    wheel = "Wheel-Version: 1.0\nGenerator: sparkdeploy\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    return {
        f"{folder}/METADATA": metadata.encode(),
        f"{folder}/WHEEL": wheel.encode(),
        f"{folder}/entry_points.txt": _entry_points(project).encode(),
    }


def _entry_points(project: Mapping[str, object]) -> str:
    groups = {"console_scripts": project["scripts"], **dict(project["entry-points"])}  # type: ignore[call-overload]
    sections = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in groups.items()
    )
    return "\n".join(sections)


def _write_zip(path: Path, record_name: str, files: Mapping[str, bytes]) -> Path:
    record = "".join(
        f"{name},{_digest(content)},{len(content)}\n" for name, content in files.items()
    )
    partial = path.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**files, record_name: f"{record}{record_name},,\n".encode()}.items():
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    os.replace(partial, path)  # noqa: PTH105 - atomic
    return path


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"
