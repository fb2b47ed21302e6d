"""What the processor has, as the real vLLM asks for it; and how to make vLLM find less.

SPARKDEPLOY_TESTS_WITHOUT_AVX512=1 hides AVX-512 in every container of an engine that tests start.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sparkdeploy.node.container import ContainerSpec, Mount
from sparkdeploy.node.containers import Containers

WITHOUT_AVX512 = "SPARKDEPLOY_TESTS_WITHOUT_AVX512"
PLACE = "/tests/narrow"
ENV = {"PYTHONPATH": PLACE, "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
ENGINE_PYTHON = "/opt/venv/bin/python"


def hides_avx512() -> bool:
    """Say whether this run hides AVX-512 from the engines."""
    return bool(os.environ.get(WITHOUT_AVX512))


@functools.cache
def narrow_folder() -> Path:
    """Return a copy of the folder that hides AVX-512, which a container's user can read."""
    folder = Path(tempfile.mkdtemp(prefix="sparkdeploy-tests-narrow-"))
    shutil.copy(Path(__file__).parent / "narrow" / "sitecustomize.py", folder)
    (folder / "sitecustomize.py").chmod(0o644)
    folder.chmod(0o755)
    return folder


def narrowed(spec: ContainerSpec) -> ContainerSpec:
    """Return the spec of an engine's container with AVX-512 hidden; another one as it is."""
    if ENGINE_PYTHON not in spec.entrypoint[:1]:
        return spec
    mounts = (*spec.mounts, Mount(str(narrow_folder()), PLACE))
    paths = ":".join(filter(None, (PLACE, spec.env.get("PYTHONPATH"))))
    return replace(spec, mounts=mounts, env={**spec.env, **ENV, "PYTHONPATH": paths})


def narrowed_engines() -> Any:
    """Return a context in which this process creates engines' containers without AVX-512."""
    create = Containers.create
    return patch.object(Containers, "create", lambda self, spec: create(self, narrowed(spec)))
