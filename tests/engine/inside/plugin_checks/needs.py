"""What a check needs of the processor, by vLLM's own question."""

from collections.abc import Callable

import torch

AVX512: set[str] = set()
"""Checks of what vLLM's CPU build has only in its half for AVX-512."""


def needs_avx512(check: Callable[[], None]) -> Callable[[], None]:
    """Mark a check that is left out where vLLM finds no AVX-512."""
    AVX512.add(f"{check.__module__}.{check.__name__}")
    return check


def missing(name: str) -> str | None:
    """Return what a check needs and this processor lacks."""
    lacks = name in AVX512 and not torch.cpu._is_avx512_supported()
    return "AVX-512" if lacks else None
