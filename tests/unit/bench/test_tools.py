"""The standard tools' options, and what is read from reports that they really wrote."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdeploy import shell
from sparkdeploy.bench.record import SuiteResult
from sparkdeploy.bench.tools import (
    LLAMA_BENCHY,
    VLLM_BENCH,
    Load,
    load_for,
    measure_with_tools,
    read_report,
    tool_options,
)
from sparkdeploy.errors import BenchError
from sparkdeploy.server.client import ServedModel
from tests.fakes.tool_container import Host

LOAD = Load(2048, 128, 3)
SERVER = {"base_url": "http://127.0.0.1:8000", "model": "qwen"}
VLLM_REPORT = {
    # `vllm bench serve` 0.32.0 against a twin, four prompts; lists left out.
    "backend": "openai-chat",
    "completed": 4,
    "failed": 0,
    "duration": 11.11649610600034,
    "total_output_tokens": 256,
    "output_throughput": 23.02883908373063,
    "median_ttft_ms": 134.98816650053413,
    "median_tpot_ms": 21.391112095234202,
    "median_itl_ms": 30.894772000010562,
    "p99_itl_ms": 155.1475404101425,
    "spec_decode_acceptance_length": 1.8823529411764706,
}


def benchy(**figures: float) -> str:
    """A report of llama-benchy 0.4.0."""
    test = {
        "concurrency": 1,
        "prompt_size": 256,
        "tg_throughput": None,
        "peak_throughput": None,
        **{name: {"mean": value, "std": 0.1, "values": [value]} for name, value in figures.items()},
    }
    return json.dumps({"version": "0.4.0", "model": "qwen", "benchmarks": [test]})


def test_both_tools_ask_for_the_same_load_without_sampling() -> None:
    asked = {**asdict(LOAD), **SERVER}
    ours = tool_options(VLLM_BENCH, **asked, prompts=12, tokenizer="/m/ck/x", result="/tmp/r.json")
    theirs = tool_options(
        LLAMA_BENCHY,
        **asked,
        tokenizer="/host/x",
        book_url="http://127.0.0.1:1/book.txt",
        result="/tmp/l.json",
    )
    assert ours[ours.index("--random-input-len") + 1] == "2048"
    assert ours[ours.index("--temperature") + 1] == "0"
    assert ours[ours.index("--result-dir") + 1 :] == ("/tmp", "--result-filename", "r.json")
    assert theirs[theirs.index("--pp") + 1] == "2048"
    assert theirs[theirs.index("--extra-body") + 1] == "temperature=0"
    assert theirs[theirs.index("--book-url") + 1] == "http://127.0.0.1:1/book.txt"


def test_two_runs_are_asked_other_texts_and_the_record_says_which() -> None:
    hosts = [Host(VLLM_REPORT), Host(VLLM_REPORT)]
    loads = [load_for(3, None) for _ in hosts]
    for host, load in zip(hosts, loads, strict=True):
        measured(host, load)
    assert loads[0].seed != loads[1].seed
    seeds = [host.run[0][host.run[0].index("--seed") + 1] for host in hosts]
    assert seeds == [str(load.seed) for load in loads]


def test_the_load_fits_the_model() -> None:
    assert load_for(3, 262144).prompt_tokens == 2048
    assert load_for(3, 1024).prompt_tokens == 832
    with pytest.raises(BenchError, match="does not fit into 256"):
        load_for(3, 256)


def test_vllms_report_is_folded_in_with_our_names() -> None:
    text = json.dumps(VLLM_REPORT)
    found = read_report(VLLM_BENCH, text, version="0.32.0", command=("vllm",))
    assert found.figures["end_to_end_tok_s"] == pytest.approx(256 / 11.11649610600034)
    assert found.figures["ttft_p50_s"] == pytest.approx(0.134988, abs=1e-6)
    assert found.figures["gap_p99_s"] == pytest.approx(0.155148, abs=1e-6)
    assert found.figures["failed_requests"] == 0
    assert found.report == VLLM_REPORT


def test_llama_benchys_report_is_folded_in_with_our_names() -> None:
    text = benchy(tg_throughput=54.4, tg_req_throughput=54.4, pp_throughput=1800, e2e_ttft=1100)
    found = read_report(LLAMA_BENCHY, text, command=("llama-benchy",))
    assert found.version == "0.4.0"
    assert found.figures == {
        "decode_tok_s": 54.4,
        "stream_decode_tok_s": 54.4,
        "prefill_tok_s": 1800,
        "ttft_mean_s": pytest.approx(1.1),
    }


@pytest.mark.parametrize("text", ["", "[]", '{"benchmarks": []}', benchy(), '{"completed": 0}'])
def test_a_report_without_figures_is_an_error(text: str) -> None:
    for tool in (LLAMA_BENCHY, VLLM_BENCH):
        with pytest.raises(BenchError):
            read_report(tool, text, command=())


def measured(host: Any, load: Load = LOAD, key: str | None = None) -> SuiteResult:
    server = ServedModel(SERVER["base_url"], key, model=SERVER["model"])
    served: Any = SimpleNamespace(container_id="abc", server=server)
    return measure_with_tools(host, served, load)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Host(VLLM_REPORT)
    monkeypatch.setattr(shell, "which", lambda _name: None)
    return made


def test_a_tool_that_is_not_installed_is_left_out_with_a_note(host: Any) -> None:
    found = measured(host)
    assert [(tool.tool, tool.version) for tool in found.tools] == [("vllm bench serve", "0.32.0")]
    assert found.notes == (
        "llama-benchy left out: it is not installed (pipx install llama-benchy)",
    )
    fetched = host.run[1]
    assert fetched[2] == 'cat "$1" && rm -f "$1" "$1.pid" "$1.texts"'


def test_a_key_is_read_in_the_container_and_stands_in_no_argument(host: Any) -> None:
    found = measured(host, key="secret")
    assert 'OPENAI_API_KEY="$(cat /run/sparkdeploy/key)"' in host.run[0][2]
    assert "everybody could read it" in found.notes[0]


def test_an_interrupted_tool_is_ended_in_the_container_too(host: Any) -> None:
    host.answers = [KeyboardInterrupt()]
    found = measured(host)
    assert not found.is_complete
    assert found.notes == ("interrupted",)
    assert host.run[-1][2].startswith("kill")
    assert host.run[-1][4] == host.run[0][4]
