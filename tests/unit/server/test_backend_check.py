"""What the log says against what the recipe says."""

from __future__ import annotations

import pytest

from sparkdeploy.checks.rdma import chosen_adapters
from sparkdeploy.plan.launch import PlannedBackend, planned_backends, planned_transport
from sparkdeploy.recipe.load import Library, Resolved, load_recipe
from sparkdeploy.server.facts import BackendCheck, EngineFacts, Match, compare_backends, read_facts
from sparkdeploy.server.phases import read_whole
from sparkdeploy.settings import resources
from tests.unit.server.log_files import recorded


def resolved(name: str, *settings: str) -> Resolved:
    return load_recipe(Library((resources() / "recipes",)), name, settings)


def told(*lines: str) -> EngineFacts:
    facts = EngineFacts()
    for line in lines:
        facts = read_facts(line, facts)
    return facts


def found(name: str, facts: EngineFacts, *settings: str) -> dict[str, BackendCheck]:
    planned = planned_backends(resolved(name, *settings))
    return {finding.planned.subject: finding for finding in compare_backends(planned, facts)}


CONFIG = (
    "Initializing a V1 LLM engine (v0.25.1) with config: model='/m/ck/x', "
    "speculative_config=SpeculativeConfig(method='mtp', model='/m/ck/x', num_spec_tokens=2), "
    "kv_cache_dtype=auto, compilation_config={'cudagraph_mode': "
    "<CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}"
)
AS_PLANNED = (
    CONFIG,
    "Using AttentionBackendEnum.FLASHINFER backend.",
    "Using 'MARLIN' WNA16 MoE backend.",
    "Using MarlinLinearKernel for AutoGPTQLinearMethod",
    "Selected CutlassFp8BlockScaledMMKernel for Fp8LinearMethod",
)


@pytest.mark.parametrize("name", ["spark-0.19-mtp", "spark-0.33-mtp"])
def test_a_recorded_start_of_v2_contradicts_nothing(name: str) -> None:
    seen = found("v2", read_whole([recorded(name)]).facts)
    assert seen["attention"].match is Match.AS_PLANNED
    assert seen["speculation"].match is Match.AS_PLANNED
    assert not [finding for finding in seen.values() if finding.is_failure]


def test_a_start_of_the_cpu_build_confirms_its_drafter() -> None:
    seen = found("v2", read_whole([recorded("cpu-0.32-mtp")]).facts, "engine=cpu-0.32")
    assert {name: item.match for name, item in seen.items()} == {"speculation": Match.AS_PLANNED}


def test_a_start_as_planned_confirms_every_subject() -> None:
    seen = found("v2", told(*AS_PLANNED))
    assert set(seen) == {"attention", "moe", "linear", "speculation", "graphs"}
    assert {finding.match for finding in seen.values()} == {Match.AS_PLANNED}


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        ("Using TRITON_ATTN attention backend out of potential backends: [].", "attention"),
        (CONFIG.replace("num_spec_tokens=2", "num_spec_tokens=1"), "speculation"),
        ("Using 'TRITON' WNA16 MoE backend out of potential backends: [].", "moe"),
        ("Using ExllamaLinearKernel for AutoGPTQLinearMethod", "linear"),
        ("not supported; setting cudagraph_mode=NONE", "graphs"),
        ("Skipping CUDA graph capture. To turn it on, set ...", "graphs"),
    ],
)
def test_a_silent_fall_back_is_seen_and_stops_nothing(line: str, subject: str) -> None:
    finding = found("v2", told(line)).get(subject)
    assert finding is not None
    assert finding.match is Match.DIFFERS
    assert not finding.is_failure


def test_a_start_without_the_drafter_that_was_asked_for_differs() -> None:
    line = "Initializing a V1 LLM engine (v0.25.1) with config: speculative_config=None, x=1"
    assert found("v2", told(line))["speculation"].match is Match.DIFFERS
    assert found("baseline", told(line))["speculation"].match is Match.AS_PLANNED


