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
from sparkdeploy_vllm import register
from sparkdeploy_vllm.head.draft_head import DraftHeadMethod
from sparkdeploy_vllm.head.lm_head import IntegerLMHeadMethod
from vllm.config import get_current_vllm_config
from vllm.model_executor import custom_op
from vllm.model_executor.layers.logits_processor import LogitsProcessor

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


def _both_heads(rows: int = len(TOKENS), named: str = "cpu") -> tuple[Any, Any, Any, torch.Tensor]:
    """Target head, draft head and draft processor, made and loaded in vLLM's order.

    The draft head is processed while `named` is torch's default device.
    """
    wanted = {"rows": rows, "dtype": "int8", "file": FILE}
    config = _config(draft_lm_head=wanted, fp8=None, expected_fp8_layers=0)
    object.__setattr__(get_current_vllm_config(), "quant_config", config)
    target = _head(config)
    assert type(LogitsProcessor(VOCABULARY)) is LogitsProcessor
    weight = _load(target.weight, VOCABULARY)
    _process(target)
    _mlp(config, "mtp.layers.0.mlp.shared_expert")
    draft = _head(config)
    processor = LogitsProcessor(VOCABULARY)
    draft.weight.weight_loader(draft.weight, weight)
    with torch.device(named):
        _process(draft)
    return target, draft, processor, weight


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
