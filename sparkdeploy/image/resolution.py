"""Makes locks: asks uv which packages an engine needs, for one platform and one Python."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import shell
from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image.lock import sha256_of
from sparkdeploy.image.network import index_variables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.image.lock import WheelPlatform
    from sparkdeploy.settings import BuildNetwork

LOCK_DATE = "2026-11-15"
"""Packages that were published later than this day do not exist for the shipped locks."""
OLDEST_GLIBC = "manylinux_2_34"
"""What every base the engines name can load."""
COMPILE_TIMEOUT_S = 600
_AS_OF = re.compile(r"as of (\d{4}-\d{2}-\d{2})\.")


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


def compile_argv(
    uv: Path, inputs: Path, platform: WheelPlatform, *, date: str, output: Path
) -> tuple[str, ...]:
    """Return the uv command that resolves requirements.in and overrides.in of a folder."""
    return (
        str(uv), "pip", "compile", str(inputs / "requirements.in"),
        "--override", str(inputs / "overrides.in"),
        "--exclude-newer", date,
        "--python-version", platform.python,
        "--python-platform", f"{platform.architecture}-{OLDEST_GLIBC}",
        "--only-binary", ":all:",
        "--no-config", "--quiet",
        "--format", "pylock.toml",
        "--output-file", str(output),
    )  # fmt: skip


def make_lock(
    inputs: Path,
    platform: WheelPlatform,
    date: str,
    *,
    network: BuildNetwork,
    without: Sequence[str] = (),
) -> str:
    """Resolve a folder's requirements for one platform; return the lock's text.

    What was published after `date` does not exist for it. Every line has the hashes of the wheels
    that fit the platform, and of nothing else. `without` names distributions that come from
    elsewhere. Raises NodeError without uv and BuildError when uv finds no solution or no index.
    """
    uv = find_uv()
    with tempfile.TemporaryDirectory(prefix="sparkdeploy-lock-") as scratch:
        output = Path(scratch) / "pylock.toml"
        argv = compile_argv(uv, inputs, platform, date=date, output=output)
        done = shell.run(argv, timeout_s=COMPILE_TIMEOUT_S, env=_environment(network))
        if done.exit_code != 0:
            raise BuildError(
                f"uv could not resolve {inputs.name} for {platform.architecture} and Python"
                f" {platform.python} as of {date}",
                detail="\n".join(done.stderr.splitlines()[-20:]),
                hint="does the package index answer? `index_url` in config.yaml names another",
            )
        resolved = tomllib.loads(output.read_text(encoding="utf-8"))
    header = (
        f"# Made from {inputs.name}/requirements.in and overrides.in for {platform.architecture},\n"
        f"# Python {platform.python}, as of {date}. Not to be edited by hand.\n"
    )
    entries = (
        _lock_entry(
            f"{package['name']}=={package['version']}",
            *(wheel["hashes"]["sha256"] for wheel in package["wheels"]),
        )
        for package in resolved["packages"]
        if package["name"] not in without
    )
    return header + "".join(entries)


def make_torch_lock(version: str, wheel: Path | None) -> str:
    """Return the lock of PyTorch's CPU build, with the hash of the wheel that was seen."""
    if wheel is None:
        head = "No hash: no wheel of this build was at hand when the lock was made."
        return f"# {head}\n{_lock_entry(f'torch=={version}+cpu')}"
    return f"# {wheel.name}\n{_lock_entry(f'torch=={version}+cpu', sha256_of(wheel))}"


def _lock_entry(pin: str, *hashes: str) -> str:
    return " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in sorted(hashes))]) + "\n"


def _environment(network: BuildNetwork) -> dict[str, str]:
    """Tell uv what pip is told here; uv does not read pip's configuration."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    if network.ca_bundle is not None:
        variables["SSL_CERT_FILE"] = str(network.ca_bundle)
    return variables | index_variables(network)
