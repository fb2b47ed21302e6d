"""The lists of what a recipe from elsewhere may set: sound, and long enough for the field.

The tables are names, flags and values as recipes of others have them, or as an attack would.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from sparkdeploy.recipe.flags import (
    FIELD_OF_FLAG,
    FORBIDDEN_ENV,
    JSON_FLAGS,
    OWNED_FLAGS,
    SHORT_FORMS,
    SWITCH_FLAGS,
    VALUE_FLAGS,
    flag_of,
)
from sparkdeploy.recipe.harmless import MAX_VALUE_LENGTH, Allowed, lists, questions
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.schema import Recipe, Serve
from sparkdeploy.recipe.unsafe import Judge
from tests.examples import examples
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = list(lists().rows())
HARMLESS_ENV = [
    ("VLLM_MARLIN_USE_ATOMIC_ADD", "1"),
    ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1"),
    ("VLLM_USE_V2_MODEL_RUNNER", "1"),
    ("VLLM_USE_AOT_COMPILE", "1"),
    ("VLLM_USE_MEGA_AOT_ARTIFACT", "-1"),
    ("VLLM_USE_BREAKABLE_CUDAGRAPH", "0"),
    ("VLLM_USE_FLASHINFER_SAMPLER", "0"),
    ("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", "1"),
    ("VLLM_USE_FLASHINFER_MOE_FP16", "1"),
    ("VLLM_USE_DEEP_GEMM", "0"),
    ("VLLM_USE_B12X_MOE", "1"),
    ("VLLM_ENABLE_ROCE_ALLREDUCE", "1"),
    ("VLLM_ROCE_ALLREDUCE_MAX_SIZE", "2MB"),
    ("VLLM_WORKER_MULTIPROC_METHOD", "spawn"),
    ("VLLM_TARGET_DEVICE", "cuda"),
    ("VLLM_SSM_CONV_STATE_LAYOUT", "DS"),
    ("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", "256"),
    ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "1200"),
    ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "600"),
    ("VLLM_FLOAT32_MATMUL_PRECISION", "high"),
    ("VLLM_FLASHINFER_ALLREDUCE_BACKEND", "trtllm"),
    ("VLLM_DISTRIBUTED_EXECUTOR_CONFIG", '{"placement_group_options":{"strategy":"SPREAD"}}'),
    ("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "0"),
    ("VLLM_TRITON_MLA_SPARSE_TOPK_CHUNK_SIZE", "512"),
    ("VLLM_B12X_W4A16_FORCE_BLOCKS_MAX_M", "16"),
    ("EXL3_TEMP_ROWS_FUSED", "128"),
    ("GLM53_SPINWAIT_MS", "stock"),
    ("B12X_POLICY_MODE", "auto"),
    ("B12X_COMPILE_WORKERS", "4"),
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:512"),
    ("PYTORCH_ALLOC_CONF", "garbage_collection_threshold:0.8"),
    ("CUTE_DSL_ARCH", "sm_121a"),
    ("FLASHINFER_CUDA_ARCH_LIST", "12.1a"),
    ("TORCH_CUDA_ARCH_LIST", "12.1a"),
    ("TORCH_CUDA_ARCH_LIST", "9.0 12.1+PTX"),
    ("FLASHINFER_DISABLE_VERSION_CHECK", "1"),
    ("NCCL_NET", "IB"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("NCCL_PROTO", "Simple"),
    ("NCCL_ALGO", "Ring"),
    ("NCCL_DEBUG", "WARN"),
    ("NCCL_IB_ROCE_VERSION_NUM", "2"),
    ("NCCL_IB_ADDR_FAMILY", "AF_INET"),
    ("NCCL_IB_TIMEOUT", "25"),
    ("NCCL_IGNORE_CPU_AFFINITY", "1"),
    ("OMP_NUM_THREADS", "4"),
    ("MAX_JOBS", "4"),
    ("MALLOC_ARENA_MAX", "2"),
    ("SAFETENSORS_FAST_GPU", "1"),
    ("INSTANTTENSOR_CHUNK_SIZE", "8388608"),
    ("INSTANTTENSOR_BACKEND", "BUFFERED"),
    ("TILELANG_CLEANUP_TEMP_FILES", "1"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    ("NVIDIA_TF32_OVERRIDE", "1"),
    ("TRANSFORMERS_OFFLINE", "1"),
    ("HF_HUB_OFFLINE", "1"),
    ("HF_HUB_DISABLE_XET", "1"),
    ("DG_JIT_USE_NVRTC", "0"),
]
HARMFUL_ENV = [
    ("TORCHINDUCTOR_CPP_MARCH", "native -fplugin=/m/hub/x.so"),
    ("CUDA_HOME", "/usr/local/cuda"),
    ("CUDA_PATH", "/usr/local/cuda"),
    ("DG_JIT_NVCC_COMPILER", "/usr/local/cuda/bin/nvcc"),
    ("FLASHINFER_NVCC", "/m/hub/nvcc"),
    ("FLASHINFER_EXTRA_LDFLAGS", "-Wl,x"),
    ("FLASHINFER_WORKSPACE_BASE", "/cache"),
    ("TRITON_CACHE_MANAGER", "evil:Manager"),
    ("TRITON_PTXAS_PATH", "/m/hub/ptxas"),
    ("OMP_TOOL_LIBRARIES", "/m/hub/x.so"),
    ("TORCH_TRACE", "/m/hub"),
    ("CUBLAS_LOGDEST_DBG", "/cache/x"),
    ("NCCL_RAS_ADDR", "0.0.0.0:28028"),
    ("NCCL_NET", "evil"),
    ("NCCL_NET_PLUGIN", "/m/hub/x.so"),
    ("NCCL_TUNER_PLUGIN", "x"),
    ("NCCL_DEBUG_FILE", "/cache/x"),
    ("NCCL_DEBUG", "WARN\n"),
    ("NCCL_SOCKET_IFNAME", "eth0"),
    ("NCCL_TOPO_FILE", "/m/hub/x"),
    ("VLLM_USAGE_STATS_SERVER", "http://elsewhere"),
    ("VLLM_NO_USAGE_STATS", "0"),
    ("VLLM_PLUGINS", "none"),
    ("VLLM_CACHE_ROOT", "/m/hub"),
    ("VLLM_SERVER_DEV_MODE", "1"),
    ("VLLM_ALLOW_INSECURE_SERIALIZATION", "1"),
    ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True"),
    ("VLLM_MARLIN_USE_ATOMIC_ADD", "1 "),
    ("VLLM_MARLIN_USE_ATOMIC_ADD", "\u0661"),
    ("vllm_marlin_use_atomic_add", "1"),
    ("VLLM_ROCE_ALLREDUCE_MAX_SIZE", "2MB; id"),
    ("PYTORCH_CUDA_ALLOC_CONF", "backend:evil"),
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,"),
    ("TORCH_CUDA_ARCH_LIST", "12.1a -fplugin=x"),
    ("CUTE_DSL_ARCH", "sm_121a;x"),
    ("HF_HUB_OFFLINE", "0"),
    ("TRANSFORMERS_OFFLINE", "0"),
    ("HF_HOME", "/root/.cache/huggingface"),
    ("HF_ENDPOINT", "http://elsewhere"),
    ("TMPDIR", "/cache/tmp"),
    ("HOME", "/root"),
    ("PYTHONPATH", "/m/hub"),
    ("LD_LIBRARY_PATH", "/m/hub"),
    ("GLIBC_TUNABLES", "x"),
    ("NVIDIA_VISIBLE_DEVICES", "all"),
    ("NVIDIA_FORWARD_COMPAT", "1"),
    ("RAY_ADDRESS", "10.0.0.1:6379"),
    ("https_proxy", "http://elsewhere"),
    ("GLM52_BIND_HOST_TRITON", "0"),
    ("DS4_DSPARK_MODEL", "~/gguf/x.gguf"),
    ("OMP_NUM_THREADS", "9" * 5000),
]
HARMLESS_ARGUMENTS = [
    "--async-scheduling",
    "--block-size 64",
    "--block-size=64",
    "--moe-backend marlin",
    "--moe-backend flashinfer_b12x",
    "--linear-backend b12x",
    "--mm-encoder-tp-mode data",
    "--mamba-cache-mode align",
    "--mamba-backend flashinfer",
    "--mamba-ssm-cache-dtype float32",
    "--mamba-cache-philox-rounds 5",
    "--enable-mamba-cache-stochastic-rounding",
    "--tokenizer-mode deepseek_v4",
    "--enable-flashinfer-autotune",
    "--no-enable-flashinfer-autotune",
    "--max-cudagraph-capture-size 16",
    "--cudagraph-capture-sizes 5 10 15 20 --seed 42",
    "--dtype bfloat16",
    "--generation-config vllm",
    "--generation-config auto",
    "--default-chat-template-kwargs.thinking=true",
    "--default-chat-template-kwargs.reasoning_effort=max",
    '--default-chat-template-kwargs {"enable_thinking":true}',
    '--default-chat-template-kwargs {"reasoning_effort":"high","clear_thinking":false}',
    '--reasoning-config {"reasoning_parser":"deepseek_v4","reasoning_start_str":"<think>"}',
    "--mm-processor-cache-gb 2",
    '--limit-mm-per-prompt {"image":2,"video":0}',
    '--limit-mm-per-prompt {"image":{"count":2,"width":512}}',
    "--kv-cache-memory-bytes 8589934592",
    '--diffusion-config {"canvas_length":256}',
    "--decode-context-parallel-size 2 --dcp-kv-cache-interleave-size 16",
    "--exp-b12x",
    "--kv-cache-memory-bytes 0.5g",
    "--mxfp4-backend CUTLASS --mxfp4-layers moe,qkv,o,lm_head",
    "--uvicorn-log-level warning --disable-uvicorn-access-log",
    "--skip-mm-profiling",
    "--runner pooling",
    "--performance-mode throughput",
    "--optimization-level 3",
    "--no-scheduler-reserve-full-isl",
    "--max-parallel-loading-workers 1",
    "--long-prefill-token-threshold 4096",
    "--gdn-decode-kernel b12x",
    "--enable-prompt-tokens-details",
    "--disable-custom-all-reduce",
    '--attention-config {"sparse_mla_force_mqa":true}',
    "--attention-config.use_fp4_indexer_cache=True",
    "--attention-config.use_fp4_indexer_cache true",
    '--hf-overrides {"index_topk_pattern":"FFFSSSF"}',
    '--hf-overrides {"rope_scaling":{"rope_type":"yarn","factor":4.0}}',
    '--model-loader-extra-config {"instanttensor_copy":false}',
]
HARMFUL_ARGUMENTS = [
    "--pipeline-parallel-size 3",
    "-pp 2",
    "--data-parallel-size 2",
    "--distributed-executor-backend mp",
    "--distributed-executor-backend this.s",
    "--distributed-executor-backend ray",
    "--allowed-media-domains *",
    "--allowed-local-media-path /",
    "--worker-cls evil.Worker",
    "--worker-extension-cls evil.Worker",
    "--scheduler-cls evil.Scheduler",
    "--logits-processors evil",
    "--logits_processors=evil",
    "--tool-parser-plugin x.py",
    "--reasoning-parser-plugin x.py",
    "--tool-parser-plug x.py",
    "--ec-transfer-config {}",
    "--kv-transfer-config.kv_connector=evil",
    "--weight-transfer-config {}",
    "--model-class-overrides {}",
    "--additional-config {}",
    "--grpc",
    "--config x.yaml",
    "@file",
    "--tool-server demo",
    "--ssl-keyfile /m/hub/x",
    "--root-path /x",
    "--engram-config {}",
    "--enable-log-requests",
    "--uvicorn-log-level trace",
    "--generation-config /m/hub/x",
    "--generation-config ./x",
    "--tokenizer evil/tokenizer",
    "--tokenizer-mode evil.mode",
    "--moe-backend evil:x",
    "--load-format runai_streamer",
    "-O3",
    "-cc.mode 0",
    "-cc.backend=evil.run",
    "--block_size evil.run",
    "-block_size 64",
    "-pp evil.run",
    "-p 2",
    "--block-siz 64",
    "--block-size",
    "--block-size 64 stray",
    "--block-size=64 stray",
    "--block-size=",
    "--async-scheduling stray",
    "--async-scheduling=true",
    "--async-scheduling.x true",
    "stray",
    "-",
    "--",
    "--cudagraph-capture-sizes 1 2 x",
    "--cudagraph-capture-sizes",
    '--hf-overrides {"architectures":["Evil"]}',
    '--hf-overrides {"auto_map":{"AutoConfig":"x.py"}}',
    "--hf-overrides.architectures x",
    "--hf-overrides [1]",
    '--hf-overrides {"rope_theta":1,"rope_theta":2}',
    "--cpu-offload-gb -1.5",
    "--hf-overrides {",
    "--hf-overrides " + "[" * 5000,
    '--limit-mm-per-prompt {"image":' + "9" * 5000 + "}",
    '--limit-mm-per-prompt {"image":{"url":"x"}}',
    '--default-chat-template-kwargs {"chat_template":"x"}',
    "--default-chat-template-kwargs.enable_thinking+ true",
    '--model-loader-extra-config {"tensorizer_uri":"s3://x"}',
    '--structured-outputs-config {"reasoning_parser_plugin":"x.py"}',
    '--compilation-config {"backend":"evil.run"}',
    '--compilation-config {"inductor_passes":{"x":"evil.run"}}',
    '--compilation-config {"inductor_compile_config":{"cpp.march":"x"}}',
    '--compilation-config {"cache_dir":"/m/hub"}',
    '--compilation-config {"custom_ops":[["all"]]}',
    "--compilation-config.debug_dump_path /x",
]
NEVER_LISTED = {
    *("--allowed-local-media-path", "--allowed-media-domains", "--config", "--download-dir"),
    *("--enable-prompt-embeds", "--hf-config-path", "--io-processor-plugin", "--lora-modules"),
    *("--kv-events-config", "--kv-transfer-config", "--log-config-file", "--logits-processors"),
    *("--otlp-traces-endpoint", "--profiler-config", "--reasoning-parser-plugin", "--uds"),
    *("--root-path", "--scheduler-cls", "--ssl-ca-certs", "--ssl-certfile", "--ssl-keyfile"),
    *("--tokenizer", "--tool-parser-plugin", "--tool-server", "--worker-cls", "--grpc"),
    *("--worker-extension-cls", "--ec-transfer-config", "--weight-transfer-config"),
    *("--model-class-overrides", "--additional-config", "--trust-remote-code", "--model-impl"),
    *("--enable-lora", "--enable-sleep-mode", "--middleware", "--code-revision", "--revision"),
}
"""Flags that load code, move files or open doors; no listed flag may be the start of one."""
STARTS = {("--reasoning-parser", "--reasoning-parser-plugin")}
"""Every release has the shorter one, and a whole name is never taken for the start of another."""


@pytest.mark.parametrize(("name", "value"), HARMLESS_ENV)
def test_the_fields_variables_pass(name: str, value: str) -> None:
    assert lists().matches(lists().env[name], value)


@pytest.mark.parametrize(("name", "value"), HARMFUL_ENV)
def test_variables_that_name_code_files_or_hosts_do_not_pass(name: str, value: str) -> None:
    row = lists().env.get(name)
    assert row is None or not lists().matches(row, value)


@pytest.mark.parametrize("line", HARMLESS_ARGUMENTS)
def test_the_fields_flags_pass(line: str) -> None:
    assert list(questions(line.split(" "))) == []


@pytest.mark.parametrize("line", HARMFUL_ARGUMENTS, ids=lambda line: line[:60])
def test_flags_that_load_code_move_files_or_open_doors_do_not_pass(line: str) -> None:
    assert list(questions(line.split(" "))) != []


def test_each_question_names_what_it_is_about() -> None:
    line = "--block-size 64 --worker-cls evil.Worker extra --seed x --uds=/x stray"
    asked = list(questions(line.split()))
    assert [index for index, _ in asked] == [2, 5, 7, 8]
    for words in ("--worker-cls evil.Worker extra", "--seed x", "--uds=/x", "stray"):
        assert any(words in question for _, question in asked)


@pytest.mark.parametrize(
    "line",
    [
        "--mamba_ssm_cache_dtype float32",
        "--block_size=64",
        "--attention_config.backend FLASH_ATTN",
        "-dcp 2 -ep --seed 1",
    ],
)
def test_a_spelling_that_means_one_flag_in_every_release_is_looked_up(line: str) -> None:
    assert list(questions(line.split())) == []


def test_no_list_holds_what_is_known_to_be_harmful() -> None:
    assert not NEVER_LISTED & set(lists().flags)
    assert not set(FORBIDDEN_ENV) & set(lists().env)
    assert not set(OWNED_FLAGS) & set(lists().flags)
    starts = {
        (flag, harmful)
        for flag in lists().flags
        for harmful in NEVER_LISTED | set(OWNED_FLAGS)
        if harmful.startswith(flag)
    }
    assert starts <= STARTS


@given(st.sampled_from(sorted(OWNED_FLAGS)), st.integers(3, 40), st.sampled_from(["", "=1", ".x"]))
def test_every_start_of_a_flag_that_sparkdeploy_decides_is_known(
    flag: str, length: int, rest: str
) -> None:
    start = flag[: max(length, 3)]
    for spelling in (start, "--" + start.removeprefix("--").replace("-", "_")):
        meant = flag_of(spelling + rest)
        assert meant in OWNED_FLAGS or meant in FIELD_OF_FLAG


@pytest.mark.parametrize("short", [short for short in SHORT_FORMS if len(short) > 1])
def test_a_short_form_means_its_flag_in_every_spelling(short: str) -> None:
    assert {flag_of(short), flag_of(f"{short}=2"), flag_of(f"{short}.x")} == {SHORT_FORMS[short]}
    if len(short) == 2 and SHORT_FORMS[short] in OWNED_FLAGS:
        assert flag_of(f"{short}2") == SHORT_FORMS[short]


def test_every_flag_of_a_field_has_a_row() -> None:
    switches = {*SWITCH_FLAGS.values()} - {"--trust-remote-code"}
    assert {*VALUE_FLAGS.values(), *JSON_FLAGS.values(), *switches} <= set(lists().flags)


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        nested = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        for kind in nested:
            yield from leaves(kind, f"{path}.")
        if not nested:
            yield path


def test_every_field_of_the_format_is_judged() -> None:
    by_flag = {f"serve.{name}" for name in {**VALUE_FLAGS, **SWITCH_FLAGS, **JSON_FLAGS}}
    judged = {*lists().fields, *lists().typed, *by_flag}
    assert set(leaves(Recipe)) == judged
    assert {name.split(".")[1] for name in by_flag} <= set(Serve.model_fields)


ASKS = {
    "glm-5.3-flash": {("image",)},
    "gpt-oss-120b-mxfp4": {("image",)},
    "qwen3.8-flash-next": {("image",)},
    "qwen3-vl-reranker": {
        ("serve", "hf_overrides", key)
        for key in ("architectures", "classifier_from_token", "is_original_qwen3_reranker")
    },
}
"""What shipped recipes ask for that a stranger's would need consent to: forks say so."""


