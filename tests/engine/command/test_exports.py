"""Exports held against the tools they are for: Compose starts one, systemd reads one."""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkdeploy.deploy.serving import ServedDeployment
from sparkdeploy.export.compose_file import compose_text
from sparkdeploy.export.neighbours import (
    grafana_export,
    litellm_export,
    open_webui_export,
    prometheus_export,
    write_export,
)
from sparkdeploy.export.systemd_unit import Unit, quoted, unit_text
from sparkdeploy.node.container import Mount, Ulimit
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import load_settings
from tests.engine.conftest import DEADLINE_S, SpecMaker, model_at, port_of, until
from tests.engine.program import Program

pytestmark = pytest.mark.runs("export")

COMPARED = (
    *("CapAdd", "CapDrop", "IpcMode", "LogConfig", "NetworkMode", "Privileged", "ReadonlyRootfs"),
    *("RestartPolicy", "SecurityOpt", "ShmSize", "Tmpfs", "Ulimits"),
)
UNEXPANDED = "$HOME ${PATH} $$ %h \"quoted\" 'x' \\ # : {{ }}"


@pytest.mark.docker
def test_compose_starts_the_very_container(
    host: DockerHost, make_spec: SpecMaker, tmp_path: Path
) -> None:
    shape = make_spec(text=UNEXPANDED)
    spec = replace(
        shape,
        env={**shape.env, "STRANGE": UNEXPANDED},
        mounts=(Mount(str(tmp_path), "/models/with space"),),
        ulimits=(Ulimit("memlock", 1 << 20),),
    )
    ours = host.inspect(host.create(spec))
    host.remove(ours["Id"])
    file = tmp_path / "compose.yaml"
    file.write_text(compose_text(spec, prepare="true"))
    try:
        compose(file, "up", "-d")
        with model_at(port_of(spec)) as model:
            until(model.is_healthy)
        theirs = host.inspect(spec.name)
        assert health_of(file) == 0
        # The very check, at a port on which nobody listens.
        assert health_of(file, f"{port_of(spec)}", "1") != 0
    finally:
        compose(file, "down", "-t", "1")
    assert {key: theirs["HostConfig"][key] for key in COMPARED} == {
        key: ours["HostConfig"][key] for key in COMPARED
    }
    for key in ("Entrypoint", "Cmd", "User", "StopSignal", "Image"):
        assert theirs["Config"][key] == ours["Config"][key], key
    assert set(theirs["Config"]["Env"]) == set(ours["Config"]["Env"])
    assert ours["Config"]["Labels"].items() <= theirs["Config"]["Labels"].items()
    assert mounts(theirs) == mounts(ours)


def health_of(file: Path, *replaced: str) -> int:
    """Run the file's health check in its container; return what it exits with."""
    service = yaml.safe_load(file.read_text())["services"]["vllm"]
    _, *words = service["healthcheck"]["test"]
    words = [word.replace(*replaced) if replaced else word for word in words]
    command = ["docker", "exec", service["container_name"], *words]
    return subprocess.run(command, capture_output=True, check=False, timeout=DEADLINE_S).returncode


def test_compose_accepts_what_runs_beside(tmp_path: Path) -> None:
    hosts, key_file = load_settings({}).hosts, tmp_path / "it's $KEY"
    served = (ServedDeployment("main", "v2", 8000, ("qwen",), key_file),)
    made = {
        "litellm": litellm_export(served, 4000, hosts, user="1:1", key_file=key_file),
        "open-webui": open_webui_export(served, 3001, hosts, is_public=False),
        "prometheus": prometheus_export(served, "0:0", hosts),
        "grafana": grafana_export("0:0", hosts),
    }
    for name, export in made.items():
        write_export(export, tmp_path / name)
    others = [word for name in made for word in ("-f", f"{tmp_path}/{name}/compose.yaml")]
    told = yaml.safe_load(compose(tmp_path / "litellm/compose.yaml", *others, "config"))
    assert set(told["services"]) == {*made, "node-exporter"}
    for name in ("litellm", "open-webui", "prometheus"):
        mounts = [item for item in told["services"][name]["volumes"] if isinstance(item, dict)]
        assert str(key_file) in [item["source"].replace("$$", "$") for item in mounts], name


