"""`sparkdeploy` as on a Docker Engine for aarch64, whose containers start slowly.

python -m tests.engine.emulated_cli ARGUMENTS...
"""

from __future__ import annotations

from unittest.mock import patch

from sparkdeploy.cli.start import main
from sparkdeploy.node import facts
from sparkdeploy.rehearsal import miniature

if __name__ == "__main__":
    with (
        patch.object(facts, "architecture_of", lambda *_: "aarch64"),
        patch.object(miniature, "STARTUP_TIMEOUT_S", 3600.0),
    ):
        main()
