"""On a release whose CPU engine knows no drafts, Gated DeltaNet gives the same bits with them."""

from types import SimpleNamespace

import torch
from sparkdeploy_vllm import register
from sparkdeploy_vllm.cpu.drafts import Tokens, attend
from torch import Tensor
from vllm.platforms import current_platform

KEY_HEADS, VALUE_HEADS, DIM, WIDTH, SLOTS, DRAFTS = 2, 4, 128, 4, 12, 2
KEYS, VALUES = KEY_HEADS * DIM, VALUE_HEADS * DIM
CHANNELS = 2 * KEYS + VALUES
PROMPT, TEXT = 5, 9


def _layer() -> SimpleNamespace:
    """As much of vLLM's layer as the attention reads."""

    def rearrange(mixed_qkv: Tensor) -> tuple[Tensor, ...]:
        query, key, value = mixed_qkv.split([KEYS, KEYS, VALUES], dim=-1)
        heads = ((query, KEY_HEADS), (key, KEY_HEADS), (value, VALUE_HEADS))
        return tuple(it.reshape(1, -1, count, DIM).contiguous() for it, count in heads)

    return SimpleNamespace(
        kv_cache=[
            torch.zeros(SLOTS, WIDTH - 1 + DRAFTS, CHANNELS).bfloat16(),
            torch.zeros(SLOTS, VALUE_HEADS, DIM, DIM),
        ],
        conv1d=SimpleNamespace(weight=torch.randn(CHANNELS, 1, WIDTH).bfloat16() * 0.3, bias=None),
        A_log=torch.rand(VALUE_HEADS).log(),
        dt_bias=torch.randn(VALUE_HEADS).bfloat16(),
        activation="silu",
        rearrange_mixed_qkv=rearrange,
    )


def _metadata(**told: object) -> SimpleNamespace:
    empty = {"num_decodes": 0, "num_prefills": 0, "num_spec_decodes": 0}
    return SimpleNamespace(**{"spec_sequence_masks": None, **empty, **told})


def _ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _write(layer: SimpleNamespace, tokens: Tokens, metadata: SimpleNamespace) -> Tensor:
    out = torch.zeros(tokens.a.shape[0], VALUE_HEADS, DIM).bfloat16()
    attend(layer, metadata, tokens, out)
    return out


def _prompt(layer: SimpleNamespace, tokens: Tokens, slot: int) -> Tensor:
    told = _metadata(
        num_prefills=1,
        num_actual_tokens=PROMPT,
        non_spec_state_indices_tensor=_ints(slot),
        non_spec_query_start_loc=_ints(0, PROMPT),
        has_initial_state=torch.tensor([False]),
    )
    return _write(layer, tokens, told)


def _one(layer: SimpleNamespace, tokens: Tokens, slot: int) -> Tensor:
    told = _metadata(num_decodes=1, num_actual_tokens=1, non_spec_state_indices_tensor=_ints(slot))
    return _write(layer, tokens, told)


def _verified(layer: SimpleNamespace, tokens: Tokens, slots: list[int], accepted: int) -> Tensor:
    count = tokens.a.shape[0]
    told = _metadata(
        spec_sequence_masks=torch.tensor([True]),
        num_spec_decodes=1,
        num_actual_tokens=count,
        spec_token_indx=torch.arange(count),
        non_spec_token_indx=torch.arange(0),
        spec_state_indices_tensor=_ints(*slots)[None],
        num_accepted_tokens=_ints(accepted),
        spec_query_start_loc=_ints(0, count),
    )
    return _write(layer, tokens, told)


def _with_wrong_drafts(tokens: Tokens, first: int, right: int) -> Tokens:
    """A step's tokens from `first` on, of which those after `right` are not what comes next."""
    step = tokens.at(slice(first, first + DRAFTS + 1))
    wrong = torch.randn_like(step.mixed_qkv[right:])
    return Tokens(torch.cat([step.mixed_qkv[:right], wrong]), step.b, step.a)


def check_drafts_right_and_wrong_change_nothing_that_is_said() -> None:
    if not current_platform.is_cpu():
        return
    register()
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

    if not hasattr(gdn_attention, "causal_conv1d_update_torch"):
        return
    layer = _layer()
    count = PROMPT + TEXT + DRAFTS
    tokens = Tokens(
        torch.randn(count, CHANNELS).bfloat16(),
        torch.randn(count, VALUE_HEADS).bfloat16(),
        torch.randn(count, VALUE_HEADS).bfloat16(),
    )
    slot, slots = 1, [4, 5, 6]
    prompt = tokens.at(slice(PROMPT))
    assert torch.equal(_prompt(layer, prompt, slot), _prompt(layer, prompt, slots[0]))
    alone = [_one(layer, tokens.at(slice(at, at + 1)), slot) for at in range(PROMPT, count)]
    at, accepted = PROMPT, 1
    for right in (1, 3, 2, 1, 2):
        got = _verified(layer, _with_wrong_drafts(tokens, at, right), slots, accepted)
        for index in range(right):
            assert torch.equal(got[index], alone[at - PROMPT + index][0]), (right, index)
        at, accepted = at + right, right
    assert at == PROMPT + TEXT
