"""The lists of what a recipe from elsewhere may set: sound, and long enough for the field.

The tables are names, flags and values as recipes of others have them, or as an attack would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from sparkdeploy.recipe.flags import (
    FIELD_OF_FLAG,
    OWNED_FLAGS,
    SHORT_FORMS,
    flag_of,
)
from sparkdeploy.recipe.harmless import Allowed, lists, questions
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.unsafe import Judge
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = list(lists().rows())
HARMLESS_ENV = [
    ("VLLM_MARLIN_USE_ATOMIC_ADD", "1"),
    ("VLLM_USE_MEGA_AOT_ARTIFACT", "-1"),
    ("VLLM_ROCE_ALLREDUCE_MAX_SIZE", "2MB"),
    ("VLLM_DISTRIBUTED_EXECUTOR_CONFIG", '{"placement_group_options":{"strategy":"SPREAD"}}'),
    ("GLM53_SPINWAIT_MS", "stock"),
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:512"),
    ("TORCH_CUDA_ARCH_LIST", "9.0 12.1+PTX"),
    ("NCCL_IB_ADDR_FAMILY", "AF_INET"),
    ("OMP_NUM_THREADS", "4"),
    ("HF_HUB_OFFLINE", "1"),
]
HARMFUL_ENV = [
    ("TORCHINDUCTOR_CPP_MARCH", "native -fplugin=/m/hub/x.so"),
    ("CUDA_HOME", "/usr/local/cuda"),
    ("NCCL_NET", "evil"),
    ("NCCL_NET_PLUGIN", "/m/hub/x.so"),
    ("NCCL_DEBUG", "WARN\n"),
    ("VLLM_ALLOW_INSECURE_SERIALIZATION", "1"),
    ("VLLM_MARLIN_USE_ATOMIC_ADD", "1 "),
    ("VLLM_MARLIN_USE_ATOMIC_ADD", "\u0661"),
    ("vllm_marlin_use_atomic_add", "1"),
    ("VLLM_ROCE_ALLREDUCE_MAX_SIZE", "2MB; id"),
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,"),
    ("TORCH_CUDA_ARCH_LIST", "12.1a -fplugin=x"),
    ("HF_HUB_OFFLINE", "0"),
    ("https_proxy", "http://elsewhere"),
    ("OMP_NUM_THREADS", "9" * 5000),
]
HARMLESS_ARGUMENTS = [
    "--async-scheduling",
    "--block-size=64",
    "--block_size 64",
    "-dcp 2 -ep --seed 1",
    "--no-enable-flashinfer-autotune",
    "--cudagraph-capture-sizes 5 10 15 20 --seed 42",
    "--default-chat-template-kwargs.thinking=true",
    '--default-chat-template-kwargs {"reasoning_effort":"high","clear_thinking":false}',
    '--limit-mm-per-prompt {"image":{"count":2,"width":512}}',
    "--kv-cache-memory-bytes 0.5g",
    "--attention-config.use_fp4_indexer_cache true",
    "--attention_config.backend FLASH_ATTN",
    '--hf-overrides {"rope_scaling":{"rope_type":"yarn","factor":4.0}}',
]
HARMFUL_ARGUMENTS = [
    "--distributed-executor-backend ray",
    "--allowed-local-media-path /",
    "--worker-cls evil.Worker",
    "--logits_processors=evil",
    "--tool-parser-plug x.py",
    "--kv-transfer-config.kv_connector=evil",
    "@file",
    "--generation-config ./x",
    "--tokenizer-mode evil.mode",
    "--moe-backend evil:x",
    "-O3",
    "-cc.backend=evil.run",
    "-pp evil.run",
    "--block-siz 64",
    "--block-size",
    "--block-size 64 stray",
    "--block-size=",
    "--async-scheduling=true",
    "--async-scheduling.x true",
    "stray",
    "--",
    "--cudagraph-capture-sizes 1 2 x",
    '--hf-overrides {"auto_map":{"AutoConfig":"x.py"}}',
    "--hf-overrides [1]",
    '--hf-overrides {"rope_theta":1,"rope_theta":2}',
    "--cpu-offload-gb -1.5",
    "--hf-overrides " + "[" * 5000,
    '--limit-mm-per-prompt {"image":' + "9" * 5000 + "}",
    '--default-chat-template-kwargs {"chat_template":"x"}',
    '--compilation-config {"inductor_passes":{"x":"evil.run"}}',
    '--compilation-config {"custom_ops":[["all"]]}',
]
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


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        nested = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        for kind in nested:
            yield from leaves(kind, f"{path}.")
        if not nested:
            yield path


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
