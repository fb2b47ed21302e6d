"""`bench quality` on twins: v2 beside one whose shared experts are INT4, made right and wrong."""

from __future__ import annotations

import contextlib
import json
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparkdeploy.checkpoint.safetensors import read_header
from tests.engine.conftest import free_port, model_at, until
from tests.engine.vllm.extended_twin import Extension, call, is_serving, start
from tests.engine.vllm.twin_user import twin_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.node.host import DockerHost
    from tests.engine.program import Program

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.runs("bench", "checkpoint"),
]

CHECKS = Path(__file__).parents[1] / "inside" / "plugin_checks"
EXTENSION = Extension(CHECKS / "shared_swaps.py", "SharedExpertSwaps")
INT4 = ("checkpoint.shared_experts=int4", "checkpoint.fp8_dense.mode=off")
GROUP, EXPONENT = 128, 0x7F80
SHIFT = 6 << 7
"""Of a BF16 number's bits: times 64."""
MADE = ("right", "one", "all")
LAYERS_OF_VLLM = str(2 * 4)
"""Gate and up are one; of each of the twin's layers."""
LINE = "fp8=0 layers, lm_head=int8, int4=12 layers of shared experts"


@dataclass(frozen=True)
class Captures:
    """What twins said: v2's, and one with INT4 shared experts of each kind."""

    program: Program

    def take(self, port: int, kind: str) -> None:
        file = self.program.root / f"{kind}.json"
        options = ("--texts", "3", "--tokens", "16", "--save", str(file))
        done = self.program.run("bench", "quality", "--url", f"http://127.0.0.1:{port}", *options)
        assert done.returncode == 0, done.stderr

    def compare(self, kind: str, *options: str) -> tuple[int, dict[str, Any]]:
        """Hold a kind against v2; return the exit code and the report."""
        sides = (str(self.program.root / f"{name}.json") for name in ("v2", kind))
        done = self.program.run("bench", "quality", *sides, "--gate", "--json", *options)
        return done.returncode, json.loads(done.stdout)


@contextlib.contextmanager
def served(host: DockerHost, root: Path, port: int, *assignments: str) -> Iterator[str]:
    """Serve the twin with settings of `--set`; its log so far."""
    container_id = start(host, root, EXTENSION, *assignments)
    try:
        with model_at(port) as model:
            until(lambda: is_serving(host, container_id, model), timeout_s=600)
        yield b"".join(host.logs(container_id)).decode()
    finally:
        host.remove(container_id)


@pytest.fixture(scope="module")
def captures(host: DockerHost, tmp_path_factory: pytest.TempPathFactory) -> Captures:
    port = free_port()
    program = twin_user(tmp_path_factory.mktemp("shared"), port=port)
    make_groups_uneven(program.root / "twin")
    made = Captures(program)
    with served(host, program.root, port) as log:
        assert "fp8=12 layers, lm_head=int8" in log
        made.take(port, "v2")
    with served(host, program.root, port, *INT4) as log:
        assert LINE in log
        for kind in MADE:
            # The first is what loading made, untouched.
            made_anew = call(port, "swap_scales", kind) if kind != MADE[0] else None
            assert made_anew in (None, [LAYERS_OF_VLLM])
            made.take(port, kind)
    return made


def make_groups_uneven(twin: Path) -> None:
    """Multiply what goes into each first group of `down_proj` and divide the group by as much.

    By a power of two, which changes no bit of what the twin says. Groups of a random matrix have
    nearly the same scales, and one with its neighbour's would be hard to tell from rounding.
    """
    for path in sorted(twin.glob("*.safetensors")):
        header = read_header(path)
        content = bytearray(path.read_bytes())
        for name, info in header.tensors.items():
            part = name.rpartition(".mlp.shared_expert.")[2]
            if name.startswith("mtp.") or part not in ("up_proj.weight", "down_proj.weight"):
                continue
            begin, end = (header.data_offset + place for place in (info.begin, info.end))
            values = array("H", content[begin:end])
            columns, is_up = info.shape[1], part == "up_proj.weight"
            for index, value in enumerate(values):
                place = index // columns if is_up else index % columns
                if place < GROUP and value & EXPONENT:
                    values[index] = value + SHIFT * (1 if is_up else -1)
            content[begin:end] = values.tobytes()
        path.write_bytes(content)


def test_shared_experts_of_int4_pass_the_gate(captures: Captures) -> None:
    code, report = captures.compare("right")
    print({key: report[key]["value"] for key in ("mean_kl_nats", "drift_nats")})
    assert code == 0
    assert report["gate"] == {"passed": True, "failures": []}
    assert report["top1_agreement"]["value"] == 1.0
    assert 0 < report["mean_kl_nats"]["high"] < 1e-5
    assert report["drift_nats"]["value"] > 0.01, "something has become INT4"
    assert all(item["first_difference"] is None for item in report["greedy"])


def test_scales_of_two_groups_that_were_swapped_do_not(captures: Captures) -> None:
    code, report = captures.compare("all")
    print({key: report[key]["value"] for key in ("top1_agreement", "mean_kl_nats")})
    assert code == 8
    assert {text.split()[0] for text in report["gate"]["failures"]} == {"top-1", "mean"}
    assert report["mean_kl_nats"]["low"] > 0.1


def test_one_output_s_swapped_scales_are_found_by_drift(captures: Captures) -> None:
    """The twin's text is decided by margins that a channel in 128 does not close."""
    _, right = captures.compare("right")
    limit = ("--max-drift", str(4 * right["drift_nats"]["value"]))
    assert captures.compare("right", *limit)[0] == 0
    assert captures.compare("one")[0] == 0
    code, report = captures.compare("one", *limit)
    assert code == 8
    assert [text.split()[0] for text in report["gate"]["failures"]] == ["drift"]
