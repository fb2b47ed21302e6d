"""The plugin's self-check against the Python sources of the vLLM releases it is meant for.

The wheels are fetched without their dependencies (3 GB in all, one at a time) and only their
Python files are kept; nothing is imported, as the CUDA builds need a driver.
"""

# mypy: disable-error-code="import-not-found"

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sparkdeploy import vllm_plugin
from sparkdeploy.recipe import releases
from sparkdeploy.settings import load_settings

sys.path.insert(0, str(Path(vllm_plugin.__file__).parent))
from sparkdeploy_vllm.check.selfcheck import HookFinding, check

RELEASES = (
    "0.19.1", "0.20.2", "0.22.1", "0.23.0", "0.25.1", "0.29.0", "0.30.0", "0.32.0", "0.33.0"
)  # fmt: skip
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux_2_35_x86_64")
HEAD = "ParallelLMHead(quant_config=...)"
ONLINE_FP8 = "Fp8PerBlockOnlineLinearMethod"
TARGETS = ("QuantizationConfigArgs.targets", ".resolve_quant_method", "OnlineQuantizationConfig.")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="session")
def sources() -> dict[str, Path]:
    """The unpacked Python files of every release, kept in the user's cache."""
    folder = load_settings().cache_dir / "vllm-sources"
    return {release: unpacked(folder, release) for release in RELEASES}


def unpacked(folder: Path, release: str) -> Path:
    target = folder / release
    if not target.is_dir():
        wheels = folder / "wheels"
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
        argv += ["--only-binary", ":all:", "--python-version", "3.12", *platforms]
        subprocess.run([*argv, "--dest", str(wheels), f"vllm=={release}"], check=True)
        (wheel,) = wheels.glob(f"vllm-{release}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".py")]
            archive.extractall(target.with_suffix(".part"), names)
        wheel.unlink()
        target.with_suffix(".part").rename(target)
    return target


def missing(findings: list[HookFinding]) -> set[str]:
    return {finding.api for finding in findings if not finding.fits}


def test_the_plugin_fits_every_release(
    sources: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = {release: check(root, vllm=release) for release, root in sources.items()}
    with capsys.disabled():
        print("\n" + "\n".join(as_lines(matrix)))
    unfit = {
        release: [f"{item.api}: {item.problem}" for item in findings if required_but_unfit(item)]
        for release, findings in matrix.items()
    }
    assert {release: found for release, found in unfit.items() if found} == {}


def required_but_unfit(finding: HookFinding) -> bool:
    return bool(finding.required and not finding.fits)


def as_lines(matrix: dict[str, list[HookFinding]]) -> list[str]:
    words = {True: "fits", False: "-"}
    lines = [f"{'':72}" + "".join(f"{release:>8}" for release in matrix)]
    for rows in zip(*matrix.values(), strict=True):
        name = re.sub(r"^vllm\.", "", rows[0].api)[-70:]
        marks = (words[row.fits] if row.fits or not row.required else "UNFIT" for row in rows)
        lines.append(f"{name:72}" + "".join(f"{mark:>8}" for mark in marks))
    return lines


@pytest.mark.parametrize("release", RELEASES)
def test_the_table_of_features_says_what_the_sources_say(
    sources: dict[str, Path], release: str
) -> None:
    absent = missing(check(sources[release], vllm=release))
    has_head = not any(HEAD in api for api in absent)
    has_online_fp8 = not any(ONLINE_FP8 in api for api in absent)
    has_targets = not any(part in api for api in absent for part in TARGETS)
    assert has_targets is (releases.parse_version(release) >= (0, 30, 0))
    assert has_head is releases.LM_HEAD_METHOD.is_in(release)
    assert has_online_fp8 is releases.ONLINE_FP8_BLOCK.is_in(release)


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (
            "vllm/model_executor/layers/vocab_parallel_embedding.py",
            "def embedding(self, layer: torch.nn.Module, input_",
            "def embedding(self, layer: torch.nn.Module, ids",
            "UnquantizedEmbeddingMethod.embedding",
        ),
        (
            "vllm/model_executor/layers/quantization/online/fp8.py",
            "class Fp8PerBlockOnlineLinearMethod",
            "class Fp8PerBlockOnlineMethod",
            "Fp8PerBlockOnlineLinearMethod.create_weights",
        ),
        (
            "vllm/model_executor/layers/linear.py",
            "resolve_quant_method(quant_config, self, prefix=prefix)",
            "quant_config.get_quant_method(self, prefix)",
            "linear.resolve_quant_method",
        ),
        (
            *("vllm/model_executor/layers/logits_processor.py", "def get_top_k_tokens("),
            *("def get_best_tokens(", "LogitsProcessor, in whose place"),
        ),
    ],
)
def test_a_changed_api_is_found(
    sources: dict[str, Path], file: str, old: str, new: str, words: str
) -> None:
    path = sources["0.33.0"] / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    try:
        findings = check(sources["0.33.0"], vllm="0.33.0")
    finally:
        path.write_text(text, encoding="utf-8")
    assert any(words in item.api for item in findings if required_but_unfit(item))
