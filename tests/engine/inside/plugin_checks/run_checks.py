"""Runs every check_* function of the check_*.py files here; needs vLLM and the plugin, no pytest.

Inside an engine image: `python plugin_checks/run_checks.py [name ...]`; exit 0 or 1.
"""

import importlib
import inspect
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(names: list[str]) -> int:
    """Run the checks whose names contain one of `names` (all without), one line each."""
    sys.path.insert(0, str(HERE))
    missing = importlib.import_module("needs").missing
    failed = 0
    for name, check in _checks():
        if names and not any(part in name for part in names):
            continue
        lacks = missing(name)
        if lacks:
            sys.stdout.write(f"left out: {name} needs {lacks}\n")
            continue
        begin_s = time.monotonic()
        try:
            check()
        except Exception:  # noqa: BLE001 - whatever a check raises is its finding
            failed += 1
            traceback.print_exc()
            word = "FAILED"
        else:
            word = "ok"
        sys.stdout.write(f"{word:6} {name} ({time.monotonic() - begin_s:.1f} s)\n")
    return 1 if failed else 0


def _checks() -> Iterator[tuple[str, Callable[[], None]]]:
    for file in sorted(HERE.glob("check_*.py")):
        module = importlib.import_module(file.stem)
        for name, member in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("check_") and member.__module__ == file.stem:
                yield f"{file.stem}.{name}", member


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
