"""Units and Compose files: reviewed ones, and that no value can be more than a value."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkdeploy.deploy import request
from sparkdeploy.deploy.request import Request
from sparkdeploy.errors import UsageError
from sparkdeploy.export.compose_file import compose_text
from sparkdeploy.export.deployment import export_compose, export_socket, export_systemd
from sparkdeploy.export.systemd_unit import (
    MAX_STARTS,
    PROXY,
    UNLESS_IT_ENDED,
    Unit,
    proxy_text,
    server_port,
    socket_text,
    unit_text,
)
from sparkdeploy.plan.container import Deployment
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.server.phases import save_durations
from sparkdeploy.settings import load_settings
from tests.examples import examples
from tests.fakes.machines import build
from tests.fakes.plans import spec_of
from tests.unit.conftest import SHIPPED
from tests.unit.export.systemd_reader import command_of, plain_of, settings_of, words_of
from tests.unit.golden import assert_golden
from tests.unit.program import Run

V2 = spec_of(load_recipe(SHIPPED, "v2"))
# What an argument of a process can be: anything but NUL.
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def is_variable(text: str) -> bool:
    """Say whether systemd takes a text as a variable's value: it knows no noncharacters."""
    return not any(unicodedata.category(letter) == "Cn" for letter in text)


UNIT = Unit(
    name="sparkdeploy-main.service",
    subject="deployment main",
    up=("/opt/sparkdeploy/bin/python", "-P", "-m", "sparkdeploy", "up", "v2", "--yes"),
    stop=("/opt/sparkdeploy/bin/python", "-P", "-m", "sparkdeploy", "stop", "main"),
    user="ada",
    env={"HF_HOME": "/data/hf 100%"},
    startup_timeout_s=1800,
    needed=("/data/hf 100%", "/home/ada"),
)


def test_the_unit_of_a_deployment(request: pytest.FixtureRequest) -> None:
    assert_golden(request, "v2/sparkdeploy-main.service", unit_text(UNIT))


def test_the_compose_file_of_a_public_deployment(
    request: pytest.FixtureRequest, shipped: Library
) -> None:
    spec = spec_of(load_recipe(shipped, "v2"), is_public=True)
    text = compose_text(spec, prepare="sparkdeploy up v2 --public --prepare")
    assert_golden(request, "v2/compose.yaml", text)


def test_a_storm_ends_although_every_try_takes_its_time() -> None:
    keys = dict(line.split("=", 1) for line in unit_text(UNIT).splitlines() if "=" in line)
    assert int(keys["StartLimitBurst"]) == MAX_STARTS
    tries_s = MAX_STARTS * (UNIT.startup_timeout_s + int(keys["RestartSec"]))
    assert int(keys["StartLimitIntervalSec"]) > tries_s


def test_the_first_connection_starts_a_proxy_and_the_proxy_the_server() -> None:
    socket = dict(settings_of(socket_text("main", "127.0.0.1", 8000).encode()))
    assert socket["ListenStream"] == b"127.0.0.1:8000"
    assert socket["Service"] == b"sparkdeploy-main-proxy.service"
    assert socket["WantedBy"] == b"sockets.target"
    proxy = dict(settings_of(proxy_text("main", 18000).encode()))
    assert proxy["BindsTo"] == b"sparkdeploy-main.service"
    assert proxy["After"].split() == [b"sparkdeploy-main.service", b"sparkdeploy-main.socket"]
    assert proxy["Requires"] == b"sparkdeploy-main.socket"
    assert proxy["Type"] == b"exec"
    assert proxy["ExecStart"] == f"{PROXY} 127.0.0.1:18000".encode()
    confined = ("DynamicUser", "PrivateTmp", "NoNewPrivileges")
    assert [proxy[name] for name in confined] == [b"yes"] * 3


def test_no_wake_is_one_too_many() -> None:
    """systemd counts a start that was asked for as it counts one that failed."""
    text = unit_text(replace(UNIT, is_woken=True))
    assert "StartLimitIntervalSec=0\n" in text
    assert "Restart=no\n" in text
    assert "StartLimitBurst" not in text
    assert "FlushPending=yes\n" in socket_text("main", "127.0.0.1", 8000)


