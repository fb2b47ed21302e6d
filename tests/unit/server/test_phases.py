"""Start-up phases and facts, read from recorded logs."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.server.facts import EngineFacts
from sparkdeploy.server.log_lines import MAX_LINE_BYTES, LineSplitter, read_line
from sparkdeploy.server.phases import (
    PHASES,
    PhaseTracker,
    load_durations,
    read_whole,
    save_durations,
)
from tests.examples import examples
from tests.unit.server.log_files import HEALTHY, recorded


def names(tracker: PhaseTracker) -> list[str]:
    return [phase.name for phase, _ in tracker.visits]


def phases_after(*lines: str) -> list[str]:
    return names(read_whole([line.encode() + b"\n" for line in lines]))


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_start_ends_with_the_api_up_and_two_weight_loads(name: str) -> None:
    tracker = read_whole([recorded(name)])
    assert tracker.phase.name == "answering"
    assert tracker.weight_loads == 2


def test_a_spark_start_goes_through_every_phase_in_order() -> None:
    assert names(read_whole([recorded("spark-0.19-mtp")])) == [phase.name for phase in PHASES]


def test_a_newer_vllm_that_tags_its_compile_lines_goes_through_the_same_phases() -> None:
    old = read_whole([recorded("spark-0.19-mtp")])
    new = read_whole([recorded("spark-0.33-mtp")])
    assert names(old) == names(new)


def test_an_eager_cpu_start_skips_compile_and_graphs() -> None:
    visited = names(read_whole([recorded("cpu-0.32-mtp")]))
    assert not {"compiling", "graphs"} & set(visited)
    assert {"weights", "draft", "kv_cache", "api"} <= set(visited)


@given(name=st.sampled_from(HEALTHY), data=st.data())
def test_chunks_split_anywhere_give_the_same_phases_and_facts(
    name: str, data: st.DataObject
) -> None:
    log = recorded(name)
    cuts = data.draw(st.lists(st.integers(0, len(log)), max_size=40).map(sorted))
    chunks = [log[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(log)])]
    split, whole = read_whole(chunks), read_whole([log])
    assert names(split) == names(whole)
    assert split.facts == whole.facts
    assert (split.percent, split.weight_loads) == (whole.percent, whole.weight_loads)


@pytest.mark.parametrize(
    "bar",
    [
        "Loading safetensors checkpoint shards:  42% Completed | 6/14 [00:01<00:02]",
        "Loading safetensors using Fastsafetensor loader:  42% Completed | 6/14 [00:01<00:02]",
        "(EngineCore pid=7) \x1b[32mLoading safetensors checkpoint shards:  42% Completed | 6/14",
    ],
)
def test_a_progress_bar_counts_before_its_line_has_ended(bar: str) -> None:
    tracker = PhaseTracker()
    tracker.feed(b"\r" + bar.encode())
    assert tracker.describe() == "loading weights 42%"


def test_a_phase_never_goes_back() -> None:
    assert phases_after("Application startup complete.", "Loading weights took 1.00 seconds") == [
        "starting",
        "answering",
    ]


def test_a_restart_by_the_guard_begins_again() -> None:
    log = recorded("cpu-0.32-mtp")
    restart = b'\nsparkdeploy-guard: {"event": "restart", "exit_code": 1, "restart": 1}\n'
    tracker = read_whole([log, restart])
    assert names(tracker) == ["starting"]
    assert tracker.facts == EngineFacts()


def test_a_prompt_that_quotes_the_guard_or_the_plugin_changes_nothing() -> None:
    quoted = (
        b'INFO 06-03 10:10:01 [logger.py:40] prompt: \'sparkdeploy-guard: {"event": "restart"}\'\n'
        b"INFO 06-03 10:10:01 [logger.py:40] prompt: 'sparkdeploy: spark-hybrid active: fp8=1"
        b" layers, lm_head=no, int4=1 layers of shared experts'\n"
        b"(APIServer pid=8) prompt: sparkdeploy: draft head active: rows=1\n"
        b"prompt: sparkdeploy: draft layer active: int4=1 layers of experts, fp8=8 layers\n"
    )
    before, after = read_whole([recorded("spark-0.33-mtp")]), read_whole([quoted])
    assert after.restarts == 0
    assert not after.facts.has_plugin_line
    assert after.facts.draft_head_rows is None
    assert after.facts.draft_int4_layers is None
    assert after.facts.shared_int4_layers is None
    assert read_whole([recorded("spark-0.33-mtp"), quoted]).facts == before.facts


@pytest.mark.parametrize(
    "head",
    [
        "",
        "INFO 06-03 10:10:01 [announce.py:12] ",
        "(EngineCore_DP0 pid=2) INFO 06-03 10:10:01 [announce.py:12] ",
        "(EngineCore pid=2) (RayWorkerWrapper pid=9, ip=10.0.0.2) INFO 06-03 10:10:01 [a.py:1] ",
        "\x1b[36m(RayWorkerWrapper pid=9)\x1b[0m (EngineCore_DP0 pid=2) "
        "INFO 06-03 10:10:01 [a.py:1] ",
    ],
)
def test_the_plugins_line_is_read_behind_the_names_of_its_processes(head: str) -> None:
    line = f"{head}sparkdeploy: spark-hybrid active: fp8=144 layers, lm_head=int8\n"
    assert read_whole([line.encode()]).facts.fp8_layers == 144


@pytest.mark.parametrize("share", ["", ", 32768 a rank"])
def test_the_rows_of_a_draft_head_are_those_of_all_ranks(share: str) -> None:
    line = f"sparkdeploy: draft head active: rows=65536{share}\n"
    assert read_whole([line.encode()]).facts.draft_head_rows == 65_536


@settings(max_examples=examples(300))
@given(
    st.lists(
        st.builds(
            "{}{}{}".format,
            st.sampled_from(
                [
                    *("Model loading took ", "GPU KV cache size: ", "Available KV cache memory: "),
                    *("sparkdeploy: spark-hybrid active: fp8=", "sparkdeploy-guard: "),
                    "Loading safetensors checkpoint shards: ",
                    *("SpecDecoding metrics: Mean acceptance length: ", "init engine (x) took "),
                ]
            ),
            st.one_of(st.text("0123456789.", min_size=1), st.text("1,"), st.text()),
            st.sampled_from([" GiB", " tokens", " layers, lm_head=x", "%", " s", "", "\r"]),
        )
    )
)
def test_no_line_of_a_log_is_a_bug(lines: list[str]) -> None:
    read_whole([line.encode() + b"\n" for line in lines])


def test_the_facts_of_a_spark_start_are_read() -> None:
    facts = read_whole([recorded("spark-0.19-mtp")]).facts
    assert facts == EngineFacts(
        vllm_version="0.19.1",
        attention_backend="FLASHINFER",
        speculation="mtp 2",
        fp8_layers=144,
        lm_head="int8",
        kv_cache_tokens=355_712,
        kv_cache_gib=27.93,
    )


def test_an_endless_line_does_not_fill_memory() -> None:
    splitter = LineSplitter()
    for _ in range(100):
        assert list(splitter.feed(b"x" * 10_000)) == []
    assert len(splitter.unfinished()) == MAX_LINE_BYTES


def test_a_line_is_told_apart_from_its_writer() -> None:
    line = read_line("(Worker_TP0 pid=31) ERROR 11-21 03:58:37 [core.py:9] it broke")
    assert (line.origin, line.level, line.text) == ("Worker_TP0", "ERROR", "it broke")


def test_the_estimate_never_falls_below_the_phases_to_come() -> None:
    tracker = PhaseTracker(typical_s={"starting": 5.0, "api": 7.0})
    assert tracker.remaining_s(1.0) == pytest.approx(11.0)
    assert tracker.remaining_s(99.0) == pytest.approx(7.0)
    tracker.feed(b"\rLoading safetensors checkpoint shards:  25% Completed | 1/4", 10.0)
    # A quarter took 20 s.
    assert tracker.remaining_s(30.0) == pytest.approx(60.0 + 7.0)


def test_the_last_start_is_remembered(tmp_path: Path) -> None:
    assert load_durations(tmp_path, "image:v2") == {}
    save_durations(tmp_path, "image:v2", {"weights": 1.234})
    assert load_durations(tmp_path, "image:v2") == {"weights": 1.23}
