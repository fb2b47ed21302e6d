"""What the kernel registered for programs of other processors, as /proc shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy.errors import NodeError
from sparkdeploy.image.emulation import refuse_without_emulation

if TYPE_CHECKING:
    from pathlib import Path

# As Debian's qemu-user-static 7.2 shows it in /proc/sys/fs/binfmt_misc/qemu-aarch64.
AARCH64 = """\
enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: POCF
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""
PYTHON = "enabled\ninterpreter /usr/bin/python3.11\nflags: \noffset 0\nmagic a70d0d0a\n"


def registered(folder: Path, text: str, name: str = "qemu-aarch64") -> Path:
    (folder / "register").mkdir()  # cannot be read, like the real one
    (folder / "status").write_text("enabled\n")
    (folder / "python3.11").write_text(PYTHON)
    (folder / name).write_text(text)
    return folder


def test_an_interpreter_that_containers_find_is_enough(tmp_path: Path) -> None:
    # Another name, as other installers give it, says the same.
    folder = registered(tmp_path, AARCH64, "aarch64-by-hand")
    refuse_without_emulation("aarch64", folder)
    with pytest.raises(NodeError, match="cannot run programs for linux/amd64"):
        refuse_without_emulation("x86_64", folder)


@pytest.mark.parametrize(
    "text", [AARCH64.replace("POCF", "PO"), AARCH64.replace("enabled", "disabled")]
)
def test_one_that_containers_do_not_find_is_refused_with_its_name(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(NodeError, match="qemu-aarch64 is registered without the flag F") as caught:
        refuse_without_emulation("aarch64", registered(tmp_path, text))
    assert "an F among its flags" in (caught.value.hint or "")


def test_nothing_registered_is_refused_with_what_to_install(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "not-mounted"):
        with pytest.raises(NodeError, match="cannot run programs for linux/arm64") as caught:
            refuse_without_emulation("aarch64", folder)
        assert "apt-get install qemu-user-static binfmt-support" in (caught.value.hint or "")
