"""install.sh on machines made of stubs: what it demands, what it does, what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkdeploy import labels

if TYPE_CHECKING:
    from tests.unit.install.conftest import Machine

pytestmark = pytest.mark.outside

OLD_PYTHON = "#!/bin/sh\nexit 1\n"
PYTHON_WITHOUT_VENV = "#!/bin/sh\necho bare\n"
FULL_DISK = "#!/bin/sh\necho header\necho disk 0 0 1024 0% /\n"
# Images are files; like the real engine it refuses to remove one that another was made from.
DOCKER_STUB = """#!/bin/sh
cd "{root}"
case "$1 $2" in
  "ps -aq")
    shift 2
    echo "docker ps $*" >>calls
    [ "$*" = "--filter label={label} --filter name=^/sparkdeploy-" ] || echo foreign-id
    echo ours-id ;;
  "rm -f") echo "docker rm $3" >>calls ;;
  "images -aq")
    for id in $(ls images); do
      [ "$4" = --filter ] && ! grep -q ours "images/$id" || echo "$id"
    done ;;
  "image inspect") shift 4; for id; do read -r line <"images/$id"; echo "$id $line"; done ;;
  rmi*)
    [ "$2" = -f ] && shift
    grep -q "^$2 " images/* && exit 1
    rm "images/$2" ;;
esac
"""
OUR_CONTAINERS = f"--filter label={labels.KIND} --filter name=^/sparkdeploy-"
REMOTE_ENGINE = "tcp://127.0.0.1:1"


def test_every_missing_prerequisite_is_named_at_once_with_its_command(machine: Machine) -> None:
    machine.add("python3", OLD_PYTHON)
    machine.add("df", FULL_DISK)
    machine.remove("mmdebstrap")
    result = machine.run()
    assert result.returncode == 4
    for part in ("4 missing", "- Python 3.11", "- Docker Engine", "- mmdebstrap", "- disk space"):
        assert part in result.stderr
    for packages in ("python3 python3-venv", "docker.io ", "mmdebstrap"):
        assert f"sudo apt-get update && sudo apt-get install -y {packages}" in result.stderr


def test_a_user_without_root_never_has_sudo_or_apt_called(machine: Machine) -> None:
    assert machine.run().returncode == 4
    assert machine.calls("sudo") == []
    assert machine.calls("apt-get") == []
    assert not machine.venv.exists()


def test_yes_lets_sudo_install_what_is_missing(machine: Machine) -> None:
    machine.environment["DOCKER_HOST"] = REMOTE_ENGINE
    machine.remove("mmdebstrap")
    machine.run("--yes")
    installs = [call for call in machine.calls("sudo") if "install -y" in call]
    assert len(installs) == 1
    assert installs[0].endswith(" mmdebstrap")


def test_root_installs_packages_after_updating_the_lists(machine: Machine) -> None:
    machine.user_is("root", 0)
    machine.environment["DOCKER_HOST"] = REMOTE_ENGINE
    machine.remove("mmdebstrap")
    result = machine.run()
    assert [call.split()[-1] for call in machine.calls("apt-get")] == ["update", "mmdebstrap"]
    assert result.returncode == 4, "the stub installs nothing, so it is still missing"
    assert machine.calls("sudo") == []


def test_a_user_on_ubuntu_is_told_all_that_the_base_image_needs(machine: Machine) -> None:
    machine.environment["DOCKER_HOST"] = REMOTE_ENGINE
    for name in ("mmdebstrap", "newuidmap"):
        machine.remove(name)
    (machine.root / "keyring").unlink()
    result = machine.run()
    assert result.returncode == 4
    assert "install -y mmdebstrap debian-archive-keyring uidmap\n" in result.stderr
    machine.add_recording("mmdebstrap")
    machine.add_recording("fakechroot")
    result = machine.run()
    assert result.returncode == 4
    assert "install -y debian-archive-keyring\n" in result.stderr


def test_root_needs_no_user_namespace(machine: Machine) -> None:
    machine.user_is("root", 0)
    machine.environment["DOCKER_HOST"] = REMOTE_ENGINE
    machine.remove("newuidmap")
    result = machine.run()
    assert result.returncode == 0, result.stderr
    assert machine.calls("apt-get") == []


def test_a_package_that_cannot_be_installed_ends_with_what_apt_said(machine: Machine) -> None:
    machine.user_is("root", 0)
    machine.environment["DOCKER_HOST"] = REMOTE_ENGINE
    machine.remove("mmdebstrap")
    machine.add("apt-get", "#!/bin/sh\necho no such mirror\nexit 100\n")
    result = machine.run()
    assert result.returncode == 1
    assert "no such mirror" in result.stderr


def test_root_changes_nothing_when_something_cannot_be_installed(machine: Machine) -> None:
    machine.user_is("root", 0)
    machine.add("df", FULL_DISK)
    result = machine.run()
    assert result.returncode == 4
    assert "- disk space" in result.stderr
    assert "- Docker Engine" in result.stderr
    assert machine.calls("apt-get") == []


def test_a_docker_client_without_an_engine_is_a_missing_engine(machine: Machine) -> None:
    machine.add_recording("docker", "echo 28.2")
    result = machine.run()
    assert result.returncode == 4
    assert "- Docker Engine" in result.stderr


def test_a_stopped_engine_gets_the_command_that_starts_it(machine: Machine) -> None:
    machine.add_recording("dockerd")
    result = machine.run()
    assert result.returncode == 4
    assert "- a running Docker Engine" in result.stderr
    assert "sudo sh -c 'setsid dockerd" in result.stderr or "enable --now docker" in result.stderr
    assert machine.calls("dockerd") == []


def test_a_python_without_venv_names_the_package(machine: Machine) -> None:
    machine.add("python3", PYTHON_WITHOUT_VENV)
    result = machine.run("--tool-only")
    assert result.returncode == 4
    assert "sudo apt-get install -y python3-venv" in result.stderr


def test_tool_only_needs_no_docker(machine: Machine) -> None:
    machine.remove("mmdebstrap")
    result = machine.run("--tool-only")
    assert result.returncode == 0, result.stderr
    assert machine.link.resolve() == machine.venv / "bin" / "sparkdeploy"
    assert "sparkdeploy rehearse" in result.stdout


def test_a_second_run_installs_nothing(machine: Machine) -> None:
    machine.run("--tool-only")
    result = machine.run("--tool-only")
    assert result.returncode == 0, result.stderr
    assert len(machine.calls("pip")) == 1
    assert len(machine.calls("venv")) == 1


def test_a_changed_source_is_installed_again_into_the_same_environment(machine: Machine) -> None:
    machine.run("--tool-only")
    (machine.checkout / "sparkdeploy" / "module.py").write_text("changed")
    machine.run("--tool-only")
    assert len(machine.calls("pip")) == 2
    assert len(machine.calls("venv")) == 1


def test_a_failed_installation_is_told_and_tried_again(machine: Machine) -> None:
    (machine.root / "pip-fails").touch()
    result = machine.run("--tool-only")
    assert result.returncode == 1
    assert "PIP_CERT" in result.stderr
    assert not machine.link.exists()
    (machine.root / "pip-fails").unlink()
    assert machine.run("--tool-only").returncode == 0
    assert machine.link.exists()


def test_a_link_folder_outside_path_is_said(machine: Machine) -> None:
    assert "is not on your PATH" in machine.run("--tool-only").stderr
    machine.environment["PATH"] += f":{machine.link.parent}"
    assert "is not on your PATH" not in machine.run("--tool-only").stderr


def test_a_foreign_file_in_the_place_of_the_link_stays(machine: Machine) -> None:
    machine.link.parent.mkdir()
    machine.link.write_text("mine")
    result = machine.run("--tool-only")
    assert result.returncode == 1
    assert str(machine.link) in result.stderr
    assert machine.link.read_text() == "mine"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("exit_code", [0, 4, 7])
@pytest.mark.parametrize("mode", ["rehearse", "up"])
def test_the_exit_code_of_the_command_passes_through(
    machine: Machine, mode: str, exit_code: int
) -> None:
    machine.tool_ends_with(exit_code)
    result = machine.run(f"--{mode}", "mtp-1")
    assert result.returncode == exit_code, result.stderr
    assert machine.calls("sparkdeploy") == [f"sparkdeploy {mode} mtp-1"]


@pytest.mark.usefixtures("engine")
def test_a_plain_run_without_a_spark_prepares_nothing(machine: Machine) -> None:
    machine.add_recording("nvidia-smi", "exit 9")
    result = machine.run()
    assert result.returncode == 0, result.stderr
    assert machine.calls("sparkdeploy") == []
    assert "sparkdeploy rehearse v2" in result.stdout


@pytest.mark.usefixtures("engine")
def test_a_spark_without_the_nvidia_runtime_is_told_how_to_get_it(machine: Machine) -> None:
    machine.add("nvidia-smi", "#!/bin/sh\necho NVIDIA GB10\n")
    result = machine.run()
    assert result.returncode == 4
    assert "sudo nvidia-ctk runtime configure --runtime=docker" in result.stderr


@pytest.mark.usefixtures("engine")
def test_a_plain_run_on_a_spark_prepares_the_default_recipe(machine: Machine) -> None:
    machine.add("nvidia-smi", "#!/bin/sh\necho NVIDIA GB10\n")
    machine.runtimes["nvidia"] = {}
    result = machine.run("--yes")
    assert result.returncode == 0, result.stderr
    assert machine.calls("sparkdeploy") == ["sparkdeploy up --prepare --yes"]
    assert result.stdout.endswith("sparkdeploy up\n")


@pytest.mark.usefixtures("engine")
def test_a_preparation_that_fails_is_not_called_ready(machine: Machine) -> None:
    machine.add("nvidia-smi", "#!/bin/sh\necho NVIDIA GB10\n")
    machine.runtimes["nvidia"] = {}
    machine.tool_ends_with(6)
    result = machine.run()
    assert result.returncode == 6
    assert "Ready" not in result.stdout


WRONG_USAGES = [
    ("--nonsense",),
    ("--rehearse",),
    ("--up", "--yes"),
    ("--tool-only", "--up", "v2"),
    ("--purge",),
]


@pytest.mark.parametrize("arguments", WRONG_USAGES)
def test_wrong_usage_ends_with_2_and_does_nothing(
    machine: Machine, arguments: tuple[str, ...]
) -> None:
    result = machine.run(*arguments)
    assert result.returncode == 2
    assert "--help" in result.stderr
    assert not machine.venv.exists()


def test_help_names_every_mode_and_needs_nothing(machine: Machine) -> None:
    machine.remove("python3")
    result = machine.run("--help")
    assert result.returncode == 0
    for flag in ("--tool-only", "--rehearse", "--up", "--uninstall", "--purge", "--yes"):
        assert flag in result.stdout


def test_root_makes_the_lock_folder_that_all_users_share_for_every_boot(machine: Machine) -> None:
    entry, folder = machine.root / "tmpfiles.d" / "sparkdeploy.conf", machine.root / "lock"
    machine.run("--tool-only")
    made_by_a_user = entry.exists() or folder.exists()
    machine.user_is("root", 0)
    result = machine.run("--tool-only")

    assert not made_by_a_user
    assert result.returncode == 0, result.stderr
    assert entry.read_text() == f"d {folder} 1777 root root -\n"
    assert folder.stat().st_mode & 0o7777 == 0o1777
    machine.run("--uninstall")
    assert not entry.exists()


def test_a_lock_folder_that_is_there_already_is_left_alone(machine: Machine) -> None:
    elsewhere = machine.root / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (machine.root / "lock").symlink_to(elsewhere)
    machine.user_is("root", 0)
    result = machine.run("--tool-only")

    assert result.returncode == 0, result.stderr
    assert elsewhere.stat().st_mode & 0o7777 == 0o700


def test_names_complete_in_the_users_login_shell(machine: Machine) -> None:
    machine.environment["SHELL"] = "/usr/bin/zsh"
    assert machine.run("--tool-only").returncode == 0
    assert machine.calls("sparkdeploy") == ["sparkdeploy completion install zsh"]
    assert machine.run("--uninstall").returncode == 0
    assert machine.calls("sparkdeploy")[1:] == ["sparkdeploy completion remove"]


def test_a_shell_or_a_home_without_completion_is_no_reason_to_fail(machine: Machine) -> None:
    machine.environment["SHELL"] = "/bin/dash"
    assert machine.run("--tool-only").returncode == 0
    assert machine.calls("sparkdeploy") == []
    machine.environment["SHELL"] = "/bin/bash"
    machine.tool_ends_with(4)
    assert machine.run("--tool-only").returncode == 0
    assert machine.calls("sparkdeploy") == ["sparkdeploy completion install bash"]


def test_uninstalling_nothing_is_fine(machine: Machine) -> None:
    result = machine.run("--uninstall")
    assert result.returncode == 0, result.stderr
    assert "No virtual environment" in result.stderr


def test_uninstalling_removes_command_and_link_and_says_what_stays(machine: Machine) -> None:
    machine.run("--tool-only")
    checkpoints = machine.data / "m"
    checkpoints.mkdir(parents=True)
    result = machine.run("--uninstall")
    assert result.returncode == 0, result.stderr
    assert not machine.link.is_symlink()
    assert not machine.venv.exists()
    assert checkpoints.is_dir()
    containers = f"docker ps -aq --filter label={labels.KIND} --filter 'name=^/sparkdeploy-' | "
    for part in (containers, "docker rm", "docker rmi", f"rm -rf {machine.data}\n", "--purge"):
        assert part in result.stdout


def test_purging_touches_only_what_has_our_label_and_a_containers_name(machine: Machine) -> None:
    machine.add("docker", DOCKER_STUB.format(root=machine.root, label=labels.KIND))
    machine.run("--tool-only")
    store = machine.root / "images"
    store.mkdir()
    # name of the file: the image's id; content: parent, number of tags; whose it is
    (store / "base").write_text("- 1\nours\n")
    (store / "engine").write_text("base 1\nours\n")
    (store / "step").write_text("base 0\nforeign\n")
    (store / "foreign").write_text("- 1\nforeign\n")
    result = machine.run("--uninstall", "--purge")
    assert result.returncode == 0, result.stderr
    assert [path.name for path in store.iterdir()] == ["foreign"]
    assert machine.calls("docker") == [f"docker ps {OUR_CONTAINERS}", "docker rm ours-id"]
    assert not machine.venv.parent.exists()


@pytest.mark.parametrize("home", ["tools", None])
def test_purging_removes_what_is_ours_and_leaves_the_users_folder(
    machine: Machine, home: str | None
) -> None:
    machine.add("docker", "#!/bin/sh\n")
    foreign = machine.root / "tools" / "mine"
    foreign.mkdir(parents=True)
    del machine.environment["SPARKDEPLOY_HOME"]
    venv = machine.data / "venv"
    if home is not None:
        machine.environment["SPARKDEPLOY_HOME"] = str(machine.root / home)
        venv = machine.root / home / "venv"
    machine.run("--tool-only")
    assert machine.link.resolve().is_relative_to(venv)
    (machine.data / "m").mkdir(parents=True)
    result = machine.run("--uninstall", "--purge")
    assert result.returncode == 0, result.stderr
    assert not venv.exists()
    assert not machine.data.exists()
    assert not machine.link.is_symlink()
    assert foreign.is_dir()


def test_purging_fails_when_a_foreign_image_needs_ours(machine: Machine) -> None:
    machine.add("docker", DOCKER_STUB.format(root=machine.root, label=labels.KIND))
    store = machine.root / "images"
    store.mkdir()
    (store / "base").write_text("- 1\nours\n")
    (store / "foreign").write_text("base 1\nforeign\n")
    result = machine.run("--uninstall", "--purge")
    assert result.returncode == 1
    assert "could not be removed" in result.stderr
    assert sorted(path.name for path in store.iterdir()) == ["base", "foreign"]


def test_the_registry_is_named_where_the_script_looks_for_it() -> None:
    registries = Path(__file__).parents[3] / "sparkdeploy" / "registries.yaml"
    assert "\ncontainer_registry: " in registries.read_text()


def test_a_relative_lock_folder_is_made_nowhere(machine: Machine) -> None:
    machine.environment["SPARKDEPLOY_LOCK_DIR"] = "relative"
    machine.user_is("root", 0)
    result = machine.run("--tool-only")

    assert result.returncode == 0, result.stderr
    assert not (machine.root / "tmpfiles.d" / "sparkdeploy.conf").exists()
