"""Whether this machine runs programs of another processor, which building for it takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.image.lock import Architecture

REGISTERED = Path("/proc/sys/fs/binfmt_misc")
PLATFORMS: Mapping[str, Architecture] = {"linux/arm64": "aarch64", "linux/amd64": "x86_64"}
"""What Docker calls them, and what we do."""
_ELF = "7f454c46"
_MACHINES = {"b700": "aarch64", "3e00": "x86_64"}
"""`e_machine` of an ELF header, little endian, in hex."""
_MACHINE_AT = slice(36, 40)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What the kernel starts for programs of another processor."""

    name: str
    architecture: str
    is_enabled: bool
    flags: str

    @property
    def reaches_containers(self) -> bool:
        # Without F the kernel looks for the interpreter's path in the container's own files.
        return self.is_enabled and "F" in self.flags


def platform_of(architecture: str) -> str:
    """Return Docker's word for an architecture of ours; empty for an unknown one."""
    return next((name for name, known in PLATFORMS.items() if known == architecture), "")


def interpreters(folder: Path = REGISTERED) -> Iterator[Interpreter]:
    """Yield what is registered for x86-64 and aarch64; nothing where the kernel shows nothing."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # `register` can only be written
            continue
        said = {name.rstrip(":"): value for name, _, value in (it.partition(" ") for it in lines)}
        magic = said.get("magic", "")
        machine = _MACHINES.get(magic[_MACHINE_AT])
        if magic.startswith(_ELF) and said.get("offset", "0") == "0" and machine is not None:
            yield Interpreter(path.name, machine, "enabled" in said, said.get("flags", ""))


def refuse_without_emulation(architecture: Architecture, folder: Path = REGISTERED) -> None:
    """Raise NodeError unless containers here can run programs of that architecture."""
    found = [item for item in interpreters(folder) if item.architecture == architecture]
    if any(item.reaches_containers for item in found):
        return
    platform, name = platform_of(architecture), f"qemu-{architecture}"
    shows = f"`cat {REGISTERED / name}` then shows `enabled` and an F among its flags"
    if not found:
        raise NodeError(
            f"this machine cannot run programs for {platform}, and building an image runs them",
            hint=f"sudo apt-get install qemu-user-static binfmt-support; {shows}",
        )
    raise NodeError(
        f"{found[0].name} is registered without the flag F, or disabled: programs for {platform}"
        " do not run in containers",
        hint=f"echo -1 | sudo tee {REGISTERED / found[0].name}, then sudo apt-get install"
        f" --reinstall qemu-user-static binfmt-support; {shows}",
    )
