"""Rehearsals on the aarch64 CPU engine, built by the product and emulated as its containers are.

`./tests/run --arm` runs these; docs/figures/engines.md has what they took.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sparkdeploy.node import facts
from sparkdeploy.node.host import DockerHost
from sparkdeploy.rehearsal.rehearse import FIRST_OF_ITS_KIND, SERVED_BEFORE
from sparkdeploy.settings import load_settings
from tests.engine.arm_torch import cpu_wheel
from tests.engine.emulated import emulated_engine, skip_where_nothing_is_emulated
from tests.engine.program import Program
from tests.engine.shipped_stages import REHEARSAL
from tests.engine.turns import vllm_turn

pytestmark = [pytest.mark.arm, pytest.mark.timeout(4 * 3600), pytest.mark.runs("rehearse")]
EMULATED = (sys.executable, "-m", "tests.engine.emulated_cli")
FP8_LAYERS = 12


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, host: DockerHost) -> Iterator[Program]:
    """The program on a machine that has the engine for aarch64 and runs it."""
    skip_where_nothing_is_emulated()
    wheels = cpu_wheel(tmp_path_factory.mktemp("torch"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARKDEPLOY_WHEELHOUSE", str(wheels))
        settings = load_settings()
    with emulated_engine(REHEARSAL, settings) as made:
        # Images have it now, and pytest keeps folders for days.
        shutil.rmtree(wheels)
        for stage in made:
            image = host.find_image(stage.tag)
            assert image is not None
            assert facts.known_architecture(image.architecture) == "aarch64"
        root = tmp_path_factory.mktemp("emulated")
        with vllm_turn():
            yield Program(root, command=EMULATED, longest_run_s=2 * 3600)


def rehearsed(program: Program, recipe: str) -> dict[str, Any]:
    report: dict[str, Any] = program.answer("rehearse", recipe)
    print(recipe, f"{report['startup_s']:.0f} s, {report['tokens_a_second']:.2f} tokens a second")
    assert all(answer["tokens"] == 32 and answer["text"] for answer in report["answers"])
    return report


def test_baseline_serves_the_untouched_checkpoint(program: Program) -> None:
    report = rehearsed(program, "baseline")
    assert report["reference"] == FIRST_OF_ITS_KIND
    assert (report["fp8_layers"], report["lm_head"]) == (None, None)


def test_v2_drafts_behind_an_int8_head_and_says_what_it_said_without(program: Program) -> None:
    report = rehearsed(program, "v2")
    assert report["reference"] == SERVED_BEFORE
    assert (report["fp8_layers"], report["lm_head"]) == (FP8_LAYERS, "int8")
    drafted = report["speculation"]
    assert drafted["draft_tokens"] == 2 * drafted["drafts"] > 0
    assert drafted["accepted_tokens"] > 0
