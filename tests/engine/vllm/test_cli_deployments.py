"""`up` and what follows it, through the program, with the real vLLM on a twin.

The tests of this file build on one another in the order in which they stand: a start of the real
engine takes most of a minute, so each is used for more than one thing.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdeploy import labels
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import DEADLINE_S, free_port, patiently, until
from tests.engine.program import Program
from tests.engine.vllm.hang import LATE_S, Served
from tests.engine.vllm.twin_user import TWIN_RECIPE, cached_twin_user, is_busy, unique_name

pytestmark = [
    pytest.mark.docker,
    pytest.mark.in_order,
    pytest.mark.timeout(1200),
    pytest.mark.runs("ask", "bench", "checkpoint", "down", "logs", "plan", "status", "up"),
]

MAIN, SECOND, THIRD = (unique_name(word) for word in ("main", "second", "third"))
PORT, OTHER_PORT, SPARE_PORT = (free_port() for _ in range(3))
CONTEXT = 3072
STALL_S = 20


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A user with a recipe of their own for a twin, which lies in the hub's shared store."""
    made = cached_twin_user(
        tmp_path_factory.mktemp("deployments"), port=PORT, stall_s=STALL_S, max_model_len=CONTEXT
    )
    yield made
    for name in (MAIN, SECOND, THIRD):
        made.run("down", "--yes", name)


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
    report = program.answer("up", TWIN_RECIPE, "--name", MAIN, "--yes")
    assert report["base_url"] == f"http://127.0.0.1:{PORT}"
    assert report["changed"] is True
    assert status_code(PORT, "GET", "/v1/models") == 200
    assert container(host, MAIN).is_running


def test_nothing_of_the_hubs_cache_is_mounted_but_what_the_model_leads_to(
    program: Program, host: DockerHost
) -> None:
    cache = program.root / "hub"
    (root,) = cache.glob("models--*")
    mounted = {Path(path) for path in host.mounted_from(container(host, MAIN).container_id)}
    stored = {path.resolve() for path in (root / "blobs").iterdir() if path.is_symlink()}
    assert len(stored) > 3
    assert {path for path in mounted if path.is_relative_to(cache)} == {root, *stored}


def test_a_second_up_does_nothing_and_says_so(program: Program, host: DockerHost) -> None:
    before = container(host, MAIN).container_id
    done = program.run("up", TWIN_RECIPE, "--name", MAIN)
    assert done.returncode == 0
    assert "nothing to do" in done.stderr
    assert container(host, MAIN).container_id == before


def test_plan_check_agrees_that_there_is_nothing_to_do(program: Program) -> None:
    assert program.run("plan", TWIN_RECIPE, "--name", MAIN, "--check").returncode == 0


def test_status_shows_it_healthy(program: Program) -> None:
    rows = {row["name"]: row for row in program.answer("status")}
    assert rows[MAIN]["state"] == "healthy"
    assert rows[MAIN]["port"] == PORT


def test_logs_show_what_the_plugin_converted(program: Program) -> None:
    text = program.run("logs", MAIN).stdout
    assert "spark-hybrid active: fp8=12 layers, lm_head=int8" in text


def test_ask_is_answered_by_it(program: Program) -> None:
    told = program.answer("ask", MAIN, "Hello", "--max-tokens", "8", "--no-think")
    assert told["completion_tokens"] == 8
    assert told["text"] or told["thought"]
    done = program.run("ask", MAIN, "word " * 5000)
    assert done.returncode == 1
    assert "maximum context length" in done.stderr


def test_bench_counts_what_the_server_counts(program: Program) -> None:
    record = program.answer(
        *("bench", MAIN, "--suite", "sweep", "--rounds", "1"),
        *("--concurrency", "1,4", "--context", "256", "--save", "counted"),
    )
    cells = record["suites"][0]["cells"]
    assert [cell["concurrency"] for cell in cells] == [1, 4]
    for cell in cells:
        (only,) = cell["rounds"]
        assert only["failures"] == 0
        assert only["completion_tokens"] == 128 * cell["concurrency"]
        assert cell["server"]["generation_tokens"] == only["completion_tokens"]
        assert cell["server"]["prompt_tokens"] == only["prompt_tokens"]
        assert {sample["counting"] for sample in cell["samples"]} == {"usage and token ids"}
        drafted = cell["server"]["drafted"]
        assert len(drafted["accepted_per_position"]) == 2
        assert sum(drafted["accepted_per_position"]) == drafted["accepted_tokens"]
        assert drafted["drafts"] > 0