@example(55_535)
@example(55_536)
@example(65_535)
@given(st.integers(1024, 65_535))
def test_the_server_s_port_is_another_that_can_be_listened_on(port: int) -> None:
    assert 1024 <= server_port(port) <= 65_535
    assert server_port(port) != port


def test_clients_keep_the_port_and_the_server_gets_another() -> None:
    settings = load_settings()
    request = Request("v2", ("serve.port=8123", "limits.idle_stop_s=1800"))
    found = export_socket(request, settings, {})
    texts = {file.path: file.text for file in found.files}
    assert "ListenStream=127.0.0.1:8123\n" in texts["sparkdeploy-main.socket"]
    assert f"{PROXY} 127.0.0.1:18123\n" in texts["sparkdeploy-main-proxy.service"]
    assert '"serve.port=18123"' in texts["sparkdeploy-main.service"]
    assert "8123=" not in texts["sparkdeploy-main.service"]
    wait, stops = found.notes
    assert stops == "it stops after 30m00s without a request"
    assert "finds it stopped: not known here" in wait
    save_durations(settings.state_dir, f"sparkdeploy/plugin:{'a' * 16} v2", {"weights": 42.0})
    assert "finds it stopped: about 42.0s" in export_socket(request, settings, {}).notes[0]


# Whatever a process can be given: bytes without NUL, as Python holds those that are no UTF-8.
arguments = st.one_of(
    st.text(st.sampled_from("%$\\\"'; \n\t\r#hn0x\x1b\x85\u202e{}[]=-~@é")),
    words,
    st.binary().map(lambda raw: os.fsdecode(raw.replace(b"\0", b""))),
)
folders = st.text(st.sampled_from("%$\\\"' #;a/.é=")).map(lambda name: f"/{name.strip()}x")


def read_by_systemd(unit: Unit) -> tuple[list[list[str]], dict[str, str], list[str]]:
    """Commands, environment and names of all settings, as systemd reads them."""
    found = settings_of(unit_text(unit).encode())
    (up,) = [value for name, value in found if name == "ExecStart"]
    (stop,) = [value for name, value in found if name == "ExecStop"]
    # `-`: what it exits with is no failure of the unit.
    assert stop.startswith(b'"-/')
    commands = [command_of(up), command_of(stop.replace(b"-", b"", 1))]
    pairs = [words_of(value) for name, value in found if name == "Environment"]
    assert all(len(pair) == 1 for pair in pairs)
    env = dict(os.fsdecode(pair[0]).split("=", 1) for pair in pairs)
    assert dict(found)["WorkingDirectory"] == b"/"
    assert os.fsdecode(plain_of(dict(found)["User"])) == unit.user
    return [[os.fsdecode(word) for word in argv] for argv in commands], env, [n for n, _ in found]


PLAIN_NAMES = [name for name in read_by_systemd(UNIT)[2] if name != "Environment"]


@settings(max_examples=examples(300))
@given(
    st.lists(arguments),
    st.dictionaries(st.from_regex(r"[A-Z_]+", fullmatch=True), words.filter(is_variable)),
)
def test_systemd_reads_back_the_very_command(argv: list[str], env: dict[str, str]) -> None:
    unit = replace(UNIT, up=["/opt/x %h/python", *argv], stop=["/x", *argv], env=env)
    commands, variables, names = read_by_systemd(unit)
    assert commands == [unit.up, [*UNLESS_IT_ENDED, *unit.stop]]
    assert variables == env
    assert [name for name in names if name != "Environment"] == PLAIN_NAMES


@given(st.lists(folders))
def test_systemd_reads_back_every_folder_that_is_needed(needed: list[str]) -> None:
    """Its words have quotes there, and no escapes for bytes."""
    printable = [path for path in needed if path.isprintable()]
    found = settings_of(unit_text(replace(UNIT, needed=needed)).encode())
    lines = [value for name, value in found if name == "RequiresMountsFor"]
    assert len(lines) == bool(printable)
    assert [os.fsdecode(word) for line in lines for word in words_of(line)] == printable


