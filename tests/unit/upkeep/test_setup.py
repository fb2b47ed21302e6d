"""What `setup` says is missing, by which commands it comes, and what it does as root."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkdeploy.checks.report import Verdict, fail
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.facts import GpuFact, GpuReading
from sparkdeploy.settings import Settings, load_settings
from sparkdeploy.upkeep import setup
from sparkdeploy.upkeep.setup import ENGINE_PACKAGES, GIB, Need, System, commands_of, is_fixable
from tests.unit.conftest import GiveProgram

LOCK = "/run/lock/sparkdeploy"
DOCKER = Path("/var/lib/docker")
NO_ENGINE = setup.missing_engine(System(), is_installed=False)
WRONG = fail("image.base", "there is none", "get one")


def test_all_packages_come_by_one_command_before_the_others() -> None:
    base = setup.check_base(("mmdebstrap", "uidmap"), System(), has_registry=False)
    full = Need(setup.check_disk(DOCKER, GIB, serves=True))
    first, disk, lock = commands_of([NO_ENGINE, full, base, setup.check_lock(LOCK, "")])
    packages = " ".join((*ENGINE_PACKAGES, "mmdebstrap", "uidmap"))
    assert first.endswith(f"apt-get install -y --no-install-recommends {packages}")
    assert "data-root" in disk
    assert lock.startswith(f"printf 'd {LOCK} 1777 root root -\\n' | sudo install -D ")


def test_a_stopped_engine_is_started_as_the_machine_starts_services() -> None:
    stopped = setup.missing_engine(System(), is_installed=True)
    assert list(commands_of([stopped])) == ["sudo systemctl enable --now docker"]
    bare = setup.missing_engine(System(has_systemd=False), is_installed=True)
    assert (bare.finding.fix or "").startswith("sudo sh -c 'setsid dockerd ")
    assert bare.is_fixable


def test_a_gpu_that_does_not_answer_is_a_warning_and_none_is_well() -> None:
    assert setup.check_gpu(GpuReading((GpuFact("NVIDIA GB10"),))).seen == "NVIDIA GB10"
    assert setup.check_gpu(GpuReading(failure="nvidia-smi is not installed")).verdict is Verdict.OK
    broken = GpuReading(failure="couldn't communicate with the driver")
    assert setup.check_gpu(broken).verdict is Verdict.WARN


@pytest.mark.parametrize(
    ("free_gib", "serves", "expected"),
    [(20, True, Verdict.FAIL), (20, False, Verdict.OK), (9, False, Verdict.FAIL)],
)
def test_a_rehearsal_takes_less_disk(free_gib: int, serves: bool, expected: Verdict) -> None:
    assert setup.check_disk(DOCKER, free_gib * GIB, serves=serves).verdict is expected


def test_packages_for_a_base_are_asked_for_where_no_registry_answers() -> None:
    lacking = ("debian-archive-keyring",)
    assert setup.check_base(lacking, System(), has_registry=False).packages == lacking
    assert setup.check_base(lacking, System(), has_registry=True).finding.verdict is Verdict.OK


def test_without_apt_nothing_is_installed_and_all_is_named() -> None:
    need = setup.missing_engine(System(has_apt=False), is_installed=False)
    assert not need.is_fixable
    assert "docker.io" in (need.finding.fix or "")


def test_nothing_is_fixed_where_something_would_stay_in_the_way() -> None:
    assert is_fixable([NO_ENGINE])
    assert not is_fixable([NO_ENGINE, Need(setup.check_disk(DOCKER, GIB, serves=True))])


def test_an_engine_gets_what_it_cannot_run_without() -> None:
    inside = System(has_systemd=False, has_cgroups=False, has_apparmor=True)
    need = setup.missing_engine(inside, is_installed=False)
    assert need.packages == (*ENGINE_PACKAGES, "apparmor", "cgroupfs-mount")


def test_a_lock_folder_that_each_boot_makes_is_well() -> None:
    assert setup.check_lock(LOCK, f"d {LOCK} 1777 root root -\n").finding.verdict is Verdict.OK
    assert setup.check_lock(LOCK, "").finding.verdict is Verdict.WARN


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, give_program: GiveProgram) -> Path:
    """Stubs of what root would do; returns where they note their calls."""
    calls = tmp_path / "calls"
    for name in ("apt-get", "systemctl", "setsid", "systemd-tmpfiles"):
        # apt would ask at the terminal.
        asks = '[ "$DEBIAN_FRONTEND" = noninteractive ] || exit 9'
        give_program(name, f'{asks}\necho "{name} $*" >>{calls}')
    monkeypatch.delenv("DEBIAN_FRONTEND", raising=False)
    monkeypatch.setattr(setup, "LOCK_ENTRY", str(tmp_path / "tmpfiles.d" / "sparkdeploy.conf"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return calls


def settings(tmp_path: Path) -> Settings:
    return load_settings(
        {"SPARKDEPLOY_LOCK_DIR": str(tmp_path / "lock"), "DOCKER_HOST": f"unix://{tmp_path}/none"}
    )


def test_a_user_whom_docker_refuses_gets_the_connections_own_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(_settings: Settings) -> None:
        raise NodeError("it may not be used", hint="join the group") from PermissionError()

    monkeypatch.setattr(setup, "connect", refuse)
    need, info = setup._engine(settings(tmp_path), System())
    assert (need.finding.verdict, need.finding.fix, info) == (Verdict.FAIL, "join the group", None)
    assert not need.is_fixable, "root cannot log in again for anybody"


def test_packages_are_installed_once_after_an_update(stubs: Path, tmp_path: Path) -> None:
    needs = [
        Need(WRONG, ("iptables", "uidmap"), is_fixable=True),
        Need(WRONG, ("uidmap", "mmdebstrap"), is_fixable=True),
    ]
    setup.fix(needs, settings(tmp_path))
    update, install = stubs.read_text().splitlines()
    assert update == "apt-get update"
    assert install == "apt-get install -y --no-install-recommends iptables uidmap mmdebstrap"


@pytest.mark.parametrize("has_systemd", [True, False])
def test_the_lock_folder_is_made_for_every_boot_and_now(
    stubs: Path, tmp_path: Path, has_systemd: bool
) -> None:
    if not has_systemd:
        (stubs.parent / "bin" / "systemd-tmpfiles").write_text("#!/bin/sh\nexit 127\n")
    lock = tmp_path / "lock"
    setup.fix([setup._without_sudo(setup.check_lock(str(lock), ""))], settings(tmp_path))
    entry = tmp_path / "tmpfiles.d" / "sparkdeploy.conf"
    assert setup.check_lock(str(lock), entry.read_text()).finding.verdict is Verdict.OK
    if has_systemd:
        assert stubs.read_text() == f"systemd-tmpfiles --create {entry}\n"
    else:
        assert lock.stat().st_mode & 0o7777 == 0o1777


def test_a_command_that_fails_is_named(stubs: Path, tmp_path: Path) -> None:
    wrong = Need(fail("image.base", "there is none", "echo no room >&2; exit 3"), is_fixable=True)
    with pytest.raises(SparkdeployError, match="this failed: echo no room") as caught:
        setup.fix([wrong], settings(tmp_path))
    assert caught.value.detail == "no room"
    assert not stubs.exists()


def test_an_engine_that_does_not_answer_is_told_with_its_log(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "dockerd.log"
    log.write_text("no space left on device\n")
    monkeypatch.setattr(setup, "ENGINE_LOG", str(log))
    monkeypatch.setattr(setup, "ENGINE_WAIT_S", 0.0)
    monkeypatch.setattr(setup, "SYSTEMD", tmp_path / "none")
    with pytest.raises(SparkdeployError, match="did not answer") as caught:
        setup.fix([setup._without_sudo(NO_ENGINE)], settings(tmp_path))
    assert "no space left" in (caught.value.detail or "")


def test_nothing_is_done_without_consent(stubs: Path, tmp_path: Path) -> None:
    asked: list[object] = []

    def refuses(needs: object) -> bool:
        asked.append(needs)
        return False

    setup.set_up(settings(tmp_path), rehearsal=True, agrees=refuses)
    assert len(asked) <= 1
    assert not stubs.exists()
