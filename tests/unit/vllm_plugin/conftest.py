"""Makes the plugin's source tree importable; it is not a dependency of the tool."""

import sys
from pathlib import Path

PLUGIN_TREE = Path(__file__).resolve().parents[3] / "sparkdeploy" / "vllm_plugin"
sys.path.insert(0, str(PLUGIN_TREE))