def test_a_run_says_what_made_it(program: Program, host: DockerHost) -> None:
    run = program.answer("bench", "show", "counted")
    origin = run["origin"]
    assert origin["recipe"]["name"] == TWIN_RECIPE
    assert origin["recipe"]["values"]["serve"]["port"] == PORT
    assert origin["images"][0]["image_id"] == container(host, MAIN).image_id
    assert origin["images"][1]["versions"]["vllm"].startswith("0.32")
    assert origin["checkpoint"]["manifest_fingerprint"]
    assert "'num_speculative_tokens': 2" in origin["engine"]["flags"]
    assert (origin["engine"]["fp8_layers"], origin["engine"]["lm_head"]) == (12, "int8")
    assert origin["machine"]["docker"]


def test_a_sweep_goes_as_far_as_the_model(program: Program) -> None:
    record = program.answer(
        *("bench", MAIN, "--suite", "sweep", "--rounds", "1"),
        *("--concurrency", "1", "--context", "1K,8K", "--save", "swept"),
    )
    (suite,) = record["suites"]
    assert suite["notes"] == ["context 8192 left out: the model serves up to 3072 tokens"]
    assert [cell["context_tokens"] for cell in suite["cells"]] == [1024]
    for cell in suite["cells"]:
        room = cell["context_tokens"] - cell["max_tokens"]
        for sample in cell["samples"]:
            assert sample["failure"] is None
            assert 0.9 * room - 60 <= sample["prompt_tokens"] <= room
            assert sample["completion_tokens"] == cell["max_tokens"]


@pytest.mark.slow
def test_needles_are_hidden_in_prompts_of_the_length_asked_for(program: Program) -> None:
    done = program.run("bench", "needle", MAIN, "--lengths", "1K,64K", "--gate", "--json")
    assert done.returncode == 8, done.stderr  # a twin's weights are noise: it finds nothing
    found = json.loads(done.stdout)
    assert [item["length"] for item in found] == [1024] * 3 + [CONTEXT] * 3
    assert all(0.75 * item["length"] < item["prompt_tokens"] < item["length"] for item in found)


