"""A draft model's own head on real layers: which tokens it proposes, and nothing else moves."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from check_vllm_hooks import _config, _head, _load, _mlp, _one_rank, _process, _vllm_log
from said import refusal
from sparkdeploy_vllm import register
from sparkdeploy_vllm.head.draft_head import DraftHeadMethod
from sparkdeploy_vllm.head.int4_reference import unpack_head
from sparkdeploy_vllm.head.lm_head import IntegerLMHeadMethod
from sparkdeploy_vllm.weights.reference import quantize_rows
from vllm.config import get_current_vllm_config
from vllm.model_executor import custom_op
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)

VOCABULARY = 500
TOKENS = [3, 7, 99, 200, 499]
FILE = "draft_vocabulary.json"


@contextlib.contextmanager
def _checkpoint(tokens: list[int]) -> Iterator[None]:
    """One rank that serves a checkpoint with a list of draft tokens."""
    with _one_rank(), tempfile.TemporaryDirectory() as folder:
        register()
        (Path(folder) / FILE).write_text(json.dumps({"tokens": tokens}))
        current = get_current_vllm_config()
        model = SimpleNamespace(model=folder, head_dtype=None, enable_sleep_mode=False)
        object.__setattr__(current, "model_config", model)
        try:
            yield
        finally:
            # The next check stands for another process.
            custom_op.op_registry_oot.pop(LogitsProcessor.__name__, None)


def _both_heads(
    rows: int = len(TOKENS), named: str = "cpu", lm_head: str = "int8"
) -> tuple[Any, Any, Any, torch.Tensor]:
    """Target head, draft rows and draft processor, made and loaded in vLLM's order.

    The draft model is made while `named` is torch's default device.
    """
    config = _serving(rows, lm_head)
    target = _head(config)
    assert type(LogitsProcessor(VOCABULARY)) is LogitsProcessor
    weight = _load(target.weight, VOCABULARY)
    _process(target)
    _mlp(config, "mtp.layers.0.mlp.shared_expert")
    with torch.device(named):
        processor = LogitsProcessor(VOCABULARY)
    return target, processor.own_head[0], processor, weight


def _serving(rows: int, lm_head: str) -> Any:
    wanted = {"rows": rows, "dtype": "int8", "file": FILE}
    config = _config(draft_lm_head=wanted, fp8=None, expected_fp8_layers=0, lm_head=lm_head)
    object.__setattr__(get_current_vllm_config(), "quant_config", config)
    return config


def check_the_draft_proposes_frequent_tokens_by_the_target_s_own_logits() -> None:
    with _checkpoint(TOKENS), _vllm_log() as log:
        target, draft, processor, weight = _both_heads()
        assert isinstance(target.quant_method, IntegerLMHeadMethod)
        assert isinstance(draft.quant_method, DraftHeadMethod)
        assert "sparkdeploy: draft head active: rows=5" in log.getvalue()
        x = torch.randn(4, 128, generator=torch.Generator().manual_seed(2)).bfloat16()
        x[0] = weight[99] * 20
        x[1] = weight[100] * 20
        # vLLM has given the draft model the target's head by now.
        drafted = processor(target, x)
        verified = LogitsProcessor.forward(processor, target, x)
        top = processor.get_top_tokens(target, x)
        best = _best_two(processor, target, x)
    assert drafted.shape == verified.shape == (4, VOCABULARY)
    assert drafted.dtype == verified.dtype == torch.float32
    # A product of 5 rows may add up in another order than one of 500, and once did.
    largest = verified.abs().max().item()
    torch.testing.assert_close(
        drafted[:, TOKENS], verified[:, TOKENS], rtol=1e-6, atol=1e-6 * largest
    )
    others = torch.ones(VOCABULARY, dtype=torch.bool)
    others[TOKENS] = False
    assert torch.isneginf(drafted[:, others]).all()
    assert torch.equal(top, drafted.argmax(dim=1))
    assert torch.equal(best, drafted.topk(2).indices)
    assert (drafted.argmax(dim=1)[0], verified.argmax(dim=1)[1]) == (99, 100)
    assert draft.weight.shape == (len(TOKENS), 128)
    assert draft.weight.dtype == torch.int8


def check_the_rows_are_those_of_whatever_the_target_s_head_became() -> None:
    for lm_head in ("bf16", "int8", "int4"):
        with _checkpoint(TOKENS):
            target, draft, _, weight = _both_heads(lm_head=lm_head)
            before = target.weight.clone()
            exact = weight[TOKENS]
            if lm_head == "int4":
                exact = unpack_head(target.weight, target.weight_scale)[TOKENS].bfloat16()
            rows, scales = quantize_rows(exact)
            assert torch.equal(draft.weight, rows), lm_head
            assert torch.equal(draft.weight_scale, scales), lm_head
            assert torch.equal(target.weight, before), lm_head


def check_a_model_that_ties_its_embeddings_drafts_from_them() -> None:
    with _checkpoint(TOKENS), _vllm_log() as log:
        config = _serving(len(TOKENS), "bf16")
        embeddings = VocabParallelEmbedding(VOCABULARY, 128, params_dtype=torch.bfloat16)
        assert type(embeddings) is VocabParallelEmbedding
        weight = _load(embeddings.weight, VOCABULARY)
        layer = ReplicatedLinear(128, 128, quant_config=config, prefix="model.layers.0.other")
        _process(layer, embeddings)
        processor = LogitsProcessor(VOCABULARY)
        assert processor.get_top_tokens(embeddings, weight[[99, 200]] * 20).tolist() == [99, 200]
        assert torch.isneginf(processor(embeddings, weight[:1])[:, 100]).all()
        assert torch.equal(embeddings.weight.data, weight_of(embeddings, weight))
    assert "sparkdeploy: draft head active: rows=5" in log.getvalue()


def weight_of(embeddings: Any, weight: torch.Tensor) -> torch.Tensor:
    padded = embeddings.weight.data.clone()
    padded[:VOCABULARY] = weight
    return padded


def check_a_drafter_with_a_head_of_its_own_keeps_it() -> None:
    with _checkpoint(TOKENS):
        _, _, processor, weight = _both_heads()
        own = ParallelLMHead(VOCABULARY, 128, params_dtype=torch.bfloat16)
        own.weight.weight_loader(own.weight, weight)
        _process(own)
        assert processor.get_top_tokens(own, weight[[100]] * 20).tolist() == [100]


def check_a_head_that_the_checkpoint_quantises_is_refused_by_name() -> None:
    with _checkpoint(TOKENS):
        config = _serving(len(TOKENS), "bf16")
        target = _head(config)
        _process(target)
        target.weight = torch.nn.Parameter(target.weight.to(torch.float8_e4m3fn), False)
        said = refusal(LogitsProcessor, VOCABULARY)
    assert "remove checkpoint.draft_lm_head" in said, said


def _best_two(processor: Any, head: Any, x: torch.Tensor) -> torch.Tensor:
    """By vLLM's reduction over ranks where it has one: not before 0.29."""
    if not hasattr(LogitsProcessor, "get_top_k_tokens"):
        return processor(head, x).topk(2).indices
    ids, _ = processor.get_top_k_tokens(head, x, 2)
    return ids


def check_a_list_that_is_not_the_announced_one_is_refused() -> None:
    for tokens, rows in ((TOKENS, 6), ([1, 1, 2], 3), ([0, VOCABULARY], 2), ([-1, 2], 2)):
        with _checkpoint(tokens):
            said = ""
            try:
                _both_heads(rows)
            except ValueError as error:
                said = str(error)
            assert FILE in said, (tokens, rows)


def check_without_the_option_the_draft_shares_the_target_s_head() -> None:
    with _one_rank():
        register()
        config = _config()
        object.__setattr__(get_current_vllm_config(), "quant_config", config)
        _mlp(config, "mtp.layers.0.mlp.shared_expert")
        _head(config)
        assert type(LogitsProcessor(VOCABULARY)) is LogitsProcessor


def check_a_server_that_can_sleep_gets_no_draft_head() -> None:
    refusal = ""
    with _checkpoint(TOKENS):
        get_current_vllm_config().model_config.enable_sleep_mode = True
        try:
            _both_heads()
        except ValueError as error:
            refusal = str(error)
    assert "--enable-sleep-mode" in refusal, "the rows would be lost with the first sleep"
