"""Looks into a finished image and says in one label what is in it; refuses what cannot serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy.errors import BuildError
from sparkdeploy.image import inside
from sparkdeploy.image.inside.prove import MARK, runs_on
from sparkdeploy.image.stages import SPARK_CAPABILITY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.host import DockerHost

PYTHON = "/opt/venv/bin/python"
TIMEOUT_S = 600


def prove(host: DockerHost, stage: Stage, image_id: str) -> str:
    """Return the proof of an engine or plugin image as JSON for its label.

    Raises BuildError when it cannot be read, when a CUDA engine has a CPU build of torch or no
    kernel for the Spark's GPU, or when the plugin does not fit.
    """
    found = _selfcheck(host, image_id) if stage.name == "plugin" else _engine(host, image_id)
    if stage.name == "engine" and stage.runs_on == "cuda":
        refuse_unusable(stage.engine, found)
    return json.dumps(found, sort_keys=True, separators=(",", ":"))


def refuse_unusable(engine: str, found: Mapping[str, Any]) -> None:
    """Raise BuildError for an engine that could not compute on a Spark."""
    if not found["torch_cuda"]:
        raise BuildError(
            f"engine {engine} has a CPU build of torch (torch.version.cuda is empty)",
            hint="the lock or the image has to bring the CUDA build",
        )
    kernels = {name for counts in found["kernels"].values() for name in counts}
    if not any(runs_on(name, SPARK_CAPABILITY) for name in kernels):
        raise BuildError(
            f"engine {engine} has no kernel for SM{SPARK_CAPABILITY}: vLLM's libraries hold"
            f" {', '.join(sorted(kernels)) or 'none at all'}",
            hint="wheels of vLLM carry such kernels from 0.20 on",
        )


def _engine(host: DockerHost, image_id: str) -> dict[str, Any]:
    program = (Path(inside.__file__).parent / "prove.py").read_text(encoding="utf-8")
    code, output = host.run_once(
        image_id, ["-I", "-c", program], entrypoint=[PYTHON], timeout_s=TIMEOUT_S
    )
    line = _last(line for line in output.splitlines() if line.startswith(MARK))
    if code != 0 or line is None:
        raise BuildError("the finished image could not be looked into", detail=output[-4000:])
    return dict(json.loads(line.removeprefix(MARK)))


def _selfcheck(host: DockerHost, image_id: str) -> dict[str, Any]:
    code, output = host.run_once(
        image_id,
        ["-m", "sparkdeploy_vllm.selfcheck", "--json"],
        entrypoint=[PYTHON],
        timeout_s=TIMEOUT_S,
    )
    line = _last(line for line in output.splitlines() if line.startswith("{"))
    if code != 0 or line is None:
        raise BuildError("the plugin does not fit this vLLM", detail=output[-4000:])
    report = json.loads(line)
    apis = report["apis"]
    return {
        "vllm": report["vllm"],
        "selfcheck": "fits" if report["fits"] else "differs",
        "fitting": sum(api["fits"] for api in apis),
        "absent": sorted(api["api"] for api in apis if not api["fits"]),
    }


def _last(lines: Iterable[str]) -> str | None:
    return next(reversed(list(lines)), None)
