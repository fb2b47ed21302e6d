"""install.sh on machines made of stubs: what it brings, what it calls, what it leaves."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.unit.install.conftest import Machine

pytestmark = pytest.mark.outside

NO_PYTHON_FOR_US = "#!/bin/sh\nexit 1\n"
"""Too old, or without the module venv."""
INSTALL_PYTHON = "sudo apt-get update && sudo apt-get install -y python3 python3-venv"


def test_a_user_without_python_is_told_the_command_and_nothing_is_called(machine: Machine) -> None:
    machine.add("python3", NO_PYTHON_FOR_US)
    result = machine.run("--tool-only")
    assert result.returncode == 4
    assert INSTALL_PYTHON in result.stderr
    assert not machine.calls("sudo") + machine.calls("apt-get")
    assert not machine.venv.exists()


def test_root_gets_python_after_the_lists_are_updated(machine: Machine) -> None:
    machine.add("python3", NO_PYTHON_FOR_US)
    machine.user_is("root", 0)
    result = machine.run("--tool-only")
    assert [call.split()[-1] for call in machine.calls("apt-get")] == ["update", "python3-venv"]
    assert result.returncode == 4, "the stub installs nothing, so it is still missing"
    assert not machine.calls("sudo")


def test_yes_lets_sudo_install_python(machine: Machine) -> None:
    machine.add("python3", NO_PYTHON_FOR_US)
    machine.run("--tool-only", "--yes")
    assert machine.calls("sudo")[-1].endswith("--no-install-recommends python3 python3-venv")


def test_a_package_that_cannot_be_installed_ends_with_what_apt_said(machine: Machine) -> None:
    machine.user_is("root", 0)
    machine.add("python3", NO_PYTHON_FOR_US)
    machine.add("apt-get", "#!/bin/sh\necho no such mirror\nexit 100\n")
    result = machine.run()
    assert result.returncode == 1
    assert "no such mirror" in result.stderr


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ((), ""),
        (("--rehearse", "v2"), " --rehearsal"),
        (("--up", "v2"), ""),
        (("--tool-only",), None),
    ],
)
def test_what_comes_after_python_is_for_setup_to_say(
    machine: Machine, mode: tuple[str, ...], options: str | None
) -> None:
    machine.setup_ends_with(4)
    result = machine.run(*mode)
    assert machine.calls("setup") == ([] if options is None else [f"setup setup{options}"])
    assert result.returncode == (0 if options is None else 4)
    assert not machine.calls("sparkdeploy")
    assert not machine.calls("sudo")


def test_root_lets_setup_install_without_a_question(machine: Machine) -> None:
    machine.user_is("root", 0)
    assert machine.run().returncode == 0
    assert machine.calls("setup") == ["setup setup --yes"]


def test_yes_lets_sudo_set_up_what_is_missing_and_looks_again(machine: Machine) -> None:
    machine.setup_ends_with(4)
    result = machine.run("--rehearse", "v2", "--yes")
    tool = machine.venv / "bin" / "sparkdeploy"
    assert machine.calls("sudo") == [f"sudo -- {tool} setup --rehearsal --yes"]
    assert machine.calls("setup") == ["setup setup --rehearsal"] * 2
    assert result.returncode == 4, "the stub installs nothing, so it is still missing"


def test_a_failed_setup_passes_its_exit_code_on(machine: Machine) -> None:
    machine.setup_ends_with(1)
    assert machine.run("--yes").returncode == 1
    assert not machine.calls("sudo")


def test_a_python_that_is_named_goes_before_all_others(machine: Machine) -> None:
    machine.add("mine", (machine.commands / "python3").read_text().replace("venv $*", "mine $*"))
    machine.environment["SPARKDEPLOY_PYTHON"] = "mine"
    assert machine.run("--tool-only").returncode == 0
    assert len(machine.calls("mine")) == 1
    machine.add("mine", NO_PYTHON_FOR_US)
    (machine.checkout / "sparkdeploy" / "module.py").write_text("changed")
    assert machine.run("--tool-only").returncode == 0


def test_tool_only_needs_no_docker(machine: Machine) -> None:
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


@pytest.mark.parametrize("exit_code", [0, 4, 7])
@pytest.mark.parametrize("mode", ["rehearse", "up"])
def test_the_exit_code_of_the_command_passes_through(
    machine: Machine, mode: str, exit_code: int
) -> None:
    machine.tool_ends_with(exit_code)
    result = machine.run(f"--{mode}", "mtp-1")
    assert result.returncode == exit_code, result.stderr
    assert machine.calls("sparkdeploy") == [f"sparkdeploy {mode} mtp-1"]


def test_a_plain_run_without_a_spark_prepares_nothing(machine: Machine) -> None:
    machine.add_recording("nvidia-smi", "exit 9")
    result = machine.run()
    assert result.returncode == 0, result.stderr
    assert machine.calls("sparkdeploy") == []
    assert "sparkdeploy rehearse v2" in result.stdout


def test_a_plain_run_on_a_spark_prepares_the_default_recipe(machine: Machine) -> None:
    machine.add("nvidia-smi", "#!/bin/sh\necho NVIDIA GB10\n")
    result = machine.run("--yes")
    assert result.returncode == 0, result.stderr
    assert machine.calls("sparkdeploy") == ["sparkdeploy up --prepare --yes"]
    assert result.stdout.endswith("sparkdeploy up\n")


def test_a_preparation_that_fails_is_not_called_ready(machine: Machine) -> None:
    machine.add("nvidia-smi", "#!/bin/sh\necho NVIDIA GB10\n")
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


COMPLETIONS = {
    "bash": ".local/share/bash-completion/completions/sparkdeploy",
    "zsh": ".local/share/zsh/site-functions/_sparkdeploy",
    "fish": ".config/fish/completions/sparkdeploy.fish",
}


@pytest.mark.parametrize("shell", COMPLETIONS)
def test_names_complete_in_the_users_login_shell(machine: Machine, shell: str) -> None:
    machine.environment["SHELL"] = f"/usr/bin/{shell}"
    script = machine.root / COMPLETIONS[shell]
    assert machine.run("--tool-only").returncode == 0
    assert script.read_text() == f"#source_{shell}\n"
    assert machine.run("--uninstall").returncode == 0
    assert not script.exists()


def test_a_shell_or_a_home_without_completion_is_no_reason_to_fail(machine: Machine) -> None:
    machine.environment["SHELL"] = "/bin/dash"
    assert machine.run("--tool-only").returncode == 0
    machine.environment["SHELL"] = "/bin/bash"
    machine.tool_ends_with(4)
    assert machine.run("--tool-only").returncode == 0
    assert not (machine.root / COMPLETIONS["bash"]).exists()


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
    for part in (f"checkpoints ({machine.data})", "--uninstall --purge"):
        assert part in result.stderr


PURGE = "checkout sparkdeploy.uninstall --yes"


@pytest.mark.parametrize("home", ["tools", None])
def test_purging_is_the_work_of_this_checkouts_program(machine: Machine, home: str | None) -> None:
    foreign = machine.root / "tools" / "mine"
    foreign.mkdir(parents=True)
    del machine.environment["SPARKDEPLOY_HOME"]
    venv = machine.data / "venv"
    if home is not None:
        machine.environment["SPARKDEPLOY_HOME"] = str(machine.root / home)
        venv = machine.root / home / "venv"
    machine.run("--tool-only")
    assert machine.link.resolve().is_relative_to(venv)
    result = machine.run("--uninstall", "--purge")
    assert result.returncode == 0, result.stderr
    assert machine.calls("checkout") == [PURGE]
    assert not venv.exists()
    assert not machine.data.exists()
    assert not machine.link.is_symlink()
    assert foreign.is_dir()


def test_purging_where_nothing_is_installed_installs_it_first(machine: Machine) -> None:
    result = machine.run("--uninstall", "--purge")
    assert result.returncode == 0, result.stderr
    assert machine.calls("checkout") == [PURGE]
    assert not machine.venv.exists()


def test_an_older_place_of_root_gives_way_to_one_that_all_users_can_read(machine: Machine) -> None:
    older = machine.data / "venv"
    machine.environment["SPARKDEPLOY_HOME"] = str(older.parent)
    machine.user_is("root", 0)
    machine.run("--tool-only")
    assert machine.link.resolve().is_relative_to(older)
    del machine.environment["SPARKDEPLOY_HOME"]
    removed = machine.run("--uninstall")
    assert removed.returncode == 0, removed.stderr
    assert not older.exists()
    assert not machine.link.is_symlink()
    shutil.copytree(machine.root / "commands", older / "bin")
    assert machine.run("--tool-only").returncode == 0
    venv = machine.root / "opt" / "sparkdeploy" / "venv"
    assert machine.link.resolve() == venv / "bin" / "sparkdeploy"
    # Units of systemd that were exported before name it.
    assert older.is_symlink()
    assert older.resolve() == venv
    again = machine.run("--tool-only")
    assert "Removed" not in again.stderr
    assert older.resolve() == venv
    assert machine.run("--uninstall").returncode == 0
    assert not older.is_symlink()
    assert not older.parent.exists()
    assert not venv.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user as well")
@pytest.mark.parametrize("mode", ["--tool-only", "--uninstall"])
def test_what_a_user_has_installed_stays_when_root_has_that_users_home(
    machine: Machine, mode: str
) -> None:
    theirs = machine.data / "venv"
    theirs.mkdir(parents=True)
    os.chown(theirs, 65534, 65534)
    machine.user_is("root", 0)
    del machine.environment["SPARKDEPLOY_HOME"]
    assert machine.run(mode).returncode == 0
    assert theirs.is_dir()
    assert not theirs.is_symlink()
