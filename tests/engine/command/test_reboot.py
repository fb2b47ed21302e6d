"""`export systemd` on a machine that boots: a real systemd, its own Docker Engine, the stand-in."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sparkdeploy.node.host import DockerHost
from tests.engine.booted_machine import BootedMachine
from tests.engine.conftest import model_at, until
from tests.engine.stand_in.booted import user_of_a_booted_machine
from tests.engine.stand_in.engine import RECIPE, StandInEngine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.in_order,
    pytest.mark.runs("export", "up", "stop", "start", "restart", "status", "doctor"),
]

UNIT = "sparkdeploy-main.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
BETWEEN_STARTS_S = 60
LOOKS_S = 6
"""Long enough for the unit to see what became of its deployment."""
DIES = "--die-after-s 0 --crash-log crashes/cuda_oom --exit-code 1"


@dataclass(frozen=True)
class Owner:
    """Someone with the stand-in's recipe, on a machine that boots."""

    machine: BootedMachine
    user: StandInEngine

    def sparkdeploy(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the program there."""
        return self.machine.run(sys.executable, "-m", "sparkdeploy", *words, env=self.user.env)

    def systemctl(self, *words: str) -> None:
        """Run systemctl there; it succeeds."""
        done = self.machine.run("systemctl", *words)
        assert done.returncode == 0, done.stderr + self.journal()

    def journal(self) -> str:
        """What the unit has said since the machine was booted."""
        return self.machine.run("journalctl", "--no-pager", "--boot", f"--unit={UNIT}").stdout

    def change(self, behaviour: str) -> None:
        """Let the recipe's server behave otherwise from its next start on."""
        recipe = self.user.root / "config/recipes/standin.yaml"
        text = RECIPE.format(model=self.user.root / "model", port=self.user.port)
        # `serve: {port: 1}` becomes `serve: {port: 1, env: {...}}`.
        port = f"port: {self.user.port}"
        recipe.write_text(text.replace(port, f'{port}, env: {{STAND_IN: "{behaviour}"}}'))

    def text(self) -> str:
        """What it answers, once it does."""
        with self.machine.network(), model_at(self.user.port) as model:
            until(model.is_healthy)
            return model.complete("x", 1).text

    def state(self) -> tuple[str, str]:
        """The unit's state, and with which result."""
        return self.machine.show(UNIT, "ActiveState"), self.machine.show(UNIT, "Result")

    def containers(self, *options: str) -> str:
        """The ids of those that run; with `--all` also of others."""
        return self.machine.run("docker", "ps", "--quiet", *options).stdout

    def starts(self) -> int:
        """How often systemd has run `up` since then."""
        return self.journal().count(f"Starting {UNIT}")


@pytest.fixture(scope="module")
def owner(
    host: DockerHost, python_base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Owner]:
    """A machine with the unit, installed as the program says, and not started."""
    root = tmp_path_factory.mktemp("reboot")
    with user_of_a_booted_machine(host, python_base_image, root) as (machine, user):
        made = Owner(machine, user)
        told = made.sparkdeploy("export", "systemd", "standin")
        assert f"sudo tee {UNIT_FILE}" in told.stderr
        (machine.folder / UNIT_FILE.lstrip("/")).write_text(told.stdout)
        made.systemctl("daemon-reload")
        made.systemctl("enable", UNIT)
        yield made


def test_the_unit_is_there_and_nothing_was_started(owner: Owner) -> None:
    assert owner.machine.run("systemctl", "is-enabled", UNIT).stdout == "enabled\n"
    assert owner.state() == ("inactive", "success")
    assert owner.containers("--all") == ""


def test_a_boot_serves_what_the_recipe_says(owner: Owner) -> None:
    owner.change("--text one")
    owner.machine.reboot()
    assert owner.text() == "one"
    until(lambda: owner.state() == ("active", "success"))
    found = owner.sparkdeploy("doctor", "--json").stdout
    assert "every deployment has a systemd unit" in found


def test_a_reboot_serves_again_from_the_same_container(owner: Owner) -> None:
    before = owner.containers()
    owner.machine.reboot()
    assert owner.text() == "one"
    until(lambda: owner.state() == ("active", "success"))
    assert owner.containers() == before != ""
    assert owner.containers("--all") == before


def test_what_is_stopped_stays_stopped_until_the_next_boot(owner: Owner) -> None:
    before = owner.containers()
    owner.systemctl("stop", UNIT)
    assert owner.state() == ("inactive", "success")
    assert (owner.containers(), owner.containers("--all")) == ("", before)
    (row,) = json.loads(owner.sparkdeploy("status", "--json").stdout)
    assert (row["state"], row["given_up"]) == ("stopped", "")
    owner.machine.reboot()
    assert owner.text() == "one"


def test_what_is_started_again_by_hand_goes_on(owner: Owner) -> None:
    before = owner.containers()
    restarted = owner.sparkdeploy("restart", "main")
    assert restarted.returncode == 0, restarted.stderr
    time.sleep(LOOKS_S)
    assert owner.state() == ("active", "success"), owner.journal()
    assert owner.containers() == before != ""
    owner.sparkdeploy("stop", "main")
    time.sleep(LOOKS_S)
    assert owner.state() == ("inactive", "success")
    started = owner.sparkdeploy("start", "main")
    assert started.returncode == 0, started.stderr
    time.sleep(LOOKS_S)
    assert owner.containers() == before
    owner.systemctl("start", UNIT)
    assert owner.state() == ("active", "success")


@pytest.mark.timeout(900)
def test_three_starts_that_fail_end_it_and_status_says_why(owner: Owner) -> None:
    owner.change(DIES)
    owner.machine.reboot()
    until(lambda: owner.state()[0] == "failed", timeout_s=600)
    assert owner.starts() == 3
    time.sleep(1.5 * BETWEEN_STARTS_S)
    assert owner.state()[0] == "failed"
    assert owner.starts() == 3
    said = owner.sparkdeploy("status").stdout
    print(said)
    assert "systemd has given it up, last because: " in said
    assert "CUDA out of memory" in said


def test_a_mended_recipe_starts_once_systemd_forgets_the_failures(owner: Owner) -> None:
    owner.change("--text mended")
    owner.systemctl("reset-failed", UNIT)
    owner.systemctl("start", UNIT)
    assert owner.text() == "mended"
