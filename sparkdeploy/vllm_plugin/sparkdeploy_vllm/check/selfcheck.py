"""Does this plugin fit the vLLM that is installed?

`python -m sparkdeploy_vllm.check.selfcheck [--json]`.

Reads vLLM's sources instead of importing them, so that it also works in an image build, where the
GPU's driver library is missing and the CUDA build cannot be imported. Exit code 0 when every hook
that this vLLM must have is there with the arguments the plugin passes, else 1. hooks.toml lists
what the plugin calls, overrides or stands in for.

A release of vLLM that gives a class another method which takes what ours changes (a head, a
layer's weights, the metadata of attention) would work around the plugin without a word. Every such
method is either one that ours has, or is named there with the reason why it does no harm.
"""

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from sparkdeploy_vllm.check.releases import HEAD_SINCE, Release, installed_version, release_of
from sparkdeploy_vllm.check.source_tree import Definition, SourceTree, signature_of

EMBEDDING = "vllm.model_executor.layers.vocab_parallel_embedding"
HEAD_CALLERS = ("vllm.model_executor.models.qwen3_5", "vllm.model_executor.models.qwen3_5_mtp")
ENTRY_POINT = "sparkdeploy_vllm:register"


@dataclass(frozen=True, slots=True)
class Api:
    """Something of vLLM's that the plugin calls, overrides or is called by; see hooks.toml."""

    module: str
    name: str
    arguments: tuple[str, ...] | None = None
    required: bool = True
    since: Release = ()
    trace: Literal["defined", "called", "named"] = "defined"


@dataclass(frozen=True, slots=True)
class StandIn:
    """A class of ours in the place of one of vLLM's, each by module and name; see hooks.toml."""

    ours: tuple[str, str]
    theirs: tuple[str, str]
    changed: list[str]
    harmless: Mapping[str, str]
    required: bool = True


def _api(module: str, names: list[str], since: tuple[int, ...] = (), **further: Any) -> list[Api]:
    split = [name.removesuffix(")").partition("(") for name in names]
    return [
        Api(
            module,
            name,
            tuple(filter(None, listed.split(", "))) if bracket else None,
            since=tuple(since),
            **further,
        )
        for name, bracket, listed in split
    ]


_DATA = tomllib.loads(Path(__file__).with_name("hooks.toml").read_text(encoding="utf-8"))
TOUCHED = tuple(api for group in _DATA["api"] for api in _api(**group))
STAND_INS = tuple(StandIn(**entry) for entry in _DATA["stand_in"])


@dataclass(frozen=True, slots=True)
class HookFinding:
    """One API and whether it fits; `problem` is empty when it does."""

    api: str
    problem: str
    required: bool = True

    @property
    def fits(self) -> bool:
        return not self.problem


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sparkdeploy_vllm.check.selfcheck")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(argv)
    spec = find_spec("vllm")
    findings = [HookFinding("vllm", "not installed")]
    if spec and spec.origin:
        findings = check(Path(spec.origin).parents[1], vllm=installed_version())
    findings.append(_entry_point_finding())
    fits = all(finding.fits for finding in findings if finding.required)
    apis = [{**asdict(finding), "fits": finding.fits} for finding in findings]
    as_json = json.dumps({"vllm": installed_version(), "fits": fits, "apis": apis})
    sys.stdout.write(f"{as_json if options.json else _as_table(findings, fits)}\n")
    return 0 if fits else 1


def check(
    site_packages: Path,
    touched: Sequence[Api] = TOUCHED,
    vllm: str = "unknown",
    stand_ins: Sequence[StandIn] = STAND_INS,
) -> list[HookFinding]:
    """Everything is required of a vLLM whose version is unknown."""
    tree, release = SourceTree(site_packages), release_of(vllm)
    findings = []
    for api in touched:
        is_required = api.required and release >= api.since
        findings.append(HookFinding(f"{api.module}.{api.name}", _problem(tree, api), is_required))
    findings += [_stand_in_finding(tree, stand_in) for stand_in in stand_ins]
    return findings + [_head_finding(tree, module, release) for module in HEAD_CALLERS]


