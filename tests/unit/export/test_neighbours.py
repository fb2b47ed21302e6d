"""What runs beside deployments: reviewed files, and that no key and no false name is in them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkdeploy.deploy.serving import ServedDeployment
from sparkdeploy.errors import UsageError
from sparkdeploy.export.compose_file import Export
from sparkdeploy.export.neighbours import (
    UNCHECKED_LISTENER,
    grafana_export,
    litellm_export,
    open_webui_export,
    prometheus_export,
    write_export,
)
from sparkdeploy.recipe.answers import (
    CLASSES,
    EMBEDDINGS,
    RERANKER,
    SPEECH,
    TEXT,
    UNTRAINED_TEXT,
    Answers,
)
from sparkdeploy.settings import Hosts, load_settings
from tests.engine.conftest import until
from tests.unit.conftest import GiveProgram
from tests.unit.export.served import EMBEDDER, MAIN, SMALL
from tests.unit.golden import assert_golden

USER = "1000:1000"
EVERY = (MAIN, SMALL, EMBEDDER)
KEY = Path("/home/ada/.local/state/sparkdeploy/keys/.litellm")
HOSTS = load_settings({}).hosts


def gateway(served: Sequence[ServedDeployment], hosts: Hosts = HOSTS) -> Export:
    return litellm_export(served, 4000, hosts, user=USER, key_file=KEY)


def exports() -> dict[str, Export]:
    return {
        "litellm": gateway(EVERY),
        "open-webui": open_webui_export(EVERY, 3001, HOSTS, is_public=False),
        "prometheus": prometheus_export(EVERY, USER, HOSTS),
        "grafana": grafana_export(USER, HOSTS),
    }


def text_of(export: Export, path: str) -> str:
    return next(file.text for file in export.files if file.path == path)


def dashboard() -> Any:
    return json.loads(text_of(exports()["grafana"], "dashboard.json"))


def read(export: Export, path: str) -> Any:
    return yaml.safe_load(text_of(export, path))


def test_each_export_says_first_that_its_clients_do_not_look_who_listens() -> None:
    asking = [name for name in exports() if name != "grafana"]
    assert len(asking) == 3
    for name in asking:
        lines = exports()[name].files[0].text.splitlines()
        assert lines[1] == f"# Known: {UNCHECKED_LISTENER}.", name


@pytest.mark.parametrize("path", ["litellm.yaml", "prometheus.yml", "rules.yml"])
def test_the_settings_of_an_export(request: pytest.FixtureRequest, path: str) -> None:
    name = "litellm" if path.startswith("litellm") else "prometheus"
    assert_golden(request, f"exports/{path}", text_of(exports()[name], path))


def test_the_services_of_all_exports(request: pytest.FixtureRequest) -> None:
    services = [
        f"{service} {key}: {json.dumps(value)}"
        for export in exports().values()
        for service, keys in read(export, "compose.yaml")["services"].items()
        for key, value in keys.items()
    ]
    assert_golden(request, "exports/services.txt", "\n".join(services) + "\n")


def test_what_each_panel_of_the_dashboard_shows(request: pytest.FixtureRequest) -> None:
    lines = [
        f"{panel['title']} [{panel['fieldConfig']['defaults'].get('unit')}]: {target['expr']}"
        for panel in dashboard()["panels"]
        for target in panel["targets"]
    ]
    assert_golden(request, "exports/panels.txt", "\n".join(lines) + "\n")


def test_a_name_that_would_mean_two_models_is_refused() -> None:
    other = replace(SMALL, models=("qwen",))
    with pytest.raises(UsageError, match="main and small are both called qwen"):
        gateway((MAIN, other))
    # Two copies of one recipe share the requests.
    twin = replace(MAIN, name="twin", port=8003)
    told = read(gateway((MAIN, twin)), "litellm.yaml")["model_list"]
    assert [entry["model_name"] for entry in told].count("qwen") == 2


def test_no_models_name_reads_a_variable_of_the_gateway() -> None:
    named = replace(SMALL, models=("os.environ/LITELLM_MASTER_KEY",))
    with pytest.raises(UsageError, match="for a variable's"):
        gateway((named,))


@pytest.mark.parametrize(
    ("name", "variable"), [("litellm", "LITELLM_MASTER_KEY"), ("open-webui", "OPENAI_API_KEYS")]
)
def test_a_container_takes_its_keys_from_files(tmp_path: Path, name: str, variable: str) -> None:
    """The words that it starts with, run by the real shell with files where it has them."""
    (service,) = read(exports()[name], "compose.yaml")["services"].values()
    assert not any("KEY" in key for key in service["environment"] if key != "OPENAI_API_BASE_URLS")
    shell, flag, script = service["entrypoint"]
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "main").write_text("secret of main\n")
    (keys / ".gateway").write_text("sk-gateway\n")
    before, _, _ = script.replace("$$", "$").replace("/run/keys", str(keys)).partition("exec ")
    done = subprocess.run(
        [shell, flag, f"{before} env"], capture_output=True, text=True, check=True, timeout=30
    )
    told = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    expected = {"LITELLM_MASTER_KEY": "sk-gateway", "OPENAI_API_KEYS": "secret of main;none"}
    assert told[variable] == expected[variable]
    if name == "litellm":
        assert told["SPARKDEPLOY_KEY_0"] == "secret of main"


def test_every_neighbour_is_held_as_tight_as_it_can_be() -> None:
    for export in exports().values():
        for name, service in read(export, "compose.yaml")["services"].items():
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges"], name
            assert "privileged" not in service
            tag = service["image"].rpartition(":")[2]
            assert tag[0].isdigit() or tag[0] == "v", f"{name} moves with {tag}"
            writable = [
                it["source"]
                for it in service["volumes"]
                if isinstance(it, dict) and not it.get("read_only")
            ]
            assert writable in ([], ["./data"]), name


def test_images_come_from_the_mirror_that_is_configured() -> None:
    hosts = load_settings({"SPARKDEPLOY_GITHUB_REGISTRY": "mirror.test"}).hosts
    compose = read(gateway((SMALL,), hosts), "compose.yaml")
    assert compose["services"]["litellm"]["image"].startswith("mirror.test/")


def test_the_dashboard_shows_only_what_is_recorded_or_exported() -> None:
    expressions = [target["expr"] for it in dashboard()["panels"] for target in it["targets"]]
    recorded = {
        rule["record"]
        for group in read(exports()["prometheus"], "rules.yml")["groups"]
        for rule in group["rules"]
    }
    used = {
        text.partition("{")[0].removeprefix("max_over_time(")
        for text in expressions
        if text.startswith(("deployment", "max_over_time"))
    }
    assert used <= recorded
    assert len(expressions) == len(set(expressions))


def test_files_are_written_with_their_folders_and_written_again(tmp_path: Path) -> None:
    export = exports()["prometheus"]
    write_export(export, tmp_path)
    write_export(export, tmp_path)
    assert (tmp_path / "data").is_dir()
    assert (tmp_path / "gpu-textfile.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "rules.yml").read_text() == text_of(export, "rules.yml")


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_files_of_others_stay_as_they_were(tmp_path: Path, kind: str) -> None:
    mine, target = tmp_path / "rules.yml", tmp_path / "elsewhere"
    make: dict[str, Callable[[], object]] = {
        "file": lambda: mine.write_text("groups: []\n"),
        "link": lambda: mine.symlink_to(target),
        "folder": mine.mkdir,
    }
    make[kind]()
    with pytest.raises(UsageError, match="not written by sparkdeploy"):
        write_export(exports()["prometheus"], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rules.yml"]


@pytest.mark.outside
def test_the_gpus_figures_become_files_for_node_exporter(
    tmp_path: Path, give_program: GiveProgram
) -> None:
    write_export(exports()["prometheus"], tmp_path)
    give_program("nvidia-smi", "echo '0, 31.50, 2418, 44'; echo '1, [N/A], 208, 40'; exec sleep 60")
    told = tmp_path / "textfile"
    with subprocess.Popen([tmp_path / "gpu-textfile.sh"], cwd="/", start_new_session=True) as run:
        until((told / "gpu-1.prom").exists)
        first, second = ((told / f"gpu-{gpu}.prom").read_text() for gpu in (0, 1))
        run.terminate()
        assert run.wait(30) == 0
        # The real nvidia-smi ends at its next line, which nobody reads; this one sleeps.
        os.killpg(run.pid, signal.SIGKILL)
    assert 'sparkdeploy_gpu_power_watts{gpu="0"} 31.50\n' in first
    assert 'sparkdeploy_gpu_clock_megahertz{gpu="0"} 2418\n' in first
    assert 'sparkdeploy_gpu_temperature_celsius{gpu="0"} 44\n' in first
    assert "watts" not in second
    assert 'sparkdeploy_gpu_clock_megahertz{gpu="1"} 208\n' in second
    assert list(told.iterdir()) == [], "figures of a program that has ended"


@pytest.mark.parametrize(
    ("answers", "mode"),
    [
        (TEXT, "chat"),
        (UNTRAINED_TEXT, "completion"),
        (EMBEDDINGS, "embedding"),
        (RERANKER, "rerank"),
        (SPEECH, "audio_transcription"),
        (CLASSES, None),
    ],
)
def test_litellm_is_told_what_each_model_answers(answers: Answers, mode: str | None) -> None:
    made = gateway((replace(EMBEDDER, answers=answers),)).files[0]
    (model,) = yaml.safe_load(made.text)["model_list"]
    assert model["model_info"].get("mode") == mode
