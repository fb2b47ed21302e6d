"""`up` and what follows it, through the program, with the real vLLM on a twin.

The tests of this file build on one another in the order in which they stand: a start of the real
engine takes most of a minute, so each is used for more than one thing.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkdeploy import labels
from tests.engine.program import Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]

PORT = 18090
OTHER_PORT = 18091
RECIPE = """\
schema: 1
name: tiny
title: v2 on a twin and a CPU
extends: v2
engine: cpu-0.32
model: {{path: {twin}}}
serve:
  port: {port}
  attention_backend: null
  max_model_len: 1024
  enforce_eager: true
  enable_prefix_caching: false
limits: {{memory_floor_gib: 1, startup_timeout_s: 600}}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A user with a recipe of their own for a twin."""
    made = Program(tmp_path_factory.mktemp("deployments"))
    twin = made.root / "twin"
    assert made.run("checkpoint", "twin", str(twin)).returncode == 0
    recipes = made.root / "config" / "recipes"
    recipes.mkdir(parents=True)
    (recipes / "tiny.yaml").write_text(RECIPE.format(twin=twin, port=PORT))
    yield made
    for name in ("main", "second", "third"):
        made.run("down", name)


def container(host: DockerHost, name: str) -> ContainerFact:
    found = host.find_container(f"sparkdeploy-{name}")
    assert found is not None
    return found


def log_of(host: DockerHost, fact: ContainerFact) -> str:
    return b"".join(host.logs(fact.container_id)).decode(errors="replace")


def status_code(port: int, method: str, path: str, key: str | None = None) -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = b"{}" if method == "POST" else None
    url = f"http://127.0.0.1:{port}{path}"
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_up_serves_the_first_answer(program: Program, host: DockerHost) -> None:
    report = program.answer("up", "tiny", "--yes")
    assert report["base_url"] == f"http://127.0.0.1:{PORT}"
    assert report["changed"] is True
    assert status_code(PORT, "GET", "/v1/models") == 200
    assert container(host, "main").is_running


def test_a_second_up_does_nothing_and_says_so(program: Program, host: DockerHost) -> None:
    before = container(host, "main").container_id
    done = program.run("up", "tiny")
    assert done.returncode == 0
    assert "nothing to do" in done.stderr
    assert container(host, "main").container_id == before


def test_plan_check_agrees_that_there_is_nothing_to_do(program: Program) -> None:
    assert program.run("plan", "tiny", "--check").returncode == 0


def test_status_shows_it_healthy(program: Program) -> None:
    rows = {row["name"]: row for row in program.answer("status")}
    assert rows["main"]["state"] == "healthy"
    assert rows["main"]["port"] == PORT


def test_logs_show_what_the_plugin_converted(program: Program) -> None:
    text = program.run("logs", "main").stdout
    assert "spark-hybrid active: fp8=12 layers, lm_head=int8" in text


def test_bench_counts_what_the_server_counts(program: Program) -> None:
    record = program.answer(
        *("bench", "main", "--suite", "sweep", "--rounds", "1"),
        *("--concurrency", "1,4,16", "--context", "256", "--save", "counted"),
    )
    cells = record["suites"][0]["cells"]
    assert [cell["concurrency"] for cell in cells] == [1, 4, 16]
    for cell in cells:
        (only,) = cell["rounds"]
        assert only["failures"] == 0
        assert only["completion_tokens"] == 128 * cell["concurrency"]
        assert cell["server"]["generation_tokens"] == only["completion_tokens"]
        assert cell["server"]["prompt_tokens"] == only["prompt_tokens"]
        assert {sample["counting"] for sample in cell["samples"]} == {"usage and token ids"}
        assert len(cell["server"]["accepted_per_position"]) == 2
        assert sum(cell["server"]["accepted_per_position"]) == cell["server"]["accepted_tokens"]
        assert cell["server"]["drafts"] > 0


def test_a_run_says_what_made_it(program: Program, host: DockerHost) -> None:
    run = program.answer("bench", "show", "counted")
    origin = run["origin"]
    assert origin["recipe"]["name"] == "tiny"
    assert origin["recipe"]["values"]["serve"]["port"] == PORT
    assert origin["images"][0]["image_id"] == container(host, "main").image_id
    assert origin["images"][1]["versions"]["vllm"].startswith("0.32")
    assert origin["checkpoint"]["manifest_fingerprint"]
    assert "'num_speculative_tokens': 2" in origin["engine"]["flags"]
    assert (origin["engine"]["fp8_layers"], origin["engine"]["lm_head"]) == (12, "int8")
    assert origin["machine"]["docker"]


def test_the_container_has_no_more_rights_than_it_needs(host: DockerHost) -> None:
    record = host.inspect(container(host, "main").container_id)
    config = record["HostConfig"]
    assert config["CapDrop"] == ["ALL"]
    assert config["ReadonlyRootfs"] is True
    assert config["Privileged"] is False
    assert config["RestartPolicy"]["Name"] == "no"
    assert record["Config"]["User"] == "65532:65532"


def test_a_port_of_another_deployment_ends_with_four_and_its_name(program: Program) -> None:
    started = time.monotonic()
    done = program.run("up", "tiny", "--name", "second")
    assert done.returncode == 4
    assert f"port {PORT} is in use by deployment main" in done.stderr
    assert time.monotonic() - started < 30


def test_a_port_of_a_foreign_process_is_named(program: Program) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", OTHER_PORT))
        listener.listen()
        setting = f"serve.port={OTHER_PORT}"
        done = program.run("up", "tiny", "--name", "second", "--set", setting)
    assert done.returncode == 4
    assert f"port {OTHER_PORT} is in use by process" in done.stderr


def test_an_unreadable_model_file_is_named_before_anything_starts(program: Program) -> None:
    file = next((program.root / "twin").glob("model-00001*.safetensors"))
    file.chmod(0o600)
    try:
        done = program.run("up", "tiny", "--name", "second", "--set", "serve.port=18092")
    finally:
        file.chmod(0o644)
    assert done.returncode == 4
    assert str(file) in done.stderr


def test_replacing_without_consent_changes_nothing(program: Program, host: DockerHost) -> None:
    before = container(host, "main").container_id
    done = program.run("up", "tiny", "--set", "serve.max_num_seqs=2")
    assert done.returncode == 1
    assert "was not replaced" in done.stderr
    assert container(host, "main").container_id == before


def test_a_second_name_is_served_beside_on_every_address(program: Program) -> None:
    setting = f"serve.port={OTHER_PORT}"
    report = program.answer("up", "tiny", "--name", "second", "--public", "--set", setting)
    assert report["changed"] is True
    assert status_code(PORT, "GET", "/v1/models") == 200


def key_of(program: Program) -> str:
    return (program.root / "state" / "keys" / "second").read_text().strip()


def test_every_route_but_health_refuses_without_the_key(program: Program, host: DockerHost) -> None:
    log = log_of(host, container(host, "second"))
    routes = re.findall(r"Route: (\S+), (?:Methods: ([A-Z, ]+)|Endpoint)", log)
    assert len(routes) > 10
    for path, methods in routes:
        for method in (methods or "GET").split(", "):
            code = status_code(OTHER_PORT, method, re.sub(r"\{[^}]+\}", "x", path))
            expected = 200 if path == "/health" else 401
            assert (method, path, code) == (method, path, expected)
    for path in ("/invocations", "/tokenize", "/metrics", "/docs", "/no-such-path", "//health"):
        assert status_code(OTHER_PORT, "POST", path) == 401
    assert status_code(OTHER_PORT, "GET", "/v1/models", "wrong") == 401
    assert status_code(OTHER_PORT, "GET", "/v1/models", key_of(program)) == 200


def test_the_key_is_nowhere_to_be_read(program: Program, host: DockerHost) -> None:
    fact = container(host, "second")
    key = key_of(program)
    assert key not in json.dumps(host.inspect(fact.container_id))
    assert key not in log_of(host, fact)
    command_lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert command_lines
    assert not [line for line in command_lines if key.encode() in line]
    top = host.inspect(fact.container_id)["Config"]["Env"]
    assert not [pair for pair in top if "KEY" in pair]
    file = program.root / "state" / "keys" / "second"
    assert file.stat().st_mode & 0o777 == 0o600


def test_down_removes_one_name_and_leaves_the_other(program: Program, host: DockerHost) -> None:
    assert program.run("down", "second").returncode == 0
    assert host.find_container("sparkdeploy-second") is None
    assert container(host, "main").is_running
    again = program.run("down", "second")
    assert again.returncode == 0
    assert "nothing to do" in again.stderr


def test_a_container_killed_while_starting_fails_at_once_and_names_the_signal(
    program: Program, host: DockerHost
) -> None:
    process = program.start("up", "tiny", "--name", "third", "--set", "serve.port=18093")
    killed_at = _kill_when_running(host, "third", process)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 7
    assert time.monotonic() - killed_at < 5
    assert "sparkdeploy-third died" in stderr
    assert "137" in stderr
    assert host.find_container("sparkdeploy-third") is None


def _kill_when_running(host: DockerHost, name: str, process: subprocess.Popen[str]) -> float:
    for _ in range(600):
        assert process.poll() is None
        found = host.find_container(f"sparkdeploy-{name}")
        if found is not None and found.is_running:
            time.sleep(2)
            subprocess.run(["docker", "kill", "-s", "KILL", found.name], check=True)
            return time.monotonic()
        time.sleep(0.1)
    raise AssertionError("the container never ran")


def test_the_same_name_replaces_with_consent(program: Program, host: DockerHost) -> None:
    before = container(host, "main").container_id
    report = program.answer("up", "tiny", "--yes", "--set", "serve.max_num_seqs=2")
    after = container(host, "main")
    assert report["changed"] is True
    assert after.container_id != before
    assert host.find_container("sparkdeploy-main-replaced") is None
    assert after.labels[labels.RECIPE] == "tiny"


def test_a_dead_docker_socket_ends_with_four(program: Program, tmp_path: Path) -> None:
    blind = Program(program.root, {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    done = blind.run("up", "tiny")
    assert done.returncode == 4
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stop_by_signal_is_passed_on_to_vllm(program: Program, host: DockerHost) -> None:
    fact = container(host, "main")
    subprocess.run(["docker", "kill", "-s", signal.Signals.SIGTERM.name, fact.name], check=True)
    for _ in range(60):
        found = host.find_container(fact.container_id)
        if found is not None and not found.is_running:
            break
        time.sleep(0.5)
    assert program.run("down", "main").returncode == 0
    assert host.find_container("sparkdeploy-main") is None
