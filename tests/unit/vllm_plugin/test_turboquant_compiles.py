"""The decode kernel's source through NVIDIA's compiler, where its Python bindings are installed.

No GPU is needed: NVRTC makes the code of any.
"""

# mypy: disable-error-code="import-not-found"

from dataclasses import asdict
from itertools import product
from typing import Any

import pytest
from sparkdeploy_vllm.turboquant.format import BITS, slot_format
from sparkdeploy_vllm.turboquant.tiles import SHIPPED, shipped_tile

pytestmark = pytest.mark.outside

ARCHITECTURES = {9: "sm_90", 12: "sm_121"}
SHAPES = ((32, 2, 256, 16), (16, 8, 64, 128))
ELF = b"\x7fELF"


@pytest.fixture(scope="module")
def launcher() -> Any:
    pytest.importorskip("cuda.bindings", reason="NVIDIA's cuda-bindings are not installed")
    from sparkdeploy_vllm.turboquant import launch

    return launch


@pytest.mark.parametrize("cache_dtype", BITS)
@pytest.mark.parametrize("major", SHIPPED)
def test_the_source_compiles_for_every_format(launcher: Any, cache_dtype: str, major: int) -> None:
    for (heads, kv_heads, head_dim, page), tokens in product(SHAPES, (1, 4)):
        slot = slot_format(cache_dtype, head_dim)
        rows = tokens * heads // kv_heads
        tile = shipped_tile(major, slot, kv_heads, rows)
        assert tile is not None
        sizes = asdict(slot) | asdict(tile) | {
            "kv_heads": kv_heads, "group": heads // kv_heads, "most_tokens": tokens, "page": page,
            "most_splits": 256, "query_bf16": tokens % 2,
        }  # fmt: skip
        code = launcher.compiled(tuple(sizes.items()), ARCHITECTURES[major])
        assert code.startswith(ELF)
        assert all(name.encode() in code for name in (launcher.ATTEND, launcher.JOIN))


def test_what_the_compiler_says_is_told(
    launcher: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text("int f() { return nothing; }")
    monkeypatch.setattr(launcher, "SOURCE", source)
    with pytest.raises(launcher.CudaError, match=r'identifier "nothing" is undefined'):
        launcher.compiled((), "sm_90")
