"""Makes torch answer as on a processor with AVX2 alone; Python in an engine image imports this."""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

ASKED = ("_is_avx512", "_is_vnni", "_is_amx")
"""What has AMX has AVX-512: vLLM's build for AVX2 has no operators for it."""


class _Narrow:
    """Load torch.cpu as ever, then replace what it answers of wider vectors and tiles."""

    @staticmethod
    def find_spec(name: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name != "torch.cpu":
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                for word in [word for word in vars(module) if word.startswith(ASKED)]:
                    setattr(module, word, lambda: False)

            vars(spec.loader)["exec_module"] = exec_module
        return spec


sys.meta_path.insert(0, _Narrow)