@pytest.mark.parametrize("name", sorted(Library((REPOSITORY / "recipes",)).recipe_files()))
def test_the_shipped_recipes_would_pass_as_strangers(name: str) -> None:
    resolved = load_recipe(Library((REPOSITORY / "recipes",)), name)
    foreign = Library(()).foreign_files(resolved.origins)
    judge = Judge(resolved.recipe, resolved.origins, foreign)
    assert judge.foreign_files
    asked = {item.path for item in (*judge.consents(), *judge.self_consents())}
    assert asked == ASKS.get(name, set())
    assert (resolved.recipe.image is not None) <= (resolved.recipe.preview is not None)


def pattern_id(item: object) -> str:
    return item if isinstance(item, str) else ""


@pytest.mark.parametrize(("name", "row"), ROWS, ids=pattern_id)
def test_no_harmless_value_is_a_flag_a_path_or_a_module(name: str, row: Allowed) -> None:
    if row.value in {"repository", "marker"}:
        return
    # A list within JSON: `-op` there leaves an operator out.
    texts = [] if name == "custom_ops" else ["-x"]
    texts += ["--host", "/etc/passwd", "./x", "~/x", "a/b", "a.b", "a:b", "@x", "", " ", "1 "]
    texts += ["evil.Worker", "x.so", "http://x", "1\n", "\u0661", "1;id", "$(id)", "\0"]
    assert [text for text in texts if lists().matches(row, text)] == []


