"""Whether this machine runs programs of another processor, which building for it takes."""

import re
from collections.abc import Mapping
from pathlib import Path

from sparkdeploy.errors import NodeError
from sparkdeploy.image.lock import Architecture

REGISTERED = Path("/proc/sys/fs/binfmt_misc")
PLATFORMS: Mapping[str, Architecture] = {"linux/arm64": "aarch64", "linux/amd64": "x86_64"}
"""What Docker calls them, and what we do."""
_MACHINES: Mapping[Architecture, str] = {"aarch64": "b700", "x86_64": "3e00"}
"""`e_machine` of an ELF header, little endian, in hex."""


def platform_of(architecture: str) -> str:
    """Return Docker's word for an architecture of ours; empty for an unknown one."""
    return next((name for name, known in PLATFORMS.items() if known == architecture), "")


def refuse_without_emulation(architecture: Architecture, folder: Path = REGISTERED) -> None:
    """Raise NodeError unless containers here can run programs of that architecture."""
    # Other installers register the interpreter under names of their own.
    magic = re.compile(rf"^magic 7f454c46\w{{28}}{_MACHINES[architecture]}", re.MULTILINE)
    texts = {path.name: _text_of(path) for path in sorted(folder.glob("*"))}
    found = {name: text for name, text in texts.items() if magic.search(text)}
    # Without F the kernel looks for the interpreter's path in the container's own files.
    reaches_containers = re.compile(r"\Aenabled$.*^flags: \w*F", re.MULTILINE | re.DOTALL)
    if any(map(reaches_containers.search, found.values())):
        return
    platform, name = platform_of(architecture), next(iter(found), f"qemu-{architecture}")
    shows = f"`cat {REGISTERED / name}` then shows `enabled` and an F among its flags"
    if not found:
        raise NodeError(
            f"this machine cannot run programs for {platform}, and building an image runs them",
            hint=f"sudo apt-get install qemu-user-static binfmt-support; {shows}",
        )
    raise NodeError(
        f"{name} is registered without the flag F, or disabled: programs for {platform}"
        " do not run in containers",
        hint=f"echo -1 | sudo tee {REGISTERED / name}, then sudo apt-get install"
        f" --reinstall qemu-user-static binfmt-support; {shows}",
    )


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # `register` can only be written
        return ""
