"""What `setup` does as root: programs of a machine made of stubs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy.checks.finding import fail
from sparkdeploy.checks.setup import Need, Purpose, Remedy, lock_entry
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep import setup

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.settings import Settings

WRONG = fail("docker.engine", "there is none", "get one")


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a folder of stubs before the machine's programs; return where they note their calls."""
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    for name in ("apt-get", "systemctl", "setsid", "systemd-tmpfiles"):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(setup, "LOCK_ENTRY", str(tmp_path / "tmpfiles.d" / "sparkdeploy.conf"))
    return calls


def settings(tmp_path: Path) -> Settings:
    return load_settings(
        {"SPARKDEPLOY_LOCK_DIR": str(tmp_path / "lock"), "DOCKER_HOST": f"unix://{tmp_path}/none"}
    )


def test_all_packages_come_by_one_install_after_an_update(stubs: Path, tmp_path: Path) -> None:
    needs = [Need(WRONG, ("docker.io", "iptables")), Need(WRONG, ("iptables", "mmdebstrap"))]
    setup.mend(needs, settings(tmp_path))
    update, install = stubs.read_text().splitlines()
    assert update.endswith(" update")
    assert install.endswith(" install -y --no-install-recommends docker.io iptables mmdebstrap")


def test_the_lock_folder_is_made_for_every_boot_and_now(stubs: Path, tmp_path: Path) -> None:
    need = Need(WRONG, (), Remedy.SHARE_LOCK)
    setup.mend([need], settings(tmp_path))
    lock = tmp_path / "lock"
    entry = tmp_path / "tmpfiles.d" / "sparkdeploy.conf"
    assert entry.read_text() == lock_entry(str(lock))
    assert stubs.read_text() == f"systemd-tmpfiles --create {entry}\n"
    assert lock.stat().st_mode & 0o7777 == 0o1777


def test_an_engine_that_does_not_answer_is_told_with_its_log(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "dockerd.log"
    log.write_text("no space left on device\n")
    monkeypatch.setattr(setup, "ENGINE_LOG", str(log))
    monkeypatch.setattr(setup, "ENGINE_WAIT_S", 0.0)
    monkeypatch.setattr(setup, "SYSTEMD", tmp_path / "none")
    monkeypatch.setattr(setup, "DOCKERD_PID", tmp_path / "none")
    with pytest.raises(SparkdeployError, match="did not answer") as caught:
        setup.mend([Need(WRONG, (), Remedy.START_ENGINE)], settings(tmp_path))
    assert "no space left" in (caught.value.detail or "")


def test_nothing_is_done_without_consent(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    asked: list[object] = []

    def refuses(needs: object) -> bool:
        asked.append(needs)
        return False

    setup.set_up(settings(tmp_path), Purpose.REHEARSAL, agrees=refuses)
    assert len(asked) == 1
    assert not stubs.exists()
