"""The self-check over small source trees of our own."""

# mypy: disable-error-code="import-not-found"

import ast
import shutil
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sparkdeploy_vllm
from sparkdeploy_vllm.check import selfcheck
from sparkdeploy_vllm.check.selfcheck import (
    STAND_INS,
    TOUCHED,
    Api,
    HookFinding,
    StandIn,
    check,
    uncovered,
)
from sparkdeploy_vllm.check.source_tree import SourceTree

from tests.unit.vllm_plugin.conftest import PLUGIN_TREE

SOURCES = {
    "engine/__init__.py": "",
    "engine/quant/__init__.py": (
        "from .inner import Config as Config\nfrom engine.other import say\n"
    ),
    "engine/quant/inner.py": (
        "from engine.base import Base as Parent\n"
        "class Config(Parent[int]):\n"
        "    @classmethod\n"
        "    def from_config(cls, config, extra=None): ...\n"
    ),
    "engine/base.py": "class Base:\n    def apply(self, layer, x, bias=None, *, fast=False): ...\n",
    "engine/fields.py": (
        "from engine.base import Base\n"
        "if True:\n    registry: dict = {}\n"
        "class Settings(Base):\n    targets: dict | None = None\n    FIRST = 'per_block'\n"
        "def ask(layer):\n    return Settings(layer, prefix='a', wait=True)\n"
    ),
    "engine/other.py": "try:\n    import nothing\nexcept ImportError:\n    def say(line): ...\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def look(tree: Path, name: str, arguments: tuple[str, ...]) -> HookFinding:
    return check(tree, [Api("engine.quant", name, arguments)])[0]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Config.from_config", ("config",)),
        ("Config.apply", ("layer", "x", "bias")),
        ("Config.apply", ("layer", "x")),
        ("say", ("line",)),
    ],
)
def test_re_exports_base_classes_and_conditional_definitions_are_followed(
    tree: Path, name: str, arguments: tuple[str, ...]
) -> None:
    assert look(tree, name, arguments).fits


@pytest.mark.parametrize(
    ("name", "keywords", "trace", "fits"),
    [
        ("Settings", ("prefix",), "called", True),
        ("Settings", ("prefix", "layer"), "called", False),
        ("ask", ("prefix",), "called", False),
        ("per_block", None, "named", True),
        ("per_channel", None, "named", False),
    ],
)
def test_calls_and_words_are_looked_for(
    tree: Path, name: str, keywords: tuple[str, ...] | None, trace: Any, fits: bool
) -> None:
    assert check(tree, [Api("engine.fields", name, keywords, trace=trace)])[0].fits is fits


def test_a_renamed_argument_is_found(tree: Path) -> None:
    base = tree / "engine/base.py"
    base.write_text(base.read_text().replace("layer, x", "module, x"))
    finding = look(tree, "Config.apply", ("layer", "x"))
    assert not finding.fits
    assert "takes (module, x, bias)" in finding.problem


@pytest.mark.parametrize("change", ["layer, x, scale, bias=None", "layer, x, *, scale"])
def test_a_new_argument_that_must_be_given_is_found(tree: Path, change: str) -> None:
    (tree / "engine/base.py").write_text(f"class Base:\n    def apply(self, {change}): ...\n")
    assert "also needs scale" in look(tree, "Config.apply", ("layer", "x")).problem


def test_a_head_made_without_the_quantisation_config_is_found(tree: Path) -> None:
    findings = check(tree, [], stand_ins=())
    assert len(findings) == 2
    assert not any(finding.fits for finding in findings)


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [("vocabulary, quant_config=None, prefix=''", True), ("vocabulary", False)],
)
def test_before_0_23_the_head_must_be_replaceable(tree: Path, arguments: str, fits: bool) -> None:
    layers, models = (tree / "vllm" / "model_executor" / name for name in ("layers", "models"))
    for folder in (layers, models):
        folder.mkdir(parents=True)
    head = f"class ParallelLMHead:\n    def __init__(self, {arguments}): ...\n"
    (layers / "vocab_parallel_embedding.py").write_text(head)
    for name in ("qwen3_5", "qwen3_5_mtp"):
        (models / f"{name}.py").write_text("head = ParallelLMHead(500, prefix='lm_head')\n")
    assert [finding.fits for finding in check(tree, [], "0.22.1", ())] == [fits, fits]
    assert not any(finding.fits for finding in check(tree, [], "0.23.0", ()))


