"""`connect`: what each client is told, and that no key and no stranger's word is in it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sparkdeploy.deploy import nodes
from sparkdeploy.errors import UsageError
from sparkdeploy.export import neighbours
from sparkdeploy.export.client_names import Client
from sparkdeploy.export.clients import ClientConnection
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.facts import own_name
from sparkdeploy.recipe.answers import RERANKER, SPEECH
from sparkdeploy.settings import load_settings
from tests.fakes.containers import FakeContainers, container
from tests.fakes.machines import reached_alone
from tests.unit.export.served import EMBEDDER, MAIN
from tests.unit.golden import assert_golden
from tests.unit.program import Run

VALUES = {"model": {"served_name": ["qwen", "alias"]}, "serve": {"max_model_len": 4096}}


def deployment(name: str, port: int = 8000, **more: str) -> ContainerFact:
    values = {"served_name": "qwen", "recipe": "v2", "recipe_values": json.dumps(VALUES)}
    marks = {"port": str(port), "user": own_name(), "exposure": "loopback", **values, **more}
    return container(f"sparkdeploy-{name}", deployment=name, **marks)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeContainers:
    made = FakeContainers()
    reached_alone(monkeypatch, made)
    for module in (nodes, neighbours):
        monkeypatch.setattr(module, "connect", lambda _settings: made)
    return made


def given(engine: FakeContainers, *facts: ContainerFact) -> None:
    engine.facts.update({fact.container_id: fact for fact in facts})


def test_the_settings_of_every_client(request: pytest.FixtureRequest) -> None:
    settings = {client: ClientConnection(client, MAIN, "127.0.0.1").settings for client in Client}
    parts = [f"{client.value}\n{text}" for client, text in settings.items()]
    assert_golden(request, "exports/connect.txt", "\n".join(parts))


@pytest.mark.parametrize("client", list(Client))
def test_without_a_key_a_client_gets_the_same_settings_and_no_key_file(client: Client) -> None:
    keyless = ClientConnection(client, replace(MAIN, key_file=None), "127.0.0.1").settings
    keyed = ClientConnection(client, MAIN, "127.0.0.1").settings
    assert str(MAIN.key_file) in keyed
    assert "/keys/" not in keyless
    for text in (keyless, keyed):
        assert "http://127.0.0.1:8000" in text
        if client in {Client.OPENCODE, Client.CLAUDE_CODE}:
            json.loads(text)
        if client is Client.CONTINUE:
            yaml.safe_load(text)


@pytest.mark.parametrize("client", [Client.OPENAI, Client.OPEN_WEBUI])
def test_a_shell_reads_the_key_out_of_its_file(client: Client, tmp_path: Path) -> None:
    key_file = tmp_path / "it's $HOME" / "main"
    key_file.parent.mkdir()
    key_file.write_text("the key\n")
    told = ClientConnection(client, replace(MAIN, key_file=key_file), "127.0.0.1").settings
    assert "the key" not in told
    script = f'{told}printf "%s" "$OPENAI_API_KEY"'
    assert run_shell(script, tmp_path) == "the key"


def test_curl_gets_the_key_through_a_pipe_and_never_as_an_argument(tmp_path: Path) -> None:
    key_file = tmp_path / "it's" / "main"
    key_file.parent.mkdir()
    key_file.write_text("the key\n")
    program = tmp_path / "curl"
    program.write_text('#!/bin/sh\nfor word; do echo "argument $word"; done\ncat\n')
    program.chmod(0o755)
    told = ClientConnection(Client.CURL, replace(MAIN, key_file=key_file), "spark.local").settings
    said = run_shell(told, tmp_path).splitlines()
    assert said[-1] == 'header = "Authorization: Bearer the key"'
    arguments = [line.removeprefix("argument ") for line in said[:-1]]
    assert "the key" not in " ".join(arguments)
    assert "http://spark.local:8000/v1/chat/completions" in arguments
    assert json.loads(arguments[arguments.index("-d") + 1])["model"] == "qwen"


def test_a_model_that_writes_no_text_is_no_partner_of_an_agent() -> None:
    for client in (Client.OPENCODE, Client.CLAUDE_CODE):
        with pytest.raises(UsageError, match="embedder answers embeddings, score, rerank"):
            _ = ClientConnection(client, EMBEDDER, "127.0.0.1").settings
    assert "/v1/embeddings" in ClientConnection(Client.CURL, EMBEDDER, "127.0.0.1").settings
    told = yaml.safe_load(ClientConnection(Client.CONTINUE, EMBEDDER, "127.0.0.1").settings)
    assert told["models"][0]["roles"] == ["embed"]
    reranker = replace(EMBEDDER, answers=RERANKER)
    told = yaml.safe_load(ClientConnection(Client.CONTINUE, reranker, "127.0.0.1").settings)
    assert told["models"][0]["roles"] == ["rerank"]
    assert "8002/rerank" in ClientConnection(Client.CURL, reranker, "127.0.0.1").settings
    with pytest.raises(UsageError, match="and continue has no use for that"):
        _ = ClientConnection(Client.CONTINUE, replace(EMBEDDER, answers=SPEECH), "h").settings


@pytest.mark.parametrize("speculative", [None, {"method": "mtp", "tokens": 2}])
def test_who_drafts_tells_clients_what_is_refused(
    run: Run, engine: FakeContainers, speculative: dict[str, object] | None
) -> None:
    values = json.dumps({"serve": {"speculative": speculative}})
    given(engine, deployment("web", recipe_values=values))
    said = run("connect")
    assert said.returncode == 0, said.stderr
    assert ("min_p or logit_bias" in said.stderr) is (speculative is not None)


def test_another_machine_is_told_the_way_to_a_loopback_deployment(
    run: Run, engine: FakeContainers
) -> None:
    given(engine, deployment("web"))
    done = run("connect", "openai", "--host", "spark.local")
    assert done.returncode == 2
    assert "ssh -N -L 8000:127.0.0.1:8000 spark.local" in done.stderr


@pytest.mark.parametrize("host", ["-x", "a b", "$(id)", "a/b", "", "a'b", "user@host"])
def test_what_is_no_host_is_refused(run: Run, engine: FakeContainers, host: str) -> None:
    given(engine, deployment("web", exposure="public"))
    assert run("connect", "openai", f"--host={host}").returncode == 2


def test_exports_are_about_all_deployments_of_ones_own(run: Run, engine: FakeContainers) -> None:
    given(
        engine,
        deployment("a", 8001),
        deployment("b", 8002, served_name="other", recipe_values="{}", exposure="public"),
        deployment("hers", 8003, user="anna"),
    )
    targets = [
        job["static_configs"][0]["targets"][0]
        for job in yaml.safe_load(run("export", "prometheus").stdout)["scrape_configs"]
    ]
    assert targets == ["127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:9100"]
    named = yaml.safe_load(run("export", "prometheus", "hers").stdout)
    assert named["scrape_configs"][0]["job_name"] == "vllm-hers"
    assert run("export", "prometheus", "nobody").returncode == 4


def test_a_gateways_key_is_made_once_and_shown_to_nobody(
    run: Run, engine: FakeContainers, tmp_path: Path
) -> None:
    given(engine, deployment("a", 8001))
    key_file = load_settings().state_dir / "keys" / ".litellm"
    assert "master_key: os.environ/" in run("export", "litellm").stdout
    done = run("export", "litellm", "--public", "-o", str(tmp_path / "gateway"))
    assert done.returncode == 0, done.stderr
    key = key_file.read_text()
    assert key.startswith("sk-")
    assert key_file.stat().st_mode & 0o777 == 0o600
    written = "".join(path.read_text() for path in (tmp_path / "gateway").iterdir())
    assert key.strip() not in written + done.stdout + done.stderr
    assert "port 8001 is a deployment's" in run("export", "litellm", "--port", "8001").stderr
    run("export", "litellm", "--public")
    assert key_file.read_text() == key


def test_containers_run_as_whose_the_keys_are(
    run: Run, engine: FakeContainers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given(engine, deployment("a", 8001, exposure="public"))
    key_file = load_settings().state_dir / "keys" / "a"
    key_file.parent.mkdir(parents=True)
    key_file.write_text("k")
    owner = key_file.stat().st_uid
    run("export", "prometheus", "-o", str(tmp_path / "watch"))
    compose = yaml.safe_load((tmp_path / "watch" / "compose.yaml").read_text())
    assert compose["services"]["prometheus"]["user"] == f"{owner}:{key_file.stat().st_gid}"
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    done = run("export", "prometheus", "a")
    assert done.returncode == 4
    assert f"those of uid {owner}" in done.stderr


def run_shell(script: str, folder: Path) -> str:
    env = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": "/nowhere"}
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True, timeout=30, env=env
    )
    return done.stdout
