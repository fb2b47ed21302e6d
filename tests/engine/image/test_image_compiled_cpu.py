"""vLLM compiled from its sdist in the product's own way, for a CPU, and a model served with it.

For a GPU it could be compiled nowhere: nvcc and the kernels' sources were out of reach. This is all
of the way but those. docs/figures/engines.md has what it took.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator

import pytest
import requests

from sparkdeploy.checkpoint.published import PublishedConfig
from sparkdeploy.image.compilation import compile_wheel
from sparkdeploy.image.network import has_torch_at_hand
from sparkdeploy.node.facts import architecture
from sparkdeploy.node.host import DockerHost
from sparkdeploy.rehearsal.stand_in import make_stand_in
from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.console import console
from tests.engine.conftest import free_port
from tests.engine.image.narrow_build import ENGINE, narrow_stages, narrowed
from tests.engine.program import NARROW_COMMAND, Program
from tests.engine.shipped_stages import build_all, shipped_stages
from tests.engine.turns import vllm_turn
from tests.engine.vllm.twin_user import unique_name
from tests.families import config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * 3600), pytest.mark.runs("down", "up")]
NAME, MODEL = unique_name("compiled"), "tiny"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, host: DockerHost) -> Iterator[Program]:
    """A user whose engine's wheel is compiled; what was built of it goes again."""
    if architecture() != "x86_64":
        pytest.skip("what is compiled here is for processors with AVX2")
    settings, root = load_settings(), tmp_path_factory.mktemp("compiled")
    if not has_torch_at_hand(shipped_stages()[1], settings):
        pytest.skip("torch's build for CPUs is out of reach")
    resources = root / "resources"
    made = Program(root, {"SPARKDEPLOY_RESOURCES": str(resources)}, command=NARROW_COMMAND)
    stages = narrow_stages(resources, settings.build)
    try:
        build_all(host, stages[:1], settings)
        with console.step("wheel") as step:
            wheel = compile_wheel(host, narrowed(stages[1]), load_settings(made.env), step)
        with zipfile.ZipFile(wheel) as content:
            full, empty = (content.getinfo(f"vllm/_C_AVX{it}.abi3.so") for it in ("2", "512"))
        assert full.file_size > 50 * empty.file_size
        yield made
    finally:
        for stage in reversed(stages):
            host.remove_image(stage.tag)


def test_a_model_is_served_with_what_was_compiled(program: Program) -> None:
    _write_recipe(program)
    with vllm_turn():
        try:
            report = program.answer("up", MODEL, "--name", NAME, "--yes")
            body = {"model": MODEL, "prompt": "Once", "max_tokens": 8, "ignore_eos": True}
            url = f"{report['base_url']}/v1/completions"
            answer = requests.post(url, json=body, timeout=300).json()
        finally:
            program.run("down", "--yes", NAME)
    assert answer["usage"]["completion_tokens"] == 8


def _write_recipe(program: Program) -> None:
    model = program.root / "model"
    make_stand_in(model, PublishedConfig(config("llama"), "of the tests"), MODEL)
    file = program.root / "config" / "recipes" / f"{MODEL}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(
        f"schema: 1\nname: {MODEL}\ntitle: A llama with dummy weights\nengine: {ENGINE}\n"
        f"model: {{path: {model}, served_name: {MODEL}}}\n"
        f"serve: {{port: {free_port()}, max_model_len: 1024, enforce_eager: true, "
        "load_format: dummy}\n"
        "limits: {memory_floor_gib: 1, startup_timeout_s: 1800}\n"
    )
