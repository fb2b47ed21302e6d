"""What `setup` says is missing, of machines of every kind, and by which commands it comes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkdeploy.checks.finding import Verdict
from sparkdeploy.checks.host_facts import Folder
from sparkdeploy.checks.setup import (
    ENGINE_PACKAGES,
    Admission,
    EngineFact,
    Need,
    Purpose,
    Remedy,
    SetupFact,
    SystemFact,
    commands_of,
    is_fixable,
    lock_entry,
    needs_of,
)
from sparkdeploy.errors import NodeError
from sparkdeploy.node.facts import GpuFact, GpuReading
from sparkdeploy.node.reports import EngineInfo

GIB = 2**30
ADA, ROOT = 1000, 0
LOCK = "/run/lock/sparkdeploy"
INFO = EngineInfo("spark", "29.1", "/var/lib/docker", "aarch64", 128 * GIB, 20, True)
SPARK = GpuReading((GpuFact("NVIDIA GB10"),))
NO_GPU = GpuReading(failure="nvidia-smi is not installed")
WELL = SetupFact(
    uid=ADA,
    system=SystemFact(),
    engine=EngineFact(INFO),
    images_folder="/var/lib/docker",
    images_free_bytes=400 * GIB,
    gpu=SPARK,
    has_gpu_toolkit=True,
    base_packages=(),
    has_registry=False,
    folders=(Folder("state", "/home/ada/.local/state/sparkdeploy", ADA),),
    lock_dir=LOCK,
    lock_entry=lock_entry(LOCK),
)
NO_ENGINE = EngineFact(failure=NodeError("docker does not answer"))
REFUSED = NodeError("docker may not be used by this user")


def failed(fact: SetupFact, purpose: Purpose = Purpose.SERVING) -> dict[str, Need]:
    """Return the needs that stand in the way, by their check."""
    needs = needs_of(fact, purpose)
    return {it.finding.check: it for it in needs if it.finding.verdict is Verdict.FAIL}


def typed(fact: SetupFact, purpose: Purpose = Purpose.SERVING) -> list[str]:
    return list(commands_of(needs_of(fact, purpose)))


def test_a_spark_that_lacks_nothing_has_nothing_to_type() -> None:
    needs = needs_of(WELL, Purpose.SERVING)
    assert {need.finding.verdict for need in needs} == {Verdict.OK}
    assert typed(WELL) == []
    assert not is_fixable(needs)


def test_all_that_is_missing_is_named_at_once_and_packages_come_by_one_command() -> None:
    bare = replace(
        WELL,
        engine=NO_ENGINE,
        images_free_bytes=GIB,
        has_gpu_toolkit=False,
        base_packages=("mmdebstrap", "uidmap"),
        lock_entry="",
    )
    assert set(failed(bare)) == {
        "docker.engine",
        "docker.nvidia_runtime",
        "docker.disk",
        "image.base",
    }
    first, *others = typed(bare)
    packages = " ".join((*ENGINE_PACKAGES, "mmdebstrap", "uidmap"))
    assert first == f"sudo apt-get update && sudo apt-get install -y {packages}"
    assert "sudo nvidia-ctk runtime configure --runtime=docker" in others[0]
    assert "data-root" in others[1]
    assert others[2].startswith(f"printf 'd {LOCK} 1777 root root -\\n' | sudo tee ")


def test_a_stopped_engine_is_started_as_the_machine_starts_services() -> None:
    stopped = replace(WELL, engine=replace(NO_ENGINE, is_installed=True))
    assert typed(stopped) == ["sudo systemctl enable --now docker"]
    bare = replace(stopped, system=SystemFact(has_systemd=False))
    assert typed(bare)[0].startswith("sudo sh -c 'setsid dockerd ")
    assert failed(stopped)["docker.engine"].remedy is Remedy.START_ENGINE
    assert failed(stopped)["docker.engine"].packages == ()


def test_an_engine_elsewhere_is_never_installed_here() -> None:
    elsewhere = EngineFact(failure=NodeError("no answer", hint="is it up?"), is_local=False)
    need = failed(replace(WELL, engine=elsewhere))["docker.engine"]
    assert (need.finding.fix, need.is_fixable) == ("is it up?", False)


@pytest.mark.parametrize(
    ("admission", "words"),
    [(Admission.CLOSED, "sudo usermod -aG docker "), (Admission.NEW_LOGIN, "newgrp docker")],
)
def test_a_user_outside_the_group_is_told_how_to_join(admission: Admission, words: str) -> None:
    refused = EngineFact(failure=REFUSED, admission=admission, is_installed=True)
    need = failed(replace(WELL, engine=refused))["docker.engine"]
    assert words in (need.finding.fix or "")
    assert not need.is_fixable


def test_a_gpu_is_asked_for_where_one_serves() -> None:
    without = replace(WELL, engine=EngineFact(replace(INFO, has_nvidia_runtime=False)))
    assert set(failed(without)) == {"docker.nvidia_runtime"}
    assert failed(without, Purpose.REHEARSAL) == {}
    assert failed(replace(without, gpu=NO_GPU)) == {}
    broken = replace(without, gpu=GpuReading(failure="couldn't communicate with the driver"))
    needs = needs_of(broken, Purpose.SERVING)
    assert needs[0].finding.verdict is Verdict.WARN
    assert failed(broken) == {}


def test_a_rehearsal_takes_less_disk() -> None:
    tight = replace(WELL, images_free_bytes=20 * GIB)
    assert set(failed(tight)) == {"docker.disk"}
    assert failed(tight, Purpose.REHEARSAL) == {}
    assert failed(replace(tight, gpu=NO_GPU)) == {}
    assert set(failed(replace(tight, images_free_bytes=9 * GIB), Purpose.REHEARSAL)) == {
        "docker.disk"
    }


def test_packages_for_a_base_are_asked_for_where_no_registry_answers() -> None:
    lacking = replace(WELL, base_packages=("debian-archive-keyring",))
    assert failed(lacking)["image.base"].packages == ("debian-archive-keyring",)
    assert failed(replace(lacking, has_registry=True)) == {}


def test_without_apt_nothing_is_installed_and_all_is_named() -> None:
    other = replace(WELL, engine=NO_ENGINE, system=SystemFact(has_apt=False))
    need = failed(other)["docker.engine"]
    assert not need.is_fixable
    assert "docker.io" in (need.finding.fix or "")


def test_nothing_is_mended_where_something_would_stay_in_the_way() -> None:
    fixable = replace(WELL, engine=NO_ENGINE)
    assert is_fixable(needs_of(fixable, Purpose.SERVING))
    assert not is_fixable(needs_of(replace(fixable, images_free_bytes=GIB), Purpose.SERVING))


def test_an_engine_gets_what_it_cannot_run_without() -> None:
    inside = SystemFact(has_systemd=False, has_cgroups=False, has_apparmor=True)
    need = failed(replace(WELL, engine=NO_ENGINE, system=inside))["docker.engine"]
    assert need.packages == (*ENGINE_PACKAGES, "apparmor", "cgroupfs-mount")


def test_a_lock_folder_that_no_boot_makes_is_worth_a_look_and_root_mends_it() -> None:
    (need,) = (it for it in needs_of(replace(WELL, lock_entry=""), Purpose.SERVING) if it.remedy)
    assert (need.finding.verdict, need.remedy) == (Verdict.WARN, Remedy.SHARE_LOCK)


def test_a_folder_of_somebody_else_is_named_with_its_command() -> None:
    theirs = replace(WELL, folders=(Folder("cache", "/cache", 1001, is_writable=False),))
    assert typed(theirs) == ["sudo chown -R 1000 /cache"]