def test_compose_accepts_a_container_with_gpus(make_spec: SpecMaker, tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(compose_text(replace(make_spec(), gpus="all"), prepare="true"))
    assert "capabilities" in compose(file, "config")


def hostile_words(count: int) -> list[str]:
    """Words of what means something to a shell, to YAML, to Compose or to systemd."""
    chosen = random.Random(7)
    letters = "$${}%%\\\"'`;:#&*!|>,[]-+._ \t\n\r\x1b\u2028\u202e\u00e9\U0001f60001eEoOxXhn"
    made = ["".join(chosen.choices(letters, k=chosen.randint(1, 30))) for _ in range(count)]
    return [*made, "1e3", "0o17", "017", "yes", "~", "null", ".inf", "2001-01-01", "${HOME}", "%h"]


def test_compose_hands_on_every_word(make_spec: SpecMaker, tmp_path: Path) -> None:
    words = hostile_words(300)
    env = {f"V{number}": word for number, word in enumerate(words)}
    spec = replace(make_spec(), command=tuple(words), env=env)
    file = tmp_path / "compose.yaml"
    file.write_text(compose_text(spec, prepare="true"))
    service = yaml.safe_load(compose(file, "config"))["services"]["vllm"]
    # What `config` prints is a Compose file again: a `$` is doubled in it.
    assert [word.replace("$$", "$") for word in service["command"]] == words
    assert {name: text.replace("$$", "$") for name, text in service["environment"].items()} == env


def test_systemd_reads_every_word_as_it_was(tmp_path: Path) -> None:
    """Its tmpfiles program unquotes and expands as it does for a unit, but for escaped bytes."""
    words = [word for word in hostile_words(300) if word.isprintable()]
    paths = [f"{tmp_path}/made/w{word}" for word in dict.fromkeys(words)]
    lines = [f"f {quoted(path)} 0600 - - -" for path in paths]
    (tmp_path / "made").mkdir()
    (tmp_path / "words.conf").write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        ["systemd-tmpfiles", "--create", str(tmp_path / "words.conf")],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert {str(path) for path in (tmp_path / "made").iterdir()} == set(paths), done.stderr


def test_systemd_finds_no_fault_with_hostile_words(tmp_path: Path) -> None:
    words = hostile_words(300)
    unit = tmp_path / "sparkdeploy-words.service"
    made = Unit(
        name="sparkdeploy-words.service",
        subject="deployment words",
        up=("/bin/true", *words),
        stop=("/bin/true",),
        user="root",
        env={f"V{number}": word for number, word in enumerate(words)},
        startup_timeout_s=60,
    )
    unit.write_text(unit_text(made))
    assert verified(unit) == []


def test_systemd_finds_no_fault_with_a_unit(tmp_path: Path) -> None:
    strange = f"title={json.dumps(UNEXPANDED)}"
    done = Program(tmp_path).run("export", "systemd", "v2", "--name", "second", "--set", strange)
    assert done.returncode == 0, done.stderr
    unit = tmp_path / "sparkdeploy-second.service"
    unit.write_text(done.stdout)
    assert verified(unit) == []
    unit.write_text(done.stdout.replace("Restart=on-failure", "Restart=whenever"))
    assert verified(unit), "a fault that is there is found"


def test_systemd_finds_no_fault_with_the_unit_of_a_gateway(tmp_path: Path) -> None:
    stack = tmp_path / "a b%h.yaml"
    stack.write_text("schema: 1\nname: home\nmodels: [{name: a, recipe: v2}]\n")
    done = Program(tmp_path).run("export", "systemd", str(stack))
    assert done.returncode == 0, done.stderr
    unit = tmp_path / "sparkdeploy_gateway-home.service"
    unit.write_text(done.stdout)
    assert verified(unit) == []
    unit.write_text(done.stdout.replace("Type=exec", "Type=whatever"))
    assert verified(unit), "a fault that is there is found"


def compose(file: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["docker-compose", "-p", file.parent.name.lower(), "-f", str(file), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def verified(unit: Path) -> list[str]:
    """Return what systemd says about the unit; about this machine's others it says more."""
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return [line for line in done.stderr.splitlines() if unit.name in line]


def mounts(record: dict[str, Any]) -> list[tuple[str, str, bool]]:
    return sorted((item["Source"], item["Destination"], item["RW"]) for item in record["Mounts"])