@pytest.mark.parametrize(
    ("vllm", "required"), [("0.22.1", False), ("0.23.0+cpu", True), ("unknown", True)]
)
def test_a_hook_is_required_of_releases_that_can_have_it(
    tree: Path, vllm: str, required: bool
) -> None:
    api = Api("engine.quant", "Config.gone", since=(0, 23))
    findings = check(tree, [api], vllm, ())
    assert [finding.required for finding in findings] == [required, True, True]
    assert not any(finding.fits for finding in findings)


LOGITS = """
class LogitsProcessor(Layer):
    def forward(self, lm_head, hidden_states): ...
    def get_top_tokens(self, lm_head, hidden_states): ...
    def get_top_k_tokens(self, lm_head, hidden_states, k): ...
    def _get_logits(self, hidden_states, lm_head): ...
    def extra_repr(self): ...
"""
ATTENTION = """
class AttentionMetadataBuilder:
    def build(self, common_prefix_len, common_attn_metadata): ...
    def update_block_table(self, metadata, blk_table, slot_mapping): ...
class TurboQuantMetadataBuilder(AttentionMetadataBuilder[int]):
    def __init__(self, vllm_config): ...
    def build(self, common_prefix_len, common_attn_metadata): ...
"""


def stand_in_for(name: str) -> StandIn:
    (found,) = (stand_in for stand_in in STAND_INS if stand_in.theirs[1] == name)
    return found


def passing_by(tree: Path, stand_in: StandIn, source: str) -> list[str]:
    path = tree.joinpath(*stand_in.theirs[0].split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    (finding,) = check(tree, [], stand_ins=[stand_in])[:1]
    names = uncovered(SourceTree(tree), stand_in)
    assert (finding.fits, finding.required) == (not names, True)
    assert all(name in finding.problem for name in names)
    return names


def test_a_head_method_of_a_new_release_that_ours_lets_pass_is_found(tmp_path: Path) -> None:
    stand_in = stand_in_for("LogitsProcessor")
    assert passing_by(tmp_path, stand_in, LOGITS) == []
    more = f"{LOGITS}    def get_best(self, hidden_states, *, lm_head=None): ...\n"
    assert passing_by(tmp_path, stand_in, more) == ["LogitsProcessor.get_best"]


def test_a_method_known_as_harmless_is_looked_at_anew_where_a_release_redefines_it(
    tmp_path: Path,
) -> None:
    stand_in = stand_in_for("TurboQuantMetadataBuilder")
    assert passing_by(tmp_path, stand_in, ATTENTION) == []
    more = f"{ATTENTION}    def update_block_table(self, metadata, blk_table): ...\n"
    found = passing_by(tmp_path, stand_in, more)
    assert found == ["TurboQuantMetadataBuilder.update_block_table"]


def test_what_the_turboquant_back_end_imports_of_vllm_is_looked_at() -> None:
    source = (PLUGIN_TREE / "sparkdeploy_vllm" / "turboquant" / "backend.py").read_text()
    tree = ast.parse(source)
    in_handlers = {
        node
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler)
        for node in ast.walk(handler)
    }
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node not in in_handlers
        if (node.module or "").startswith("vllm.")
        for alias in node.names
    }
    looked_at = {f"{api.module}.{api.name.partition('.')[0]}" for api in TOUCHED}
    looked_at |= {api.module for api in TOUCHED}
    assert len(imported) > 3
    assert imported - looked_at == set()


@pytest.mark.parametrize(("required", "code"), [(True, 1), (False, 0)])
def test_only_a_required_hook_that_does_not_fit_ends_the_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, required: bool, code: int
) -> None:
    spec = SimpleNamespace(origin=str(tmp_path / "vllm" / "__init__.py"))
    findings = [HookFinding("it", "does not exist", required), HookFinding("other", "")]
    monkeypatch.setattr(selfcheck, "find_spec", lambda _name: spec)
    monkeypatch.setattr(selfcheck, "check", lambda *_, **__: list(findings))
    monkeypatch.setattr(selfcheck, "_entry_point_finding", lambda: HookFinding("point", ""))
    assert selfcheck.main([]) == code


def test_both_entry_points_are_found_beside_the_package(tmp_path: Path) -> None:
    shutil.copytree(PLUGIN_TREE / "dist-info", tmp_path / "sparkdeploy_vllm-0.1.0.dist-info")
    (found,) = distributions(path=[str(tmp_path)])
    assert (found.name, found.version) == ("sparkdeploy-vllm", sparkdeploy_vllm.__version__)
    assert {(one.group, one.value) for one in found.entry_points} == {
        ("console_scripts", "sparkdeploy_vllm.guard:main"),
        ("vllm.general_plugins", "sparkdeploy_vllm:register"),
    }
