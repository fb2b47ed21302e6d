"""Python in containers of the CPU engine, without a network."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import docker

from tests.engine.conftest import TEST_LABEL
from tests.engine.processor import ENGINE_PYTHON, ENV, PLACE, hides_avx512, narrow_folder

FEW_CPU_SHARES = 128
"""Of `CPU_SHARES`, that others have: the real vLLM of other tests has the processors first."""
CPU_SHARES = 1024


def python_in(
    image: str,
    folder: Path,
    mark: str,
    command: Sequence[str],
    cpu_shares: int = FEW_CPU_SHARES,
    /,
    **env: str,
) -> str:
    """Return what a program prints that sees the folder at /lab, read-only.

    Raises docker's ContainerError when it ends with another code than 0.
    """
    folders = {str(folder): {"bind": "/lab", "mode": "ro"}}
    if hides_avx512():
        folders[str(narrow_folder())] = {"bind": PLACE, "mode": "ro"}
        paths = ":".join(filter(None, (PLACE, env.get("PYTHONPATH"))))
        env = {**ENV, **env, "PYTHONPATH": paths}
    with contextlib.closing(docker.from_env()) as client:
        output: bytes = client.containers.run(
            image,
            entrypoint=[ENGINE_PYTHON, *command],
            volumes=folders,
            network_mode="none",
            # Two threads that wait for each other take many times as long beside other tests.
            environment={"HF_HUB_OFFLINE": "1", "HOME": "/tmp", "OMP_NUM_THREADS": "1", **env},
            labels={TEST_LABEL: mark},
            remove=True,
            cpu_shares=cpu_shares,
            # An engine asks for 160 MiB of shared memory; Docker gives 64.
            shm_size="1g",
        )
    return output.decode()