@settings(max_examples=examples(300))
@given(st.data())
def test_a_pattern_takes_little_time_whatever_it_is_given(data: st.DataObject) -> None:
    patterns = sorted({lists().pattern(row) for _, row in ROWS if row.value is not None})
    pattern = data.draw(st.sampled_from(patterns))
    piece = data.draw(st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True)) or "0"
    text = (piece * MAX_VALUE_LENGTH)[: MAX_VALUE_LENGTH - 1] + data.draw(st.sampled_from("!1a,"))
    begun = time.thread_time()
    re.fullmatch(pattern, text, re.ASCII)
    assert time.thread_time() - begun < 0.05


def test_no_value_of_a_flag_is_read_as_a_key_of_another() -> None:
    # vLLM's parser takes a word with `-` in front and a dot in it for a key, and the next with it.
    texts = ("-1.5", "-0.0", "-.5")
    rows = [row for row in lists().flags.values() if row.value is not None]
    assert not [row for row in rows for text in texts if lists().matches(row, text)]


def test_a_list_that_refers_to_nothing_is_refused() -> None:
    content: dict[str, Any] = json.loads(lists().model_dump_json())
    content["flags"]["--x"] = {"keys": "nowhere", "why": "a test"}
    with pytest.raises(ValueError, match="there is no table nowhere"):
        type(lists()).model_validate(content)
    content["flags"]["--x"] = {"value": "(", "why": "a test"}
    with pytest.raises(ValueError, match="unterminated"):
        type(lists()).model_validate(content)
