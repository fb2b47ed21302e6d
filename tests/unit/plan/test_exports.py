"""Units and Compose files: reviewed ones, and that no value can be more than a value."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.apply.planning import make_request
from sparkdeploy.plan.compose_file import compose_text
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.plan.systemd_unit import MAX_STARTS, Unit, command_line, quoted, unit_text
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.settings import load_settings
from tests.unit.conftest import REPOSITORY
from tests.unit.golden import assert_golden
from tests.unit.plan.test_launch import spec_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

V2 = spec_of(load_recipe(Library((REPOSITORY / "recipes",)), "v2"))
# What an argument of a process can be: anything but NUL.
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
UNIT = Unit(
    deployment="main",
    up=("/opt/sparkdeploy/bin/python", "-m", "sparkdeploy", "up", "v2", "--yes"),
    down=("/opt/sparkdeploy/bin/python", "-m", "sparkdeploy", "down", "main"),
    user="ada",
    folder="/home/ada",
    env={"HF_HOME": "/data/hf 100%"},
    startup_timeout_s=1800,
)


def test_the_unit_of_a_deployment(request: pytest.FixtureRequest) -> None:
    assert_golden(request, "v2/sparkdeploy-main.service", unit_text(UNIT))


def test_the_compose_file_of_a_public_deployment(
    request: pytest.FixtureRequest, shipped: Library
) -> None:
    spec = spec_of(load_recipe(shipped, "v2"), Exposure.PUBLIC)
    text = compose_text(spec, prepare="sparkdeploy up v2 --public --prepare")
    assert_golden(request, "v2/compose.yaml", text)


def test_a_storm_ends_although_every_try_takes_its_time() -> None:
    keys = dict(line.split("=", 1) for line in unit_text(UNIT).splitlines() if "=" in line)
    assert int(keys["StartLimitBurst"]) == MAX_STARTS
    tries_s = MAX_STARTS * (UNIT.startup_timeout_s + int(keys["RestartSec"]))
    assert int(keys["StartLimitIntervalSec"]) > tries_s


def read_by_systemd(line: str) -> list[str]:
    """Read a command as systemd.syntax says: quotes, C escapes of bytes, then % and $ doubled."""
    found = []
    for word in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
        raw = re.sub(
            rb"\\(x[0-9a-f]{2}|.)",
            lambda match: (
                bytes.fromhex(match[1][1:].decode()) if match[1][:1] == b"x" else match[1]
            ),
            word.encode(),
        )
        found.append(raw.decode().replace("%%", "%").replace("$$", "$"))
    return found


@given(st.lists(words, min_size=1))
def test_systemd_reads_back_the_very_command(argv: list[str]) -> None:
    line = command_line(["/bin/sparkdeploy", *argv])
    assert line.isprintable()
    assert read_by_systemd(line) == ["/bin/sparkdeploy", *argv]
    # Whatever is left of `%` and `$` after taking away the doubled ones would be expanded.
    assert not re.search(r"[%$]", line.replace("%%", "").replace("$$", ""))


@given(st.dictionaries(st.from_regex(r"[A-Z_]+", fullmatch=True), words), words)
def test_no_value_adds_a_line_to_a_unit(env: dict[str, str], word: str) -> None:
    unit = replace(UNIT, env=env, up=[*UNIT.up, word])
    lines = unit_text(unit).splitlines()
    assert len(lines) == len(unit_text(replace(UNIT, env={})).splitlines()) + len(env)
    for name, value in env.items():
        assert f"Environment={quoted(f'{name}={value}')}" in lines


def read_by_compose(value: Any) -> Any:
    """Undo Compose's own doubling of `$`; a single one would be a variable."""
    if isinstance(value, str):
        assert "$" not in value.replace("$$", "")
        return value.replace("$$", "$")
    if isinstance(value, dict):
        return {key: read_by_compose(item) for key, item in value.items()}
    return [read_by_compose(item) for item in value] if isinstance(value, list) else value


@given(words, st.lists(words, min_size=1), words)
def test_compose_reads_back_the_very_container(
    secret: str, command: list[str], prepare: str
) -> None:
    spec = replace(V2, command=tuple(command), env={"A": secret}, labels={"dev.x": secret})
    content = yaml.safe_load(compose_text(spec, prepare=prepare))
    assert list(content) == ["services"]
    assert list(content["services"]) == ["vllm"]
    service = read_by_compose(content["services"]["vllm"])
    assert service["command"] == command
    assert service["environment"] == {"A": secret}
    assert service["labels"] == {"dev.x": secret}
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service


def test_a_recipe_file_is_named_so_that_systemd_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparkdeploy.apply.exporting import export_systemd

    (tmp_path / "mine.yaml").write_text("schema: 1\nname: mine\ntitle: t\nextends: v2\n")
    monkeypatch.chdir(tmp_path)
    request = make_request(
        "./mine.yaml",
        ["serve.port=8001"],
        name="second",
        exposure=Exposure.PUBLIC,
        settings=load_settings(),
    )
    secrets = {"HF_TOKEN": "hf_planted", "https_proxy": "http://u:planted@p:1", "HF_HOME": "/data"}
    text = export_systemd(request, load_settings(), secrets)
    assert f'"up" "{tmp_path}/mine.yaml" "--set" "serve.port=8001" "--name" "second"' in text
    assert '"--public" "--yes"' in text
    assert 'Environment="HF_HOME=/data"' in text
    assert "planted" not in text
