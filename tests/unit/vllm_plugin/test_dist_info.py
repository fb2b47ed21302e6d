"""What makes the plugin's folder a distribution whose entry points vLLM finds."""

# mypy: disable-error-code="import-not-found"

import shutil
from importlib.metadata import distributions
from pathlib import Path

import sparkdeploy_vllm

from tests.unit.vllm_plugin.conftest import PLUGIN_TREE


def test_both_entry_points_are_found_beside_the_package(tmp_path: Path) -> None:
    shutil.copytree(PLUGIN_TREE / "dist-info", tmp_path / "sparkdeploy_vllm-0.1.0.dist-info")
    (found,) = distributions(path=[str(tmp_path)])
    assert (found.name, found.version) == ("sparkdeploy-vllm", sparkdeploy_vllm.__version__)
    assert {(one.group, one.value) for one in found.entry_points} == {
        ("console_scripts", "sparkdeploy_vllm.guard:main"),
        ("vllm.general_plugins", "sparkdeploy_vllm:register"),
    }
