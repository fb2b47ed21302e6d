"""A recipe of sparkrun's format, as its author wrote it, served by the real vLLM.

It serves embeddings, so that one start also shows how a model is met that writes no text.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import free_port
from tests.engine.program import Program
from tests.engine.vllm.twin_user import twin_user, unique_name
from tests.unit.conftest import REPOSITORY

pytestmark = [
    pytest.mark.docker,
    pytest.mark.in_order,
    pytest.mark.timeout(1200),
    pytest.mark.runs("bench", "down", "plan", "up"),
]

NAME, PORT = unique_name("theirs"), free_port()
THEIRS = """\
recipe_version: "2"
name: A twin of theirs
model: lab/twin
container: vllm-node
runtime: vllm
max_nodes: 1
volumes: ["{twin}:/model:ro"]
defaults:
  port: 8000
  host: 0.0.0.0
  max_model_len: 1K
  served_model_name: twin lab/twin
command: |
  # Words of the author's.
  vllm serve /model \\
    --served-model-name {{served_model_name}} \\
    --host {{host}} --port {{port}} \\
    --max-model-len {{max_model_len}} \\
    --runner pooling --trust-remote-code --enforce-eager --no-enable-prefix-caching \\
    --max-num-seqs 2 2>&1 | tee log
"""
ENGINE = ("--set", "engine=cpu-0.32")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    made = twin_user(tmp_path_factory.mktemp("foreign"), port=PORT)
    yield made
    made.run("down", "--yes", NAME)


@pytest.fixture(scope="module")
def theirs(program: Program) -> Path:
    path = program.root / "theirs.yaml"
    path.write_text(THEIRS.format(twin=program.root / "twin"))
    return path


def test_it_is_refused_until_the_user_agrees(program: Program, theirs: Path) -> None:
    done = program.run("plan", str(theirs), *ENGINE, "--check")
    assert done.returncode == 3
    assert "your consent" in done.stderr
    assert "`up` asks for your consent to" in program.run("plan", str(theirs), *ENGINE).stdout


@pytest.mark.slow
def test_it_is_served_with_a_parameter_of_its_own(program: Program, theirs: Path) -> None:
    words = ("up", str(theirs), *ENGINE, "--set", f"port={PORT}", "--allow-unsafe")
    report = program.answer(*words, "--name", NAME, "--yes")
    assert report["base_url"] == f"http://127.0.0.1:{PORT}"
    assert report["endpoint"] == "/v1/embeddings"
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v1/models", timeout=30) as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == ["twin", "lab/twin"]


@pytest.mark.slow
def test_its_embeddings_are_measured(program: Program, theirs: Path) -> None:
    """The line is the one of docs/bench.md, in the container that serves."""
    page = (REPOSITORY / "docs" / "bench.md").read_text()
    (line,) = re.findall(r"^docker exec .+ vllm bench serve .+$", page, re.MULTILINE)
    shown = program.run("plan", str(theirs), *ENGINE, "--allow-unsafe", "--show", "args").stdout
    for name, value in {"NAME": NAME, "FOLDER": shlex.split(shown)[2], "MODEL": "twin"}.items():
        line = re.sub(rf"\b{name}\b", value, line)
    line = line.replace(":8000", f":{PORT}").replace("--num-prompts 256", "--num-prompts 4")
    done = subprocess.run(shlex.split(line), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Successful requests: +4 ", done.stdout), done.stdout


@pytest.mark.slow
def test_a_suite_that_needs_text_says_so(program: Program) -> None:
    done = program.run("bench", NAME, "--rounds", "1")
    assert done.returncode == 8
    assert "vllm bench serve --backend openai-embeddings" in done.stderr
