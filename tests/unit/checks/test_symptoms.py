"""What grows slowly: the script's answer is read, and each rule judges at its limit."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.checks import machine
from sparkdeploy.checks.known import KnownBad, failing
from sparkdeploy.checks.report import Finding, Verdict
from sparkdeploy.node.container import NeighbourFact
from sparkdeploy.node.facts import THIS_MACHINE
from sparkdeploy.node.symptoms import (
    SCRIPT,
    GpuSample,
    HealthSample,
    SymptomFact,
    look_for_symptoms,
    read_symptoms,
)
from tests.unit.checks.recorded import load
from tests.unit.conftest import GiveProgram

GIB = 2**30
PAGE_BYTES = 4096
NO_MEMORY = "spark kernel: NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)"
LOADING = "spark kernel: NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  580.95.05"


def seen_on(name: str) -> SymptomFact:
    return read_symptoms(load(name).commands["{symptoms}"])


def all_of(seen: SymptomFact) -> list[Finding]:
    return [*machine.machine_symptoms(seen), *machine.gpu_symptoms(seen)]


def told_of(name: str) -> dict[str, Finding]:
    return {item.check: item for item in all_of(seen_on(name))}


def test_the_scripts_answer_is_read_whole() -> None:
    seen = seen_on("spark-in-trouble")
    assert [glance.at_s for glance in seen.samples] == [620000.0, 620000.7]
    assert seen.samples[1].swapped_in_pages == 48119100
    assert seen.samples[0].gpu == GpuSample("NVIDIA GB10", 96.0, 702.0, 3003.0, 18.36, 0)
    assert (seen.page_bytes, seen.stalled_percent) == (4096, 41.5)
    assert seen.kernel == "6.17.0-1008-nvidia"
    assert "quiet" in seen.kernel_options
    assert seen.firmware == {"BIOS": "5.36_0ACUM018"}
    assert "ollama" in seen.programs
    assert seen.driver_log is not None
    assert len(seen.driver_log) == 6


def test_this_very_machine_answers() -> None:
    seen = look_for_symptoms(THIS_MACHINE)
    assert len(seen.samples) == 2
    assert seen.samples[0].at_s < seen.samples[1].at_s
    assert (
        seen.kernel
        == subprocess.run(
            ["uname", "-r"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    assert sum(seen.free_blocks) > 0
    assert seen.page_bytes in {4096, 16384, 65536}
    assert seen.programs


def test_a_script_that_may_read_no_log_says_so_and_not_that_it_is_empty() -> None:
    # Without any program in reach neither journalctl nor dmesg answers.
    done = subprocess.run(
        ["/bin/sh", "-c", SCRIPT],
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    seen = read_symptoms(done.stdout)
    assert seen.driver_log is None
    found = {item.check: item.verdict for item in all_of(seen)}
    assert set(found.values()) == {Verdict.NOT_SEEN}


def test_programs_that_hang_cost_what_is_theirs_and_no_more(give_program: GiveProgram) -> None:
    for name, script in {
        "nvidia-smi": "exec sleep 60",
        "journalctl": "exec sleep 60",
        "dmesg": "",
    }.items():
        give_program(name, script)
    started_s = time.monotonic()
    done = subprocess.run(["/bin/sh", "-c", SCRIPT], capture_output=True, text=True, check=False)
    # 1.6 s are the script's own; the rest is for a machine that has much else to do.
    assert time.monotonic() - started_s < 10
    seen = read_symptoms(done.stdout)
    assert [glance.gpu for glance in seen.samples] == [None, None]
    assert seen.kernel is not None
    assert seen.driver_log is None


@given(st.text())
def test_no_answer_is_too_strange(text: str) -> None:
    for seen in (read_symptoms(text), read_symptoms(f"== look\n{text}\n== blocks\n{text}")):
        assert [item.check for item in all_of(seen)]


def test_words_say_what_was_seen() -> None:
    found = told_of("spark-in-trouble")
    assert "2 allocations" in found["gpu.driver_log"].seen
    assert "Xid 31 (a kernel read or wrote where it may not) 2 times" in found["gpu.xids"].seen
    assert (found["gpu.xids"].fix or "").startswith("sudo reboot")
    assert "0.4 GiB of 19.5 GiB free are in blocks of 16 MiB" in found["machine.fragmentation"].seen
    assert "stuck low" in found["gpu.strain"].seen
    assert "topic 366026" in found["machine.kernel"].seen


@pytest.mark.parametrize(
    ("total_bytes", "free_bytes", "verdict"),
    [
        (0, 0, Verdict.OK),
        (0, 919 * 2**20, Verdict.WARN),
        (4 * GIB, 3 * GIB, Verdict.OK),
        (256 * 2**20, 10 * GIB, Verdict.WARN),
        (256 * 2**20, 257 * 2**20, Verdict.OK),
    ],
)
def test_memory_kept_for_a_next_kernel(total_bytes: int, free_bytes: int, verdict: Verdict) -> None:
    found = machine.check_kho({"CmaTotal": total_bytes, "CmaFree": free_bytes})
    assert found.verdict is verdict


def test_a_kernel_without_such_memory_is_well() -> None:
    assert machine.check_kho({"MemTotal": GIB}).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("small_bytes", "large_bytes", "verdict"),
    [
        (10 * GIB, GIB, Verdict.OK),
        (40 * GIB, GIB, Verdict.WARN),
        (3 * GIB, 0, Verdict.NOT_SEEN),
        (0, 60 * GIB, Verdict.OK),
    ],
)
def test_memory_in_pieces(small_bytes: int, large_bytes: int, verdict: Verdict) -> None:
    largest_bytes = PAGE_BYTES << 13
    blocks = (small_bytes // PAGE_BYTES, *[0] * 12, large_bytes // largest_bytes)
    assert machine.check_fragmentation(blocks, PAGE_BYTES).verdict is verdict


def swapping(
    in_pages: int | None, out_pages: int | None, stalled_percent: float | None = 0.0
) -> Finding:
    start = None if in_pages is None else 100
    samples = (HealthSample(10.0, start, 100), HealthSample(11.0, in_pages, out_pages))
    fact = SymptomFact(samples, page_bytes=PAGE_BYTES, stalled_percent=stalled_percent)
    return machine.check_swapping(fact)


def test_swapping_both_ways_is_worth_a_look_and_one_way_is_not() -> None:
    assert swapping(100, 100).verdict is Verdict.OK
    assert swapping(100, 90_000).verdict is Verdict.OK
    assert swapping(90_000, 100).verdict is Verdict.OK
    both = swapping(100 + 2560, 100 + 1280)
    assert both.verdict is Verdict.WARN
    assert "10.5 MB/s from swap, 5.2 MB/s to it" in both.seen


def test_waiting_for_memory_alone_is_enough() -> None:
    assert swapping(None, None, 4.9).verdict is Verdict.OK
    assert swapping(None, None, 5.0).verdict is Verdict.WARN
    assert swapping(None, None, None).verdict is Verdict.NOT_SEEN


BUSY = GpuSample("NVIDIA GB10", 96.0, 2418.0, 3003.0, 61.0, 0)


@pytest.mark.parametrize(
    ("first", "last", "verdict", "words"),
    [
        (BUSY, BUSY, Verdict.OK, "96 % busy at 2418 MHz, 61 W"),
        (replace(BUSY, power_w=18.0), replace(BUSY, power_w=19.0), Verdict.WARN, "may hang"),
        (replace(BUSY, power_w=18.0), BUSY, Verdict.OK, "busy"),
        (
            replace(BUSY, sm_clock_mhz=702.0),
            replace(BUSY, sm_clock_mhz=702.0),
            Verdict.WARN,
            "stuck",
        ),
        (replace(BUSY, sm_clock_mhz=702.0), BUSY, Verdict.OK, "busy"),
        (
            replace(BUSY, slowdown_bits=0x60),
            replace(BUSY, slowdown_bits=0x44),
            Verdict.WARN,
            "too hot",
        ),
        (replace(BUSY, slowdown_bits=0x04), replace(BUSY, slowdown_bits=0x04), Verdict.OK, "busy"),
    ],
)
def test_a_gpu_is_judged_by_two_looks(
    first: GpuSample, last: GpuSample, verdict: Verdict, words: str
) -> None:
    found = machine.check_strain([first, last])
    assert found.verdict is verdict
    assert words in found.seen


def test_an_idle_gpu_and_another_card_may_take_little() -> None:
    idle = replace(BUSY, utilization_percent=3.0, sm_clock_mhz=208.0, power_w=4.0)
    assert machine.check_strain([idle, idle]).verdict is Verdict.OK
    other = replace(BUSY, name="NVIDIA T400", power_w=20.0)
    assert machine.check_strain([other, other]).verdict is Verdict.OK
    assert machine.check_strain([BUSY]).verdict is Verdict.NOT_SEEN
    assert machine.check_strain([None, None]).verdict is Verdict.NOT_SEEN


def test_what_a_program_did_wrong_needs_no_reboot() -> None:
    line = "spark kernel: NVRM: Xid (PCI:000f:01:00): {}, pid=4712, name=VLLM::EngineCor"
    mild = machine.check_xids([LOADING, line.format(31)])
    assert "reboot" not in str(mild.fix)
    grave = machine.check_xids([line.format(31), line.format(79), line.format(999)])
    assert grave.fix == "sudo reboot"
    assert "Xid 999" in grave.seen
    assert machine.check_xids([LOADING]).verdict is Verdict.OK


def test_the_drivers_complaints_are_told_and_its_greeting_is_none() -> None:
    assert machine.check_driver_log([LOADING]).verdict is Verdict.OK
    starved = machine.check_driver_log([LOADING, NO_MEMORY, NO_MEMORY])
    assert "2 allocations of the driver failed" in starved.seen
    other = machine.check_driver_log(
        ["kernel: NVRM: GPU 000f:01:00.0: RmInitAdapter failed! (0x62)"]
    )
    assert other.seen.endswith("the last: GPU 000f:01:00.0: RmInitAdapter failed! (0x62)")


@pytest.mark.parametrize(
    ("part", "version", "options", "is_bad"),
    [
        ("driver", "590.44.01", "", True),
        ("driver", "580.95.05", "", False),
        ("driver", "5900.1", "", False),
        ("kernel", "590.44.01", "", False),
        ("kernel", "7.0.0-1019-nvidia", "quiet", True),
        ("kernel", "7.0.0-1019-nvidia", "quiet kho=off", False),
        ("kernel", "7.0.0-10190-nvidia", "", False),
        ("kernel", "6.17.0-1008-nvidia", "kho=off", True),
        ("kernel", "6.17.0-1014-nvidia", "", False),
    ],
)
def test_known_bad_versions(part: str, version: str, options: str, is_bad: bool) -> None:
    row = failing(part, version, frozenset(options.split()))
    assert (row is not None) == is_bad


def test_firmware_is_held_against_rows_of_its_own_part() -> None:
    versions = {"BIOS": "5.36_0ACUM018", "ConnectX": "28.45.4028"}
    rows = (KnownBad("BIOS", "5.36_0ACUM018", "it caps power", "sudo fwupdmgr update", "a test"),)
    bad = machine.check_firmware(versions, rows)
    assert "BIOS 5.36_0ACUM018: it caps power (a test)" in bad.seen
    assert machine.check_firmware({"ConnectX": "5.36_0ACUM018"}, rows).verdict is Verdict.OK
    assert machine.check_firmware(versions).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("name", "image", "title"),
    [
        ("vllm_node", "vllm-node", "spark-vllm-docker"),
        ("qwen", "vllm-node-tf5:latest", "spark-vllm-docker"),
        ("sparkrun_9e23ec987b7e_head", "vllm-node", "sparkrun"),
        ("chat", "ollama/ollama:0.14", "Ollama"),
        ("front", "ghcr.io/mostlygeek/llama-swap:cuda", "llama-swap"),
        ("db", "postgres:17", None),
        ("ui", "ghcr.io/open-webui/open-webui:ollama-like", None),
    ],
)
def test_servers_of_others_are_known_by_name_or_image(
    name: str, image: str, title: str | None
) -> None:
    found = machine.check_other_servers([NeighbourFact(name, image)], ["bash"])
    assert (found.verdict is Verdict.WARN) == (title is not None)
    assert title is None or f"{title} (container {name})" in found.seen


def test_a_server_in_a_container_is_told_once_and_first() -> None:
    found = machine.check_other_servers(
        [NeighbourFact("chat", "ollama/ollama")], ["bash", "ollama", "llama-server"]
    )
    assert found.seen.count("Ollama") == 1
    assert "llama.cpp (process llama-server)" in found.seen
    assert found.fix == "`ollama stop MODEL` frees memory; docker stop chat"
