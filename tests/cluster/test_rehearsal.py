"""The real vLLM over two machines: the same greedy text as on one."""

from __future__ import annotations

import pytest

from sparkdeploy.rehearsal.rehearse import FIRST_OF_ITS_KIND, RECORDED_EARLIER, SERVED_BEFORE
from tests.cluster.conftest import Program, docker_of
from tests.cluster.machines import Machine
from tests.engine.recorded_texts import recorded_texts

pytestmark = [
    pytest.mark.docker,
    # Three starts of the real vLLM, after whoever has the turn: that may take ten minutes.
    pytest.mark.timeout(2400),
    pytest.mark.usefixtures("cpu_engine"),
    pytest.mark.runs("rehearse"),
]
FP8_LAYERS = 12


def test_baseline_over_two_nodes_says_what_one_node_says(
    program: Program, head: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with recorded_texts(tmp_path_factory, head.own / "home" / "state") as recorded:
        report = program.answer("rehearse", "baseline", "--cluster")
    assert all(answer["tokens"] == 32 and answer["text"] for answer in report["answers"])
    # One machine's text, where the rehearsals of one machine were before this.
    assert report["reference"] == (FIRST_OF_ITS_KIND if recorded else RECORDED_EARLIER)


@pytest.mark.slow
def test_v2_over_two_nodes_says_what_one_node_says(
    program: Program, head: Machine, worker: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with recorded_texts(tmp_path_factory, head.own / "home" / "state") as recorded:
        report = program.answer("rehearse", "v2", "--cluster")
    assert all(answer["tokens"] == 32 and answer["text"] for answer in report["answers"])
    drafted = report["speculation"]
    assert drafted["draft_tokens"] == 2 * drafted["drafts"] > 0
    assert (report["fp8_layers"], report["lm_head"]) == (FP8_LAYERS, "int8")
    # One machine's text, without a drafter.
    assert report["reference"] == (SERVED_BEFORE if recorded else RECORDED_EARLIER)
    for machine in (head, worker):
        with docker_of(machine) as host:
            assert host.own_containers() == (), machine.name
