"""The last lines of `rehearse`: a server that stays is one that can be asked at once."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from sparkdeploy.cli.deployments import _rehearsal_lines
from sparkdeploy.rehearsal.rehearse import CONVERTED, NOT_COMPARED, Report
from sparkdeploy.server.facts import EngineFacts

REPORT = Report(
    recipe="v2",
    changes=(),
    startup_s=50.0,
    answers=(),
    speculation=None,
    facts=EngineFacts(lm_head="int8", fp8_layers=144),
    reference=NOT_COMPARED,
    base_url="http://127.0.0.1:18152",
    endpoint="/v1/chat/completions",
    model="qwen",
    is_kept=True,
    deployment="rehearsal",
    asked=(),
    proved=("start",),
    not_proved="weights",
)


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/embeddings"])
def test_a_rehearsal_that_is_kept_ends_with_a_request(endpoint: str) -> None:
    *_, last = _rehearsal_lines(replace(REPORT, endpoint=endpoint))
    tried, *words = shlex.split(last)
    assert (tried, words[0]) == ("try:", "curl")
    assert f"http://127.0.0.1:18152{endpoint}" in words
    assert json.loads(words[-1])["model"] == "qwen"


def test_one_that_was_taken_down_proposes_nothing() -> None:
    assert not [line for line in _rehearsal_lines(replace(REPORT, is_kept=False)) if "curl" in line]


def test_the_conversion_is_in_the_lines_and_in_the_json() -> None:
    assert "  converted: 144 FP8 layers, LM head int8" in _rehearsal_lines(REPORT)
    content = json.loads(json.dumps(REPORT.as_dict(), default=str))
    assert (content["fp8_layers"], content["lm_head"]) == (144, "int8")
    assert set(CONVERTED) < content.keys()
    assert "facts" not in content
    assert content["is_compared"] is False