@pytest.mark.parametrize("word", ["main", "$HOME", "a b", "'", '"', "*"])
def test_only_what_still_runs_is_stopped(word: str) -> None:
    """systemd runs ExecStop= also when the program ended by itself: MAINPID is not set then."""
    argv = read_by_systemd(replace(UNIT, stop=["/bin/echo", "stop", word]))[0][1]

    def said(env: dict[str, str]) -> str:
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout

    assert said({"MAINPID": "4711"}) == f"stop {word}\n"
    assert said({}) == ""


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"env": {"HF_HOME": "/data/\udcff"}}, "HF_HOME is"),
        ({"env": {"HF_HOME": "/data/\uffff"}}, "HF_HOME is"),
        ({"up": ["/home/$USER/python"]}, "would expand the \\$"),
        ({"up": ["/bin/x", "y" * 2**20]}, "longer than the 1 MiB"),
    ],
)
def test_what_systemd_would_read_otherwise_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        unit_text(replace(UNIT, **more))


def test_a_unit_runs_as_who_made_it_whatever_a_variable_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOGNAME", "root\nExecStartPre=/bin/evil")
    request = Request("v2", (), Deployment("second", is_public=True))
    text = export_systemd(request, load_settings(), {})
    assert "evil" not in text
    assert f"User={pwd.getpwuid(os.getuid()).pw_name}\n" in text


def test_a_unit_waits_for_the_disks_of_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link counts with what it leads to; a model's folder may not be there yet."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "hub").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    recipe = tmp_path / "own recipes" / "mine.yaml"
    recipe.parent.mkdir()
    recipe.write_text("schema: 1\nname: mine\ntitle: t\nextends: v2\n")
    model = f"model.path={tmp_path}/late/model"
    text = export_systemd(Request(str(recipe), (model,)), load_settings(), {})
    (line,) = (it for it in text.splitlines() if it.startswith("RequiresMountsFor="))
    for path in (tmp_path / "hub", tmp_path / "disk", recipe, tmp_path / "late" / "model"):
        assert f'"{path}"' in line
    assert f'"{load_settings().state_dir}"' in line
    # Exit codes 3, 4 and 6 are those of a disk or a network that is late.
    assert "RestartPreventExitStatus=2 5 86\n" in text


def read_by_compose(value: Any) -> Any:
    """Undo Compose's own doubling of `$`; a single one would be a variable."""
    if isinstance(value, str):
        assert "$" not in value.replace("$$", "")
        return value.replace("$$", "$")
    if isinstance(value, dict):
        return {key: read_by_compose(item) for key, item in value.items()}
    return [read_by_compose(item) for item in value] if isinstance(value, list) else value


# Plain scalars that YAML 1.2 (its core schema, and the older forms Compose's reader still takes)
# reads as no text.
NO_TEXT_IN_COMPOSE = re.compile(
    r"[-+]?(?:0o[0-7_]+|0x[0-9a-f_]+|0b[01_]+|(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)"
    r"(?:e[-+]?[0-9]+)?|\.inf)|\.nan|~|null|true|false|yes|no|on|off|y|n|"
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*|",
    re.IGNORECASE,
)


def plain_scalars(text: str) -> list[str]:
    """Values in the file that are neither quoted nor a number of ours."""
    return [
        event.value
        for event in yaml.parse(text, yaml.SafeLoader)
        if isinstance(event, yaml.ScalarEvent) and not event.style
    ]


