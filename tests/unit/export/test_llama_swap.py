"""llama-swap's configuration of a stack, held against llama-swap's own schema.

The schema is config-schema.json of mostlygeek/llama-swap at 0bdb3720 (2026-08-22), under the
licence beside it.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from sparkdeploy import yaml_text
from sparkdeploy.server.phases import save_durations
from sparkdeploy.settings import load_settings
from tests.unit.gateway.stacks import CODER, EMBED, HOME, IDLE, PROSE, spark, written
from tests.unit.program import Run

SCHEMA = json.loads(Path(__file__).with_name("llama-swap.schema.json").read_text())


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    spark(monkeypatch)


def exported(run: Run, folder: Path, text: str) -> Any:
    """The configuration, which the schema takes."""
    done = run("export", "llama-swap", str(written(folder, text)))
    assert done.returncode == 0, done.stderr
    config = yaml_text.load(done.stdout, "config.yaml")
    assert [*Draft7Validator(SCHEMA).iter_errors(config)] == []
    return config


def closed(schema: Any, place: str) -> dict[str, Any]:
    """The schema's known keys of a place: it takes others there, and says nothing of them."""
    for key in place.split("."):
        schema = schema[key]
    return dict(schema)


def test_a_model_is_an_up_that_stays(run: Run, tmp_path: Path) -> None:
    prose = exported(run, tmp_path, HOME)["models"]["prose"]
    words = shlex.split(prose["cmd"])
    assert words[1:6] == ["-P", "-m", "sparkdeploy", "up", "v2"]
    assert words[-4:] == ["--name", "prose", "--yes", "--stay"]
    assert shlex.split(prose["cmdStop"])[-2:] == ["stop", "prose"]
    assert (prose["proxy"], prose["checkEndpoint"]) == ("http://127.0.0.1:8002", "/health")
    assert (prose["aliases"], prose["useModelName"]) == (["brief", "gpt-4o"], "prose")
    assert prose["filters"] == {"setParamsByID": {"brief": {"temperature": 0}}}
    known = closed(SCHEMA, "properties.models.additionalProperties.properties")
    assert prose.keys() <= known.keys()


def test_every_key_is_one_that_llama_swap_knows(run: Run, tmp_path: Path) -> None:
    config = exported(run, tmp_path, HOME)
    assert config.keys() <= SCHEMA["properties"].keys()


def test_what_fits_is_its_matrix(run: Run, tmp_path: Path) -> None:
    matrix = exported(run, tmp_path, HOME)["routing"]["router"]["settings"]["matrix"]
    assert matrix["vars"] == {"m1": "coder", "m2": "embed", "m3": "prose"}
    assert matrix["sets"] == {"set1": "m1 & m2", "set2": "m3"}
    assert matrix["evict_costs"]["m1"] > matrix["evict_costs"]["m2"] > 1


def test_what_is_kept_always_is_in_every_set_and_preloaded(run: Run, tmp_path: Path) -> None:
    text = f"schema: 1\nmodels:\n{EMBED % 'keep: always'}{CODER % IDLE}{PROSE % IDLE}"
    config = exported(run, tmp_path, text)
    assert config["hooks"] == {"on_startup": {"preload": ["embed"]}}
    assert config["routing"]["router"]["settings"]["matrix"]["sets"] == {"set1": "m1 & m2"}
    assert [*config["models"]] == ["embed", "coder"], "prose would end what is kept always"
    assert config["models"]["embed"]["ttl"] == 0
    done = run("export", "llama-swap", str(tmp_path / "home.yaml"))
    assert "left out" in done.stderr


def test_times_are_those_of_the_stack_and_of_measured_starts(run: Run, tmp_path: Path) -> None:
    text = f"schema: 1\nsmallest_stay_s: 90\nmodels:\n{PROSE % 'idle_stop_s: 600'}"
    config = exported(run, tmp_path, text)
    assert (config["healthCheckTimeout"], config["models"]["prose"]["ttl"]) == (1800, 600)
    save_durations(load_settings().state_dir, "x:0123456789abcdef v2", {"weights": 700.0})
    assert exported(run, tmp_path, text)["healthCheckTimeout"] == 1400
    asked = exported(run, tmp_path, text.replace("idle_stop_s: 600", "keep: request"))
    assert asked["models"]["prose"]["ttl"] == 90


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- {name: a, recipe: v2, set: ['serve.env={TOKEN: x}']}", "cannot be exported"),
        ("- {name: a, recipe: v2, aliases: {b: {stop: '${PID}'}}}", "llama-swap would expand"),
        ("- {name: a, recipe: v2, set: ['title=${x}']}", "llama-swap would expand"),
    ],
)
def test_secrets_and_macros_are_refused(run: Run, tmp_path: Path, text: str, why: str) -> None:
    done = run(
        *("export", "llama-swap", str(written(tmp_path, f"schema: 1\nmodels:\n{text}"))),
        "--allow-unsafe",
    )
    assert done.returncode == 2
    assert why in done.stderr


def test_it_is_written_into_a_folder(run: Run, tmp_path: Path) -> None:
    words = ("export", "llama-swap", str(written(tmp_path, HOME)), "-o", str(tmp_path / "out"))
    assert run(*words).returncode == 0
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert [it.name for it in (tmp_path / "out").iterdir()] == ["config.yaml"]
    assert "--listen 127.0.0.1:8800" in done.stderr
    assert run("export", "llama-swap", "v2").returncode == 2


def test_the_gateway_of_a_stack_is_a_unit(run: Run, tmp_path: Path) -> None:
    done = run("export", "systemd", str(written(tmp_path, HOME)))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (start,) = (line for line in lines if line.startswith("ExecStart="))
    assert start.endswith(f'"gateway" "--" "{tmp_path}/home.yaml"')
    assert "Type=exec" in lines
    assert not any(line.startswith("ExecStop=") for line in lines)
    assert "sparkdeploy_gateway-home.service" in done.stderr
    done = run("export", "systemd", str(tmp_path / "home.yaml"), "--allow-unsafe")
    assert '"gateway" "--allow-unsafe" "--"' in done.stdout
