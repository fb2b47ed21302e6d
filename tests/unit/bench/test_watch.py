"""The machine and the server's counters, as they are read while a suite runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkdeploy.bench.watch import (
    BenchWatch,
    Reading,
    difference,
    kv_usage,
    machine_watch,
    together,
)
from sparkdeploy.errors import NodeError, UnhealthyError
from sparkdeploy.node.facts import LOAD_QUERY, GpuLoad, parse_gpu_load
from sparkdeploy.server.metrics import Speculation, read_metrics
from sparkdeploy.shell import Completed

METRICS = """\
vllm:kv_cache_usage_perc{{engine="0",model_name="qwen"}} {usage}
vllm:prompt_tokens_total{{engine="0"}} {prompt}
vllm:generation_tokens_total{{engine="0"}} {tokens}
vllm:num_preemptions_total{{engine="0"}} 0.0
vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}
vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafted}
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="1"}} {second}
"""


def exposition(scale: int, usage: float = 0.25) -> str:
    return METRICS.format(
        usage=usage,
        prompt=9 * scale,
        tokens=100 * scale,
        drafts=40 * scale,
        drafted=80 * scale,
        accepted=60 * scale,
        first=36 * scale,
        second=24 * scale,
    )


@dataclass
class RecordedMachine:
    """A Spark as nvidia-smi and /proc tell of it."""

    gpu: str | None = "2411, 66, 44.12\n"
    available_kib: list[int] = field(default_factory=lambda: [9_000_000])

    def read_file(self, path: str) -> str:
        assert path == "/proc/meminfo"
        if not self.available_kib:
            raise NodeError("no such file")
        return f"MemTotal: 125000000 kB\nMemAvailable:   {self.available_kib[0]} kB\n"

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        assert tuple(argv) == LOAD_QUERY
        if self.gpu is None:
            raise NodeError("nvidia-smi is not installed")
        return Completed(tuple(argv), 0, self.gpu, "")


def test_load_is_read_and_what_the_driver_does_not_say_is_none() -> None:
    assert parse_gpu_load("2411, 66, 44.12\n") == GpuLoad(2411, 66, 44.12)
    assert parse_gpu_load("2411, 66, [N/A]\n1, 2, 3\n") == GpuLoad(2411, 66, None)
    assert parse_gpu_load("Failed to initialize NVML") is None


def test_kv_usage_is_read_in_the_names_of_old_and_new_versions() -> None:
    assert kv_usage(exposition(1)) == 0.25
    assert kv_usage('vllm:gpu_cache_usage_perc{a="b"} 0.5\n') == 0.5
    assert kv_usage("nothing 1\n") is None


def test_a_watch_sees_the_machine_and_the_cache() -> None:
    now = iter((1.0, 2.0))
    machine = RecordedMachine()
    watch = BenchWatch(machine, lambda: exposition(1), clock=lambda: next(now))
    watch.look()
    machine.available_kib = [4_000_000]
    watch.look()
    readings = watch.between(0.0, 5.0)
    seen = machine_watch(readings)
    assert seen is not None
    assert seen.readings == 2
    assert seen.memory_floor_bytes == 4_000_000 * 1024
    assert seen.sm_clock_mhz is not None
    assert seen.sm_clock_mhz.median == 2411
    assert [reading.kv_usage for reading in readings] == [0.25, 0.25]


def test_a_server_that_does_not_answer_meanwhile_has_no_usage() -> None:
    def refuse() -> str:
        raise UnhealthyError("gone")

    watch = BenchWatch(None, refuse, clock=lambda: 1.0)
    watch.look()
    (reading,) = watch.between(0.0, 2.0)
    assert reading.kv_usage is None


def test_counters_are_differences_added_up() -> None:
    counters = [read_metrics(exposition(scale)) for scale in (1, 3, 4)]
    first, second, third = counters
    assert first is not None
    assert second is not None
    assert third is not None
    readings = [Reading(1.0), Reading(2.0, kv_usage=0.75), Reading(3.0, kv_usage=0.5)]
    summed = together([difference(first, second), difference(second, third)], readings)
    assert summed is not None
    assert (summed.prompt_tokens, summed.generation_tokens, summed.preemptions) == (27, 300, 0)
    assert summed.drafted is not None
    assert summed.drafted == Speculation(120, 240, 180, (108, 72))
    assert (summed.kv_usage_before, summed.kv_usage_peak) == (0.25, 0.75)
