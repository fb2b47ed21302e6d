"""A recipe of a git source, its image by a tag and its mod, served by the real vLLM.

The image is the CPU engine's, under a name in a real registry, as a stranger would publish it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import docker
import pytest

from sparkdeploy.image.stages import UPPERMOST_FIRST
from tests.engine.conftest import free_port
from tests.engine.lab_registry import LabRegistry
from tests.engine.shipped_stages import shipped_stages
from tests.engine.vllm.twin_user import twin_user, unique_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkdeploy.node.host import DockerHost
    from tests.engine.program import Program

pytestmark = [
    pytest.mark.docker,
    pytest.mark.in_order,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.runs("down", "plan", "recipe", "up"),
]

NAME, PORT, LAB_ENGINE = unique_name("tagged"), free_port(), unique_name("lab")
ENGINE = f"""\
schema: 1
name: {LAB_ENGINE}
title: an image of others for CPUs
kind: image
vllm: 0.32.0
device: cpu
"""
THEIRS = """\
recipe_version: "1"
name: Twin
model: lab/twin
container: {image}
mods: [mods/owned-by]
defaults: {{port: 8000, host: 0.0.0.0, max_model_len: 1024}}
command: |
  vllm serve lab/twin --host {{host}} --port {{port}} --max-model-len {{max_model_len}} \\
    --enforce-eager --no-enable-prefix-caching --max-num-seqs 2 --language-model-only
"""
MOD = """\
#!/bin/bash
set -e
cd /usr/local/lib/python3.12/dist-packages/vllm
file=$(grep -rl 'owned_by: str = "vllm"' entrypoints | head -1)
sed -i 's/owned_by: str = "vllm"/owned_by: str = "a mod"/' "$file"
echo "changed $file"
"""
CONSENT = ("--allow-unsafe", "--set", f"engine={LAB_ENGINE}")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabRegistry]:
    folder = tmp_path_factory.mktemp("registry")
    made = LabRegistry(folder / "settings", folder / "data", free_port())
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def image(registry: LabRegistry) -> str:
    """Publish the engine's image under a tag, which then means nothing here."""
    name = f"{registry.address}/lab/vllm"
    with contextlib.closing(docker.from_env(timeout=900)) as client:
        client.images.get(shipped_stages()[1].tag).tag(name, "v0.32.0")
        said = client.images.push(name, "v0.32.0")
        assert '"error"' not in said, said
        client.images.remove(f"{name}:v0.32.0")
    return f"{name}:v0.32.0"


@pytest.fixture(scope="module")
def program(
    tmp_path_factory: pytest.TempPathFactory, image: str, host: DockerHost
) -> Iterator[Program]:
    made = twin_user(tmp_path_factory.mktemp("tagged"), port=PORT)
    engines = made.root / "config" / "recipes" / "engines"
    engines.mkdir()
    (engines / f"{LAB_ENGINE}.yaml").write_text(ENGINE)
    publish(made.root / "origin", image)
    yield made
    made.run("down", "--yes", NAME)
    for built in sorted(host.own_images(), key=lambda it: UPPERMOST_FIRST.get(it.stage, 4)):
        if built.engine == LAB_ENGINE:
            for tag in built.tags:
                host.remove_image(tag)


def publish(origin: Path, image: str) -> None:
    (origin / "mods" / "owned-by").mkdir(parents=True)
    (origin / "mods" / "owned-by" / "run.sh").write_text(MOD)
    (origin / "twin.yaml").write_text(THEIRS.format(image=image))
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(origin), *words], check=True)


def test_it_asks_for_consent_to_image_and_mod(program: Program) -> None:
    added = program.run("recipe", "source", "add", "lab", str(program.root / "origin"))
    assert added.returncode == 0, added.stderr
    done = program.run("plan", "lab/twin")
    assert done.returncode == 3
    for words in ("a mod runs as root", "an image is code of others"):
        assert words in done.stderr


def test_it_serves_with_what_the_mod_changed(program: Program) -> None:
    model = ("--set", f"model.path={program.root / 'twin'}", "--set", f"port={PORT}")
    report = program.answer("up", "lab/twin", *CONSENT, *model, "--name", NAME, "--yes")
    assert report["base_url"] == f"http://127.0.0.1:{PORT}"
    with urllib.request.urlopen(f"{report['base_url']}/v1/models", timeout=30) as answer:
        assert {model["owned_by"] for model in json.load(answer)["data"]} == {"a mod"}
    again = program.run("up", "lab/twin", *CONSENT, *model, "--name", NAME)
    assert "nothing to do" in again.stderr


def test_the_plan_says_what_the_image_holds(program: Program) -> None:
    told = program.answer("plan", "lab/twin", *CONSENT, "--name", NAME)
    assert told["image"]["holds"]["vllm"].startswith("0.32.0")
    assert told["image"]["holds"]["torch"]
    assert [step["stage"] for step in told["images"]] == ["engine", "mod", "guard"]
    assert {step["action"] for step in told["images"]} == {"reuse"}
