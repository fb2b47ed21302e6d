"""Every kind of recipe in miniature, with the real vLLM in real Docker."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from sparkdeploy.apply.rehearse import RECORDED_EARLIER, SERVED_BEFORE
from sparkdeploy.recipe.miniature import DRAFT_ROWS
from tests.engine.program import Program

if TYPE_CHECKING:
    from sparkdeploy.node.host import DockerHost

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800), pytest.mark.usefixtures("host")]

LAYERS = 4
FP8_LAYERS = 3 * LAYERS


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """One user for all rehearsals, so that a text recorded by one serves the next."""
    return Program(tmp_path_factory.mktemp("rehearsals"))


def check_answers(report: dict[str, Any]) -> None:
    assert all(answer["tokens"] == 32 and answer["text"] for answer in report["answers"])
    assert report["tokens_a_second"] > 0


def test_baseline_serves_the_untouched_checkpoint(program: Program) -> None:
    report = program.answer("rehearse", "baseline")
    check_answers(report)
    assert report["lm_head"] is None
    assert report["speculation"] is None


def test_hybrid_converts_three_layers_a_layer(program: Program) -> None:
    report = program.answer("rehearse", "hybrid")
    check_answers(report)
    assert (report["fp8_layers"], report["lm_head"]) == (FP8_LAYERS, "bf16")


@pytest.mark.parametrize("tokens", [1, 2])
def test_mtp_drafts_and_says_what_hybrid_said_without_it(program: Program, tokens: int) -> None:
    report = program.answer("rehearse", f"mtp-{tokens}")
    check_answers(report)
    drafted = report["speculation"]
    assert drafted["draft_tokens"] == tokens * drafted["drafts"] > 0
    assert drafted["accepted_tokens"] > 0
    assert report["reference"] == RECORDED_EARLIER


def test_v2_has_an_int8_head_and_makes_its_own_reference(program: Program) -> None:
    report = program.answer("rehearse", "v2")
    check_answers(report)
    assert (report["fp8_layers"], report["lm_head"]) == (FP8_LAYERS, "int8")
    assert report["reference"] == SERVED_BEFORE


def test_a_draft_head_changes_no_text_builds_nothing_and_leaves_nothing(
    program: Program, host: DockerHost
) -> None:
    """The rehearsal of v2 before it has recorded the text without a drafter."""
    images = {image.image_id for image in host.own_images()}
    head = "checkpoint.draft_lm_head={rows: 32768, dtype: int8}"
    done = program.run("rehearse", "v2", "--set", head, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    check_answers(report)
    assert (report["fp8_layers"], report["lm_head"]) == (FP8_LAYERS, "int8")
    assert report["draft_head_rows"] == DRAFT_ROWS
    assert report["reference"] == RECORDED_EARLIER
    drafted = report["speculation"]
    print(f"accepted {drafted['accepted_tokens']} of {drafted['draft_tokens']} drafted tokens")
    assert 0 < drafted["accepted_tokens"] <= drafted["draft_tokens"]
    assert len(re.findall(r"^  = image ", done.stderr, re.MULTILINE)) == 3
    assert "  + image" not in done.stderr
    assert {image.image_id for image in host.own_images()} == images
    assert [item.name for item in host.own_containers() if item.deployment == "rehearsal"] == []
