"""Build the plugin's wheel with the standard library alone.

The wheel is byte-for-byte the same for the same sources (fixed times, sorted names), so an image
stage that contains it keeps its fingerprint. No build tool has to be downloaded inside an image.
"""

import base64
import hashlib
import os
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

SOURCE_TREE = Path(__file__).resolve().parent
PACKAGE = "sparkdeploy_vllm"
SOURCES = (".py", ".cu")


def write_wheel(target_dir: Path, *, source_tree: Path = SOURCE_TREE) -> Path:
    """Write `sparkdeploy_vllm-<version>-py3-none-any.whl` into `target_dir`; return its path."""
    project = tomllib.loads((source_tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stem = f"{PACKAGE}-{project['version']}"
    files = {
        path.relative_to(source_tree).as_posix(): path.read_bytes()
        for path in sorted((source_tree / PACKAGE).rglob("*"))
        if path.suffix in SOURCES
    }
    files.update(_dist_info(f"{stem}.dist-info", project))
    record_name = f"{stem}.dist-info/RECORD"
    record = "".join(
        f"{name},{_digest(content)},{len(content)}\n" for name, content in files.items()
    )
    files[record_name] = f"{record}{record_name},,\n".encode()
    return _write_zip(target_dir / f"{stem}-py3-none-any.whl", files)


def _dist_info(folder: str, project: Mapping[str, object]) -> dict[str, bytes]:
    metadata = (
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        f"Summary: {project['description']}\nRequires-Python: {project['requires-python']}\n"
    )
    wheel = "Wheel-Version: 1.0\nGenerator: sparkdeploy\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    groups = {"console_scripts": project["scripts"], **dict(project["entry-points"])}  # type: ignore[call-overload]
    sections = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in groups.items()
    )
    return {
        f"{folder}/METADATA": metadata.encode(),
        f"{folder}/WHEEL": wheel.encode(),
        f"{folder}/entry_points.txt": "\n".join(sections).encode(),
    }


def _write_zip(path: Path, files: Mapping[str, bytes]) -> Path:
    partial = path.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    os.replace(partial, path)  # noqa: PTH105 - atomic
    return path


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"
