"""Which vLLM release can do what: rows with their source; docs/engines.md shows the same."""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, int, int]


def parse_version(text: str) -> Version:
    major, minor, patch = text.split(".")
    return int(major), int(minor), int(patch)


def version_text(version: Version) -> str:
    return ".".join(map(str, version))


@dataclass(frozen=True, slots=True)
class Feature:
    """Something a recipe may ask for: the first release that has it, and how we know."""

    name: str
    since: Version
    source: str


MTP = Feature("MTP speculative decoding of Qwen3.5", (0, 19, 0), "qwen3_5_mtp.py in 0.19.1")
SPARK_HYBRID = Feature("the spark-hybrid plugin", (0, 19, 0), "plugins/__init__.py in 0.19.1")
MIDDLEWARE = Feature("--middleware", (0, 19, 0), "entrypoints/openai/cli_args.py in 0.19.1")
ONLINE_FP8_BLOCK = Feature(
    "the online FP8 per-block method class, which the plugin uses",
    (0, 20, 2),
    "sources of the 0.20.2 wheel; 0.19.1 has none (test_image_selfcheck_matrix.py)",
)
TURBOQUANT_HYBRID = Feature(
    "TurboQuant for models with linear attention",
    (0, 21, 0),
    "vllm#39931; 0.20.2 raises NotImplementedError",
)
TURBOQUANT_SPECULATION = Feature(
    "TurboQuant with speculation, which takes the plugin's override of its back end",
    (0, 21, 0),
    "vllm#53180; the fixes #53406 and #53410 are not in 0.33.0",
)
LM_HEAD_METHOD = Feature(
    "an INT8 LM head (before 0.23 the plugin replaces the layer: read in the sources, never run)",
    (0, 19, 0),
    "test_image_selfcheck_matrix.py",
)
DRAFT_LAYER = Feature(
    "INT4 experts that the plugin makes of a draft layer's, beside its FP8 matrices",
    (0, 25, 1),
    "auto_gptq.py of 0.25.1, 0.32.0 and 0.33.0; older releases were not read",
)
SHARED_INT4 = Feature(
    "INT4 linear layers that the plugin makes of shared experts",
    (0, 25, 1),
    "inc.py and auto_gptq.py of 0.25.1 and 0.33.0; older releases were not read",
)
MARLIN_NATIVE = Feature(
    "INT4 Marlin kernels compiled for SM12x", (0, 23, 0), "sm_120f in the wheel's _moe_C"
)
DFLASH = Feature(
    "DFlash speculative decoding",
    (0, 23, 0),
    "the release of the figure in recipes/dflash.yaml; beside Gated DeltaNet later, see there",
)
FP8_TARGETS = Feature(
    "FP8 per block on chosen layers of a quantised checkpoint by vLLM itself (online, on GPUs)",
    (0, 30, 0),
    "QuantizationConfigArgs.targets in the wheel of 0.30.0, none in 0.29.0"
    " (test_image_selfcheck_matrix.py)",
)


def supports(vllm: str, feature: Feature) -> bool:
    return parse_version(vllm) >= feature.since


def lacks(vllm: str, feature: Feature) -> str:
    since = version_text(feature.since)
    return f"vLLM {vllm} lacks {feature.name}: it came with {since} ({feature.source})"
