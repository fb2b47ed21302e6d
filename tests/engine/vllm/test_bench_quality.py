"""`bench quality` on a served twin whose LM head is right, wrong on purpose, and too coarse."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import free_port, model_at, until
from tests.engine.program import Program
from tests.engine.vllm.extended_twin import Extension, call, is_serving, start
from tests.engine.vllm.twin_user import twin_user

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.runs("bench", "checkpoint"),
]

SWAPS = Path(__file__).parents[1] / "inside" / "plugin_checks" / "head_swaps.py"
HEADS = ("bf16", "loaded", "shifted", "coarse")
EXTENSION = Extension(SWAPS, "HeadSwaps")


@dataclass(frozen=True)
class Captures:
    """What the one server said with each of its heads."""

    program: Program
    folder: Path

    def compare(self, head: str, *options: str) -> tuple[int, dict[str, Any]]:
        """Hold a head against the untouched one; return the exit code and the report."""
        sides = (str(self.folder / f"{name}.json") for name in ("bf16", head))
        done = self.program.run("bench", "quality", *sides, "--gate", "--json", *options)
        return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def captures(host: DockerHost, tmp_path_factory: pytest.TempPathFactory) -> Captures:
    """Serve once, and capture each head in turn: a start takes longer than all captures."""
    port = free_port()
    program = twin_user(tmp_path_factory.mktemp("quality"), port=port)
    container_id = start(host, program.root, EXTENSION)
    try:
        with model_at(port) as model:
            until(lambda: is_serving(host, container_id, model), timeout_s=600)
        for head in HEADS:
            swap_head(port, head)
            file = program.root / f"{head}.json"
            options = ("--texts", "3", "--tokens", "16", "--save", str(file))
            done = program.run("bench", "quality", "--url", f"http://127.0.0.1:{port}", *options)
            assert done.returncode == 0, done.stderr
    finally:
        host.remove(container_id)
    return Captures(program, program.root)


def swap_head(port: int, head: str) -> None:
    expected = "torch.bfloat16" if head == "bf16" else "torch.int8"
    assert call(port, "swap_head", head) == [expected]


def test_the_right_int8_head_passes(captures: Captures) -> None:
    code, report = captures.compare("loaded")
    assert code == 0
    assert report["gate"] == {"passed": True, "failures": []}
    assert report["top1_agreement"]["value"] == 1.0
    assert all(item["first_difference"] is None for item in report["greedy"])


def test_a_head_with_its_scales_a_row_off_is_found(captures: Captures) -> None:
    code, report = captures.compare("shifted")
    assert code == 8
    assert report["top1_agreement"]["high"] < 0.97
    assert report["mean_kl_nats"]["low"] > 0.01
    assert any(item["first_difference"] is not None for item in report["greedy"])


def test_four_bits_are_found_by_drift_where_wide_margins_hide_them(captures: Captures) -> None:
    """The twin's text is decided by margins that four bits do not close."""
    _, right = captures.compare("loaded")
    limit = ("--max-drift", str(4 * right["drift_nats"]["value"]))
    assert captures.compare("loaded", *limit)[0] == 0
    assert captures.compare("coarse")[0] == 0
    code, report = captures.compare("coarse", *limit)
    assert code == 8
    assert [text.split()[0] for text in report["gate"]["failures"]] == ["drift"]