def uncovered(vllm: SourceTree, stand_in: StandIn) -> list[str]:
    """Methods of vLLM's class that take what ours changes, and are neither ours nor harmless."""
    plugin = SourceTree(Path(__file__).resolve().parents[2])
    # Installed beside vLLM, ours have its methods by inheritance; those are not overridden.
    methods = (name.rpartition(".") for name in plugin.methods(*stand_in.ours))
    overridden = {method for owner, _, method in methods if owner == stand_in.ours[1]}
    return sorted(
        name
        for name, arguments in vllm.methods(*stand_in.theirs).items()
        if name not in stand_in.harmless
        and name.rpartition(".")[2] not in overridden
        and not set(arguments).isdisjoint(stand_in.changed)
    )


def _problem(tree: SourceTree, api: Api) -> str:
    if api.trace == "named":
        return "" if tree.mentions(api.module, api.name) else "is not mentioned"
    if api.trace == "called":
        passed = tree.call_keywords(api.module, api.name)
        return "" if passed >= set(api.arguments or ()) else "is not called with these keywords"
    found = tree.find(api.module, api.name)
    if found is None:
        return "does not exist"
    return "" if api.arguments is None else _problem_of_arguments(found, api.arguments)


def _problem_of_arguments(found: Definition, expected: Sequence[str]) -> str:
    signature = signature_of(found)
    if signature is None:
        return "is not callable"
    names, required = signature
    if names[: len(expected)] != list(expected):
        return f"takes ({', '.join(names)}), expected it to begin with {', '.join(expected)}"
    extra = [name for name in required if name not in expected]
    return f"also needs {', '.join(extra)}" if extra else ""


def _stand_in_finding(tree: SourceTree, stand_in: StandIn) -> HookFinding:
    api = f"{stand_in.theirs[1]}, in whose place is {stand_in.ours[1]}"
    if not tree.methods(*stand_in.theirs):
        return HookFinding(api, "does not exist", stand_in.required)
    found = ", ".join(uncovered(tree, stand_in))
    problem = f"{found} neither overridden nor looked at, and takes what ours changes"
    return HookFinding(api, problem if found else "")


def _head_finding(tree: SourceTree, module: str, release: Release) -> HookFinding:
    """Does the model pass its config to the head, or, before 0.23, can a replacement do so?"""
    api = f"{module}: ParallelLMHead(quant_config=...)"
    passed = tree.call_keywords(module, "ParallelLMHead")
    if "quant_config" in passed:
        return HookFinding(api, "")
    if release >= HEAD_SINCE:
        return HookFinding(api, "does not pass quant_config")
    head = tree.find(EMBEDDING, "ParallelLMHead.__init__")
    names, _ = (head and signature_of(head)) or ([], [])
    fits = "prefix" in passed and {"quant_config", "prefix"} <= set(names)
    problem = "" if fits else "takes no quant_config to be put in"
    return HookFinding(f"{module}: ParallelLMHead(), replaced", problem)


def _entry_point_finding() -> HookFinding:
    found = [point.value for point in metadata.entry_points(group="vllm.general_plugins")]
    problem = "" if ENTRY_POINT in found else "not installed: vLLM will not load the plugin"
    return HookFinding(f"entry point {ENTRY_POINT}", problem)


def _as_table(findings: Sequence[HookFinding], fits: bool) -> str:
    lines = [f"sparkdeploy-vllm beside vLLM {installed_version()}"]
    for finding in findings:
        word = "fits" if finding.fits else ("DIFFERS" if finding.required else "absent")
        lines.append(f"  {word:8} {finding.api}{': ' if finding.problem else ''}{finding.problem}")
    lines.append("every required hook fits" if fits else "a required hook does not fit")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