def test_another_format_of_the_kv_cache_differs() -> None:
    line = "Initializing a V1 LLM engine (v0.25.1) with config: kv_cache_dtype=auto, x=1"
    assert found("v2-kv8", told(line))["kv_cache"].match is Match.DIFFERS
    assert found("v2-kv8", told(line, "Using fp8_e4m3 data type to store kv cache"))[
        "kv_cache"
    ].match is (Match.AS_PLANNED)


def test_sparse_mlas_layout_of_an_fp8_cache_is_no_fall_back() -> None:
    line = "Using fp8_ds_mla data type to store kv cache"
    assert found("v2-kv8", told(line))["kv_cache"].match is Match.AS_PLANNED


@pytest.mark.parametrize(
    ("wanted", "seen", "agrees"),
    [
        ("mtp 2", "qwen3_5_mtp 2", True),
        ("deepseek_mtp 2", "mtp 2", True),
        ("mtp 2", "mtp 12", False),
        ("1", "dflash 1", True),
        ("1", "dflash 11", False),
        ("dspark 4", "dflash 4", False),
        ("mtp 2", "off", False),
    ],
)
def test_methods_of_speculation_are_compared_as_vllm_calls_them(
    wanted: str, seen: str, agrees: bool
) -> None:
    (finding,) = compare_backends(
        (PlannedBackend("speculation", wanted, warns_only=False),), EngineFacts(speculation=seen)
    )
    assert (finding.match is Match.AS_PLANNED) == agrees


ADAPTERS = "rocep1s0f1,roceP2p1s0f1"
BOTH = ("rocep1s0f1", "roceP2p1s0f1")
ROCE = {"NCCL_IB_HCA": ADAPTERS, "NCCL_IB_DISABLE": "0", "NCCL_NET": "IB"}


def transport(
    name: str, env: dict[str, str], *settings: str, own: tuple[str, ...] = BOTH
) -> list[BackendCheck]:
    facts = read_whole([recorded(f"nccl/{name}")]).facts
    adapters = chosen_adapters(env, own)
    planned = planned_transport(resolved("v2", *settings), env, adapters)
    return list(compare_backends(planned, facts))


def test_the_adapters_of_config_yaml_are_held_against_what_nccl_took() -> None:
    (finding,) = transport("2.30.4-roce", ROCE)
    assert finding.match is Match.AS_PLANNED


def test_a_transport_that_fell_back_to_sockets_is_a_failure_with_what_it_costs() -> None:
    (finding,) = transport("2.30.4-fallen-back", ROCE)
    assert finding.is_failure
    assert finding.describe() == (
        "transport: planned NET/IB over rocep1s0f1, roceP2p1s0f1, runs NET/Socket over lo; "
        "one adapter has half the rate of a port, and sockets far less"
    )


@pytest.mark.parametrize(
    "spelling", [f"={ADAPTERS}", "rocep1s0f1:1,roceP2p1s0f1:1", "roce", "^mlx5_0", ""]
)
def test_nccls_own_spellings_of_adapters_are_read(spelling: str) -> None:
    (finding,) = transport("2.30.4-roce", {**ROCE, "NCCL_IB_HCA": spelling})
    assert finding.match is Match.AS_PLANNED
    assert transport("2.30.4-socket", {**ROCE, "NCCL_NET": "socket"}) == []


def test_adapters_that_only_the_recipe_names_are_held_against_what_nccl_took() -> None:
    (finding,) = transport("2.30.4-roce", {**ROCE, "NCCL_IB_HCA": "roce"}, own=())
    assert finding.match is Match.AS_PLANNED
    (finding,) = transport("2.30.4-socket", {**ROCE, "NCCL_IB_HCA": "=mlx5_9"}, own=())
    assert finding.planned.wanted == "NET/IB over mlx5_9"
    assert finding.is_failure


@pytest.mark.parametrize("name", ["NCCL_NET", "NCCL_IB_DISABLE"])
def test_sockets_that_were_asked_for_are_no_surprise(name: str) -> None:
    asked = {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
    assert transport("2.30.4-socket", {**ROCE, name: asked[name]}) == []
    assert transport("2.30.4-socket", {"NCCL_IB_DISABLE": "1"}, own=()) == []
