"""The plugin inside the real vLLM, on real layers: registration, dispatch, loading, processing."""

import contextlib
import copy
import io
import logging
import pickle
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from said import refusal
from sparkdeploy_vllm import register
from sparkdeploy_vllm.head.lm_head import IntegerLMHeadMethod, ReportingLMHeadMethod, warm_up
from sparkdeploy_vllm.head.tiles import HeadKey
from sparkdeploy_vllm.tuning.tiles import choose, tuned_path
from sparkdeploy_vllm.weights.fp8_linear import ReferenceFp8LinearMethod
from sparkdeploy_vllm.weights.hybrid_config import SparkHybridConfig
from vllm.config import VllmConfig, get_current_vllm_config, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)

EXPERT = "language_model.model.layers.0.mlp.shared_expert"
CONFIG: dict[str, Any] = {
    "quant_method": "spark-hybrid",
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "packing_format": "auto_round:auto_gptq",
    "block_name_to_quantize": "model.language_model.layers",
    "extra_config": {
        f"model.{EXPERT}.{name}": {"bits": 16} for name in ("gate_proj", "up_proj", "down_proj")
    },
    "spark_hybrid": {
        "version": 1,
        "base_method": "auto-round",
        "fp8": {"mode": "online", "layers": "shared_expert", "block": [128, 128]},
        "lm_head": "int8",
        "expected_fp8_layers": 3,
    },
}


def _config(**block: object) -> SparkHybridConfig:
    config = copy.deepcopy(CONFIG)
    config["spark_hybrid"].update(block)
    made = SparkHybridConfig.from_config(config)
    made.packed_modules_mapping = {"gate_up_proj": ["gate_proj", "up_proj"]}
    return made


@contextlib.contextmanager
def _one_rank() -> Iterator[None]:
    """VLLM's context for building layers, in one process."""
    with set_current_vllm_config(VllmConfig()), tempfile.NamedTemporaryFile() as file:
        if not parallel_state.model_parallel_is_initialized():
            parallel_state.init_distributed_environment(
                1, 0, f"file://{file.name}", 0, backend="gloo"
            )
            parallel_state.initialize_model_parallel(1, 1)
        yield


def _mlp(config: SparkHybridConfig, stem: str = EXPERT) -> tuple[Any, Any]:
    gate_up = MergedColumnParallelLinear(
        128, [256, 256], bias=False, quant_config=config, prefix=f"{stem}.gate_up_proj"
    )
    down = RowParallelLinear(256, 128, bias=False, quant_config=config, prefix=f"{stem}.down_proj")
    return gate_up.bfloat16(), down.bfloat16()


def _head(config: SparkHybridConfig, vocabulary: int = 500) -> ParallelLMHead:
    head = ParallelLMHead(
        vocabulary,
        128,
        params_dtype=torch.bfloat16,
        quant_config=config,
        prefix="language_model.lm_head",
    )
    _load(head.weight, vocabulary)
    return head


def _load(parameter: torch.nn.Parameter, rows: int, *shard: int) -> torch.Tensor:
    weight = (torch.randn(rows, parameter.shape[1]) * 0.05).bfloat16()
    parameter.weight_loader(parameter, weight, *shard)
    return weight


def _process(*layers: torch.nn.Module) -> None:
    for layer in layers:
        layer.quant_method.process_weights_after_loading(layer)


@contextlib.contextmanager
def _vllm_log() -> Iterator[io.StringIO]:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logger = logging.getLogger("vllm.sparkdeploy")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield text
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def check_the_name_is_registered_and_twice_is_fine() -> None:
    register()
    register()
    assert get_quantization_config("spark-hybrid") is SparkHybridConfig


def check_every_way_vllm_asks_leads_to_us() -> None:
    override = SparkHybridConfig.override_quantization_method
    assert override(CONFIG, None) == "spark-hybrid"
    assert override(CONFIG, "spark-hybrid", hf_config=object()) == "spark-hybrid"
    assert override(CONFIG, None, hf_config=None, new_in_a_later_version=1) == "spark-hybrid"
    assert override({"quant_method": "auto-round"}, None) is None
    assert override(None, None) is None


def check_the_config_travels_by_pickle_and_deepcopy() -> None:
    for travelled in (pickle.loads(pickle.dumps(_config())), copy.deepcopy(_config())):
        assert isinstance(travelled, SparkHybridConfig)
        assert travelled.conversion == _config().conversion
        assert travelled.ledger == _config().ledger


def check_layers_get_the_right_method() -> None:
    with _one_rank():
        config = _config()
        gate_up, down = _mlp(config)
        assert isinstance(gate_up.quant_method, ReferenceFp8LinearMethod)
        assert isinstance(down.quant_method, ReferenceFp8LinearMethod)
        gate = ReplicatedLinear(
            128, 1, quant_config=config, prefix="model.layers.0.mlp.shared_expert_gate"
        )
        assert not isinstance(gate.quant_method, ReferenceFp8LinearMethod)
        assert isinstance(_head(config).quant_method, IntegerLMHeadMethod)
        assert isinstance(_head(_config(lm_head="bf16")).quant_method, ReportingLMHeadMethod)
        plain = _config().get_quant_method(down, "mtp.layers.0.mlp.shared_expert.down_proj")
        assert not isinstance(plain, ReferenceFp8LinearMethod)


