"""`bench campaign baseline v2 --quick` on a twin with the real vLLM, killed and resumed."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.bench.campaign.bundle import read_bundle
from sparkdeploy.bench.campaign.folder import unfinished
from sparkdeploy.bench.campaign.state import StepEnding, StepKind
from tests.engine.conftest import free_port
from tests.engine.vllm.twin_user import TWIN_RECIPE, twin_user, unique_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkdeploy.node.host import DockerHost
    from tests.engine.program import Program

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.runs("bench", "checkpoint", "down", "up"),
]

NAME = unique_name("campaign")
PORT = free_port()
CONTEXT_BEFORE, CONTEXT = 2048, 3072
KILLED_AFTER = (StepKind.FIVE, StepKind.NEEDLE)
"""Of the first recipe; the third moment is the second recipe's start."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    made = twin_user(tmp_path_factory.mktemp("campaign"), port=PORT, max_model_len=CONTEXT_BEFORE)
    yield made
    made.run("down", NAME)


def arguments(root: Path) -> tuple[str, ...]:
    sets = (
        "engine=cpu-0.32",
        f"model.path={root / 'twin'}",
        "serve.attention_backend=null",
        f"serve.max_model_len={CONTEXT}",
        "serve.enforce_eager=true",
        "serve.enable_prefix_caching=false",
        f"serve.port={PORT}",
        "limits.memory_floor_gib=1",
        "limits.startup_timeout_s=600",
    )
    return (
        *("bench", "campaign", "baseline", "v2", "--quick", "--yes", "--name", NAME),
        *(word for item in sets for word in ("--set", item)),
    )


def killed_when(program: Program, done: tuple[int, StepKind]) -> None:
    """Run it until a step of a recipe has ended, and kill it in the next one."""
    recipe, kind = done
    process = program.start(*arguments(program.root))
    while process.poll() is None:
        found = unfinished(program.root / "state")
        if found is not None and found[1].recipes[recipe].ending_of(kind) is not None:
            break
        time.sleep(0.2)
    time.sleep(1)
    process.send_signal(signal.SIGKILL)
    _, stderr = process.communicate()
    assert process.returncode == -signal.SIGKILL, stderr


def test_killed_at_three_moments_it_comes_to_its_report_and_what_served_is_back(
    program: Program, host: DockerHost
) -> None:
    program.answer("up", TWIN_RECIPE, "--name", NAME, "--yes")
    before = host.find_container(f"sparkdeploy-{NAME}")
    assert before is not None

    for kind in KILLED_AFTER:
        killed_when(program, (0, kind))
    killed_when(program, (1, StepKind.DOCTOR))
    done = program.run(*arguments(program.root))

    (folder,) = (program.root / "state" / "campaigns").glob("*/")
    told = f"{done.stdout}\n{done.stderr}"
    after = host.find_container(f"sparkdeploy-{NAME}")
    assert after is not None, told
    assert after.is_running
    assert after.fingerprint == before.fingerprint
    bundle = read_bundle(folder / "bundle.json")
    assert len(bundle.runs) == 2, told
    for recipe in bundle.recipes:
        endings = {step.step: step.ending for step in recipe.steps}
        # A twin's text calls no tools and finds no needle; the steps are done all the same.
        assert set(endings.values()) == {StepEnding.DONE.value}, told
        assert recipe.run is not None
        assert [suite.name for suite in recipe.run.suites] == ["five", "decode", "load", "load"]
    assert done.returncode == 0, told
    quality = bundle.recipes[1].quality
    assert quality is not None
    assert quality.against == "baseline"
    page = (folder / "report.html").read_text()
    assert 'id="campaign"' in page
    first_screen = page.partition("<figure")[0]
    assert "the gate beside baseline" in first_screen
    assert "(bench load, conversations in an open loop)" in first_screen
    assert str(program.root) not in page + (folder / "bundle.json").read_text()
