"""Where things stand in a TurboQuant slot; vLLM's own layout is held against it inside an image."""

# mypy: disable-error-code="import-not-found"

import pytest
from sparkdeploy_vllm.turboquant.format import BITS, slot_format


@pytest.mark.parametrize(
    ("cache_dtype", "slot_bytes"),
    [
        ("turboquant_k8v4", 388),
        ("turboquant_4bit_nc", 262),
        ("turboquant_k3v4_nc", 230),
        ("turboquant_3bit_nc", 198),
    ],
)
def test_a_slot_of_256_dimensions(cache_dtype: str, slot_bytes: int) -> None:
    assert slot_format(cache_dtype, 256).slot_bytes == slot_bytes


@pytest.mark.parametrize("cache_dtype", BITS)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_parts_follow_one_another_and_slots_are_even(cache_dtype: str, head_dim: int) -> None:
    slot = slot_format(cache_dtype, head_dim)
    norm_bytes = 2 if slot.has_rotated_keys else 0
    assert slot.value_offset == slot.key_code_bytes + norm_bytes
    assert slot.scale_offset == slot.value_offset + head_dim * slot.value_bits // 8
    assert 0 <= slot.slot_bytes - (slot.scale_offset + 4) <= 1
    assert slot.slot_bytes % 2 == 0


def test_keys_of_eight_bits_come_as_they_are() -> None:
    assert not slot_format("turboquant_k8v4", 128).has_rotated_keys
    assert slot_format("turboquant_3bit_nc", 128).has_rotated_keys


def test_another_format_is_refused() -> None:
    with pytest.raises(KeyError):
        slot_format("fp8", 128)
