"""Makes locks: asks uv which packages an engine needs, for one platform and one Python."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy import shell
from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image import lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.image.lock import Architecture
    from sparkdeploy.settings import BuildNetwork

LOCK_DATE = "2026-11-15"
"""Packages that were published later than this day do not exist for the shipped locks."""
OLDEST_GLIBC = "manylinux_2_34"
"""What every base the engines name can load."""
COMPILE_TIMEOUT_S = 600
_AS_OF = re.compile(r"as of (\d{4}-\d{2}-\d{2})\.")


@dataclass(frozen=True, slots=True)
class Target:
    """What a lock is made for."""

    architecture: Architecture
    python: str
    date: str = LOCK_DATE
    """Packages published later do not exist for the lock."""


def find_uv() -> Path:
    """Return uv from PATH or from beside this Python; raise NodeError when there is none."""
    found = shell.which("uv") or Path(sys.executable).with_name("uv")
    if not found.is_file():
        raise NodeError(
            "uv is not installed, and only uv resolves for another platform",
            hint=f"{sys.executable} -m pip install uv",
        )
    return found


def date_of(text: str) -> str | None:
    """Return the day a lock was made for, as its head states it."""
    found = _AS_OF.search(text)
    return found[1] if found else None


def compile_argv(uv: Path, inputs: Path, target: Target, *, output: Path) -> tuple[str, ...]:
    """Return the uv command that resolves requirements.in and overrides.in of a folder."""
    return (
        str(uv), "pip", "compile", str(inputs / "requirements.in"),
        "--override", str(inputs / "overrides.in"),
        "--exclude-newer", target.date,
        "--python-version", target.python,
        "--python-platform", f"{target.architecture}-{OLDEST_GLIBC}",
        "--only-binary", ":all:",
        "--no-config", "--quiet",
        "--format", "pylock.toml",
        "--output-file", str(output),
    )  # fmt: skip


def make_lock(
    inputs: Path, target: Target, *, network: BuildNetwork, without: Sequence[str] = ()
) -> str:
    """Resolve a folder's requirements for one platform; return the lock's text.

    Every line has the hashes of the wheels that fit the platform, and of nothing else. `without`
    names distributions that come from elsewhere. Raises NodeError without uv and BuildError when
    uv finds no solution or no index.
    """
    uv = find_uv()
    with tempfile.TemporaryDirectory(prefix="sparkdeploy-lock-") as scratch:
        output = Path(scratch) / "pylock.toml"
        argv = compile_argv(uv, inputs, target, output=output)
        done = shell.run(argv, timeout_s=COMPILE_TIMEOUT_S, env=_environment(network))
        if done.exit_code != 0:
            raise BuildError(
                f"uv could not resolve {inputs.name} for {target.architecture} and Python"
                f" {target.python} as of {target.date}",
                detail="\n".join(done.stderr.splitlines()[-20:]),
                hint="does the package index answer? `index_url` in config.yaml names another",
            )
        resolved = tomllib.loads(output.read_text(encoding="utf-8"))
    header = (
        f"# Made from {inputs.name}/requirements.in and overrides.in for {target.architecture},\n"
        f"# Python {target.python}, as of {target.date}. Not to be edited by hand.\n"
    )
    packages = [entry for entry in resolved["packages"] if entry["name"] not in without]
    return header + "".join(_lock_entry(entry) for entry in packages)


def make_torch_lock(version: str, wheel: Path | None) -> str:
    """Return the lock of PyTorch's CPU build, with the hash of the wheel that was seen."""
    if wheel is None:
        return (
            "# No hash: no wheel of this build was at hand when the lock was made.\n"
            f"torch=={version}+cpu\n"
        )
    with wheel.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return f"# {wheel.name}\ntorch=={version}+cpu \\\n    --hash=sha256:{digest}\n"


def find_torch_wheel(version: str, target: Target, folders: Sequence[Path]) -> Path | None:
    """Return a wheel of PyTorch's CPU build from one of these folders, or None."""
    wanted = lock.Pin("torch", f"{version}+cpu")
    for folder in folders:
        for path in sorted(folder.glob("torch-*.whl")):
            found = lock.wheel_pin(
                path.name, architecture=target.architecture, python=target.python
            )
            if found == wanted:
                return path
    return None


def _environment(network: BuildNetwork) -> dict[str, str]:
    """Tell uv what pip is told here; uv does not read pip's configuration."""
    said = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    if network.ca_bundle is not None:
        said["SSL_CERT_FILE"] = str(network.ca_bundle)
    if network.index_url is not None:
        said["UV_DEFAULT_INDEX"] = network.index_url
    if network.extra_index_urls:
        said["UV_INDEX"] = " ".join(network.extra_index_urls)
    return said


def _lock_entry(entry: dict[str, Any]) -> str:
    hashes = sorted(wheel["hashes"]["sha256"] for wheel in entry["wheels"])
    lines = [f"{entry['name']}=={entry['version']}"]
    lines += [f"    --hash=sha256:{digest}" for digest in hashes]
    return " \\\n".join(lines) + "\n"