def test_a_report_is_drawn_from_what_was_measured(program: Program, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert program.run("bench", "report", "counted", "swept", "-o", str(page)).returncode == 0
    assert page.read_text().count("<svg") >= 2


@pytest.mark.slow
def test_decoding_counts_what_the_server_counts(program: Program) -> None:
    record = program.answer("bench", MAIN, "--suite", "decode", "--rounds", "1")
    cells = record["suites"][0]["cells"]
    assert [cell["prompt"] for cell in cells] == ["prose", "code", "agent"]
    for cell in cells:
        (only,) = cell["rounds"]
        assert only["failures"] == 0
        assert cell["server"]["generation_tokens"] == only["completion_tokens"] > 0
        assert cell["statistics"]["decode_tok_s"]["mean"] > 0


@pytest.mark.slow
def test_a_load_is_sent_from_inside_and_judged(program: Program) -> None:
    limits = ("--slo", "ttft=5min,e2e=10min")
    record = program.answer("bench", "load", MAIN, "--rate", "1", "--requests", "2", *limits)
    (suite,) = record["suites"]
    (cell,) = suite["cells"]
    load = cell["load"]
    assert (load["requests"], load["failures"], load["held"]) == (2, 0, 2)
    assert load["most_at_once"] == 2
    assert cell["latency"]["ttft_s"]["count"] == 2
    assert suite["tools"][0]["report"]["completed"] == 2
    counted = suite["tools"][0]["report"]["total_output_tokens"]
    # The request before all, and the one that warms up, are the tool's own.
    assert counted <= cell["server"]["generation_tokens"] <= 3 * counted


def test_vllm_s_own_benchmark_runs_inside_and_agrees(program: Program) -> None:
    record = program.answer("bench", MAIN, "--suite", "standard", "--rounds", "1")
    (suite,) = record["suites"]
    tools = {tool["tool"]: tool for tool in suite["tools"]}
    inside = tools["vllm bench serve"]
    assert inside["version"].startswith("0.32")
    assert inside["figures"]["failed_requests"] == 0
    assert inside["figures"]["end_to_end_tok_s"] > 0
    # Where llama-benchy can neither be found nor fetched, the record says so.
    assert "llama-benchy" in tools or any(
        "llama-benchy left out" in note for note in suite["notes"]
    )


@pytest.mark.slow
def test_a_model_of_noise_fails_the_tool_calls_and_is_told_how(program: Program) -> None:
    done = program.run("bench", "tools", MAIN, "--gate", "--json")
    assert done.returncode == 8, done.stderr
    problems = {item["name"]: item["problem"] for item in json.loads(done.stdout)}
    assert list(problems) == ["strings", "number", "array", "none"]
    assert problems["strings"].startswith("expected one call of get_tide")


def test_the_container_has_no_more_rights_than_it_needs(host: DockerHost) -> None:
    record = host.inspect(container(host, MAIN).container_id)
    config = record["HostConfig"]
    assert config["CapDrop"] == ["ALL"]
    assert config["ReadonlyRootfs"] is True
    assert config["Privileged"] is False
    assert config["RestartPolicy"]["Name"] == "no"
    assert record["Config"]["User"] == "65532:65532"


# A server more; check_key_middleware.py holds by default that a key is asked for.
@pytest.mark.slow
def test_a_second_name_is_served_beside_on_every_address(program: Program) -> None:
    setting = f"serve.port={OTHER_PORT}"
    report = program.answer("up", TWIN_RECIPE, "--name", SECOND, "--public", "--set", setting)
    assert report["changed"] is True
    assert status_code(PORT, "GET", "/v1/models") == 200


def key_of(program: Program) -> str:
    return (program.root / "state" / "keys" / SECOND).read_text().strip()


@pytest.mark.slow
def test_every_route_but_health_refuses_without_the_key(program: Program, host: DockerHost) -> None:
    log = log_of(host, container(host, SECOND))
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


@pytest.mark.slow
def test_the_key_is_nowhere_to_be_read(program: Program, host: DockerHost) -> None:
    fact = container(host, SECOND)
    key = key_of(program)
    assert key not in json.dumps(host.inspect(fact.container_id))
    assert key not in log_of(host, fact)
    command_lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert command_lines
    assert not [line for line in command_lines if key.encode() in line]
    top = host.inspect(fact.container_id)["Config"]["Env"]
    assert not [pair for pair in top if "KEY" in pair]
    file = program.root / "state" / "keys" / SECOND
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_down_removes_one_name_and_leaves_the_other(program: Program, host: DockerHost) -> None:
    assert program.run("down", "--yes", SECOND).returncode == 0
    assert host.find_container(f"sparkdeploy-{SECOND}") is None
    assert container(host, MAIN).is_running
    again = program.run("down", "--yes", SECOND)
    assert again.returncode == 4
    assert f"no deployment named {SECOND}" in again.stderr


# A start more.
@pytest.mark.slow
def test_a_container_killed_while_starting_fails_at_once_and_names_the_signal(
    program: Program, host: DockerHost
) -> None:
    process = program.start("up", TWIN_RECIPE, "--name", THIRD, "--set", f"serve.port={SPARE_PORT}")
    killed_at = _kill_when_running(host, THIRD, process)
    _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 7
    assert time.monotonic() - killed_at < patiently(5)
    assert f"sparkdeploy-{THIRD} died" in stderr
    assert "137" in stderr
    assert host.find_container(f"sparkdeploy-{THIRD}") is None


def _kill_when_running(host: DockerHost, name: str, process: subprocess.Popen[str]) -> float:
    def runs() -> bool:
        assert process.poll() is None
        found = host.find_container(f"sparkdeploy-{name}")
        return found is not None and found.is_running

    until(runs)
    subprocess.run(["docker", "kill", "-s", "KILL", f"sparkdeploy-{name}"], check=True)
    return time.monotonic()


# With the stand-in, tests/engine/faults replaces one deployment by another dozens of times.
@pytest.mark.slow
def test_the_same_name_replaces_with_consent(program: Program, host: DockerHost) -> None:
    before = container(host, MAIN).container_id
    report = program.answer(
        "up", TWIN_RECIPE, "--name", MAIN, "--yes", "--set", "serve.max_num_seqs=2"
    )
    after = container(host, MAIN)
    assert report["changed"] is True
    assert after.container_id != before
    assert host.find_container(f"sparkdeploy-{MAIN}-replaced") is None
    assert after.labels[labels.RECIPE] == TWIN_RECIPE


def test_an_engine_that_hangs_while_it_serves_is_started_again(
    program: Program, host: DockerHost
) -> None:
    served = Served(host, MAIN, PORT)
    with served.somebody_waits():
        until(lambda: is_busy(PORT), timeout_s=10)
        os.kill(served.engine_core(), signal.SIGSTOP)
        said = served.ended(within_s=STALL_S + LATE_S)
    assert "Fatal Python error: Aborted" in said
    assert "run_busy_loop" in said
    assert "stalled" in program.run("status").stdout


def test_a_stop_by_signal_is_passed_on_to_vllm(program: Program, host: DockerHost) -> None:
    fact = container(host, MAIN)
    subprocess.run(["docker", "kill", "-s", signal.Signals.SIGTERM.name, fact.name], check=True)
    until(lambda: not container(host, MAIN).is_running)
    assert program.run("down", "--yes", MAIN).returncode == 0
    assert host.find_container(f"sparkdeploy-{MAIN}") is None
