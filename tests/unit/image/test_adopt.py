"""Which existing images fit an engine."""

import pytest

from sparkdeploy.image.inside.adopt import refusal


@pytest.mark.parametrize("vllm", ["0.25.1", "0.25.1+cu130", "0.25.1.dev0+g1234"])
def test_an_image_of_the_engines_release_fits(vllm: str) -> None:
    assert refusal("0.25.1", "cuda", vllm=vllm, torch_cuda="13.0") is None


@pytest.mark.parametrize(
    ("device", "vllm", "torch_cuda", "words"),
    [
        ("cuda", "0.33.0", "13.0", "it has vLLM 0.33.0, and the engine says 0.25.1"),
        ("cuda", "0.25.10", "13.0", "it has vLLM 0.25.10"),
        ("cuda", "dev", "13.0", "it has vLLM dev"),
        ("cuda", None, "13.0", "no version"),
        ("cuda", "0.25.1", None, "its torch is a CPU build"),
    ],
)
def test_any_other_is_refused_with_the_reason(
    device: str, vllm: str | None, torch_cuda: str | None, words: str
) -> None:
    assert words in (refusal("0.25.1", device, vllm=vllm, torch_cuda=torch_cuda) or "")


def test_a_cpu_build_fits_an_engine_that_says_so() -> None:
    assert refusal("0.32.0", "cpu", vllm="0.32.0+cpu", torch_cuda=None) is None