# Ten words and more in each of the examples: writing YAML takes its time.
@given(
    st.one_of(words, st.from_regex(NO_TEXT_IN_COMPOSE, fullmatch=True)),
    st.lists(st.one_of(words, st.from_regex(NO_TEXT_IN_COMPOSE, fullmatch=True)), min_size=10),
    words,
)
@example("1e3", ["0o17", "12E-3", "017", ".5e1", "-.Inf", "1_000", "~", "NO"], "")
def test_compose_reads_back_the_very_container(
    secret: str, command: list[str], prepare: str
) -> None:
    spec = replace(V2, command=tuple(command), env={"A": secret}, labels={"dev.x": secret})
    text = compose_text(spec, prepare=prepare)
    content = yaml.safe_load(text)
    assert list(content) == ["services"]
    assert list(content["services"]) == ["vllm"]
    service = read_by_compose(content["services"]["vllm"])
    assert service["command"] == command
    assert service["environment"] == {"A": secret}
    assert service["labels"] == {"dev.x": secret}
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service
    assert {item for item in plain_scalars(text) if NO_TEXT_IN_COMPOSE.fullmatch(item)} <= {
        "true",
        "false",
        str(V2.shm_size_bytes),
        *(str(item.value) for item in V2.ulimits),
    }


def test_compose_is_given_no_text_that_it_cannot_hold() -> None:
    with pytest.raises(UsageError, match="not UTF-8"):
        compose_text(replace(V2, command=("/models/\udcff",)), prepare="")


def test_a_recipe_file_is_named_so_that_systemd_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text("schema: 1\nname: mine\ntitle: t\nextends: v2\n")
    monkeypatch.chdir(tmp_path)
    deployment = Deployment("second", is_public=True)
    request = Request("./mine.yaml", ("serve.port=8001",), deployment)
    secrets = {"HF_TOKEN": "hf_planted", "https_proxy": "http://u:planted@p:1", "HF_HOME": "/data"}
    text = export_systemd(request, load_settings(), secrets)
    assert f'"up" "{tmp_path}/mine.yaml" "--set" "serve.port=8001" "--name" "second"' in text
    assert '"--public" "--yes"' in text
    assert 'Environment="HF_HOME=/data"' in text
    assert "planted" not in text


@pytest.mark.parametrize(
    "typed",
    ["serve.env.A=hush", " serve.env.A=hush", "serve.env={A: hush}", "serve={env: {A: hush}}"],
)
@pytest.mark.parametrize("export", [export_systemd, export_socket])
def test_no_variable_stands_in_a_unit_where_everybody_reads_it(
    export: Callable[..., object], typed: str
) -> None:
    with pytest.raises(UsageError, match=r"--set serve\S* cannot be exported") as caught:
        export(Request("v2", (typed, "serve.port=8001")), load_settings(), {})
    assert "hush" not in f"{caught.value.message}{caught.value.hint}"
    assert "mode 0600" in (caught.value.hint or "")
    told = export(Request("v2", ("serve={max_num_seqs: 1}",)), load_settings(), {})
    assert "serve={max_num_seqs: 1}" in str(told)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            "serve.env={A: hush, NCCL_DEBUG: WARN, B: x}",
            "warning: the file has the values of A and NCCL_DEBUG and B: keep it at mode 0600\n",
        ),
        ("limits.stall_s=99", ""),
    ],
)
def test_who_gets_a_file_with_values_is_told_to_keep_it(
    monkeypatch: pytest.MonkeyPatch,
    shipped: Library,
    capsys: pytest.CaptureFixture[str],
    typed: str,
    said: str,
) -> None:
    monkeypatch.setattr(request, "draft_plan", build(monkeypatch, shipped, 1).draft)
    text = export_compose(Request("v2", (typed, "allow_unsafe=true")), load_settings())
    assert ("hush" in text) == bool(said)
    assert capsys.readouterr().err == said


def test_what_is_not_here_yet_is_exported_with_what_is_not_known(
    run: Run, no_docker: None, tmp_path: Path
) -> None:
    done = run("export", "compose", "v2", "-o", str(tmp_path))
    assert done.returncode == 0
    assert "the file is not complete" in done.stderr
    text = (tmp_path / "compose.yaml").read_text()
    assert "# NOT COMPLETE: what stands in <...>" in text
    assert "<fingerprint>" in text
