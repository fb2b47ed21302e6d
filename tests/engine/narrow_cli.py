"""`sparkdeploy` as on a processor without AVX-512.

python -m tests.engine.narrow_cli ARGUMENTS...
"""

from __future__ import annotations

from sparkdeploy.cli.start import main
from tests.engine.processor import narrowed_engines

if __name__ == "__main__":
    with narrowed_engines():
        main()