def check_loading_converts_counts_and_announces() -> None:
    with _one_rank(), _vllm_log() as log:
        config = _config()
        gate_up, down = _mlp(config)
        head = _head(config)
        gate, up = (_load(gate_up.weight, 256, shard) for shard in (0, 1))
        down_weight = _load(down.weight, 128)
        _load(head.weight, 500)
        _process(gate_up, down)
        assert log.getvalue() == ""
        _process(head)
        line = "sparkdeploy: spark-hybrid active: fp8=3 layers, lm_head=int8"
        assert log.getvalue().splitlines() == [line]
        _process(gate_up, down, head)
        assert log.getvalue().splitlines() == [line]
    assert gate_up.weight.dtype == torch.float8_e4m3fn
    assert gate_up.weight_scale_inv.shape == (4, 1)
    x = torch.randn(5, 128).bfloat16()
    exact = x.double() @ torch.cat([gate, up]).double().T
    got = gate_up(x)[0]
    assert ((got.double() - exact).norm() / exact.norm()).item() < 0.06
    assert down.weight.shape == down_weight.shape


def check_int8_logits_agree_with_bf16_through_vllm_s_logits_processor() -> None:
    with _one_rank():
        head = _head(_config())
        weight = _load(head.weight, 500)
        head.quant_method.ledger.whole_model = False  # no FP8 layers here to be missed
        _process(head)
        x = torch.randn(6, 128).bfloat16()
        # Half the rows point at a vocabulary entry, so that the top is not a tie.
        x[:3] = weight[[7, 99, 499]] * 20
        processor = LogitsProcessor(500)
        logits = processor._get_logits(x, head, None)
        top = processor.get_top_tokens(head, x)
    assert torch.equal(top, logits.argmax(dim=1))
    assert head.weight.dtype == torch.int8
    assert head.weight.shape[0] % 64 == 0
    assert logits.shape == (6, 500)
    exact = x.double() @ weight.double().T
    assert ((logits.double() - exact).norm() / exact.norm()).item() < 0.015
    assert logits[:3].argmax(dim=1).tolist() == [7, 99, 499]


def check_the_log_says_once_where_the_head_s_tiles_are_from() -> None:
    key = HeadKey("NVIDIA GB10", (12, 1), 512, 128, kernel="made-for-this", triton="3.6.0")
    with tempfile.TemporaryDirectory() as name:
        tuned_path(key, Path(name)).write_text("{")
        choice = choose(key, Path(name))
    # The kernels need Triton and a card, the choice of their tiles neither.
    kernels = ModuleType("sparkdeploy_vllm.head.kernel")
    asked = mock.Mock(return_value=choice)
    kernels.prepare = asked  # type: ignore[attr-defined]
    layer = SimpleNamespace(
        weight=SimpleNamespace(is_cuda=True),
        weight_scale=None,
        params_dtype=torch.bfloat16,
        logits_dtype=torch.float32,
    )
    with mock.patch.dict(sys.modules, {kernels.__name__: kernels}), _vllm_log() as log:
        warm_up(layer)
        warm_up(layer)
    # Else the first request, or the capture of a graph, would compile.
    assert asked.call_args.kwargs == {"out_dtype": torch.float32}
    ignored, said = log.getvalue().splitlines()
    assert "is not used: it is damaged: JSONDecodeError" in ignored
    assert said.startswith("sparkdeploy: INT8 head 512 x 128: tiles=shipped (sm_12x: derived")


def check_a_tied_embedding_keeps_its_bf16_matrix() -> None:
    with _one_rank():
        config = _config(fp8=None, expected_fp8_layers=0)
        embedding = VocabParallelEmbedding(500, 128).bfloat16()
        _load(embedding.weight, 500)
        before = embedding.weight.clone()
        head = _head(config)
        head.tie_weights(embedding)
        _process(head)
        ids = torch.tensor([0, 7, 499])
        rows = head.quant_method.embedding(head, ids)
    assert embedding.weight.dtype == torch.bfloat16
    assert torch.equal(embedding.weight, before)
    assert head.weight.dtype == torch.int8
    assert torch.allclose(rows.float(), before[ids].float(), atol=0.002)


def check_a_draft_model_neither_counts_nor_fails() -> None:
    with _one_rank(), _vllm_log() as log:
        config = _config()
        layers = (*_mlp(config), _head(config))
        _process(*layers)
        draft = _mlp(config, "mtp.layers.0.mlp.shared_expert")
        assert not isinstance(draft[0].quant_method, ReferenceFp8LinearMethod)
        _process(_head(config))
        own = _config()  # some versions read the config again for the draft
        _mlp(own, "mtp.layers.0.mlp.shared_expert")
        _process(_head(own))
    assert len(log.getvalue().splitlines()) == 1


def check_a_mismatch_stops_the_start() -> None:
    with _one_rank():
        config = _config(expected_fp8_layers=6)
        layers = (*_mlp(config), _head(config))
        said = refusal(_process, *layers)
    assert "expects 6 FP8 layers, 3 were converted" in said, said


def check_a_model_whose_layers_have_other_names_stops_the_start() -> None:
    with _one_rank():
        config = _config(lm_head="bf16")
        layers = _mlp(config, "elsewhere.mlp.common_expert")
        said = refusal(_process, *layers)
    assert "expects 3 FP8 layers, 0 were converted" in said, said


def check_weights_that_another_start_converted_are_refused() -> None:
    for load_format in ("sharded_state", "tensorizer"):
        with _one_rank():
            get_current_vllm_config().load_config.load_format = load_format
            said = refusal(_mlp, _config())
        assert load_format in said, said
