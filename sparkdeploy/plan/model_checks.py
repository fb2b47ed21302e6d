"""Preflight checks of the model and its companions: their files, and what the recipe makes of them.

Each check yields what is wrong, and what is well where the doctor shows that.
"""

import contextlib
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from sparkdeploy.checkpoint.source import fetch_command
from sparkdeploy.checks.report import Finding, fail_early, ok, warn
from sparkdeploy.estimate.model_findings import (
    NEEDS_NO_FILES,
    attention_findings,
    model_findings,
)
from sparkdeploy.node.shared_files import user_name
from sparkdeploy.plan.container import container_user
from sparkdeploy.plan.observed import MissingModel, ModelFact
from sparkdeploy.plan.steps import Plan
from sparkdeploy.recipe.image_pins import is_unknown
from sparkdeploy.recipe.paths import FP8_SOURCE, named_paths
from sparkdeploy.recipe.releases import first_release, parse_version
from sparkdeploy.recipe.schema import Weights
from sparkdeploy.recipe.words import shown
from sparkdeploy.units import format_bytes


def _models(plan: Plan) -> Iterator[tuple[Weights, ModelFact | MissingModel]]:
    """Yield the model and its companions, as far as they were looked for."""
    recipe, observed = plan.resolved.recipe, plan.observed
    wanted, facts = (recipe.model, *recipe.companions), (observed.model, *observed.companions)
    yield from ((it, fact) for it, fact in zip(wanted, facts, strict=False) if fact is not None)


def _present(plan: Plan) -> Iterator[tuple[Weights, ModelFact]]:
    yield from ((it, fact) for it, fact in _models(plan) if isinstance(fact, ModelFact))


def architecture(plan: Plan) -> Iterator[Finding]:
    """Name what came with a later vLLM; what no release knows may be remote code."""
    engine, recipe = plan.resolved.engine, plan.resolved.recipe
    if recipe.allow_known_bad or is_unknown(engine):
        return
    for weights, fact in _present(plan):
        least = first_release(fact.architectures)
        if least is None or parse_version(engine.vllm) >= parse_version(least):
            continue
        whose = "" if weights is recipe.model else f" of {shown(weights.source)}"
        yield fail_early(
            "model.architecture",
            f"vLLM {engine.vllm} does not know {', '.join(map(shown, fact.architectures))}{whose}, "
            f"which came with {least}",
            "set engine to a newer one (`sparkdeploy list` shows them), or insist with "
            "--allow-known-bad",
        )


def companions_are_known(plan: Plan) -> Iterator[Finding]:
    """Name a drafter or an adapter of which nobody knows more than its name."""
    for weights, fact in _models(plan):
        is_companion = weights is not plan.resolved.recipe.model
        if is_companion and isinstance(fact, MissingModel) and fact.size_bytes is None:
            source = shown(weights.source)
            why = fact.unknown.removeprefix(f"{fact.repo}: ").rstrip(".") or "it is not here"
            yield warn(
                "model.companions",
                f"{source}, beside the model, is not counted in memory and download: {why}",
                fetch_command(weights.source, weights.revision),
            )


def room_on_disk(plan: Plan) -> Iterator[Finding]:
    missing, free_bytes = plan.observed.missing, plan.observed.head.facts.data_free_bytes
    if free_bytes is None:
        return
    missing_bytes = sum(model.missing_bytes or 0 for model in missing)
    if missing_bytes <= free_bytes:
        yield ok("folders.disk", f"{format_bytes(free_bytes)} free for models")
        return
    names = " and ".join(model.repo for model in missing)
    yield fail_early(
        "folders.disk",
        f"disk: {names} {'take' if missing[1:] else 'takes'} {format_bytes(missing_bytes)}"
        f"{' more' if any(model.here_bytes for model in missing) else ''} and the hub cache's "
        f"disk has {format_bytes(free_bytes)} free",
        "free some space, or point HF_HOME at another disk",
    )


def has_weights(plan: Plan) -> Iterator[Finding]:
    """Name models whose files are here without any that vLLM could load."""
    recipe = plan.resolved.recipe
    if (recipe.serve.load_format or "").lower() in NEEDS_NO_FILES:
        return
    for weights, fact in _present(plan):
        if not fact.has_weights:
            is_model = weights is recipe.model
            another = ": --set model.path=FOLDER" if is_model else " in the recipe"
            copy = f"copy the files of the weights there, or name another folder{another}"
            yield fail_early(
                "model.weights",
                f"{fact.root / fact.files} holds no weights: no .safetensors files, and no .bin, "
                ".pt or .gguf files either",
                fetch_command(weights.source, weights.revision) if weights.path is None else copy,
            )


def files_are_readable(plan: Plan) -> Iterator[Finding]:
    check, unreadable = "folders.readable", False
    for _, model in _present(plan):
        if model.unreadable:
            unreadable, first = True, model.unreadable[0]
            more = f" (and {len(model.unreadable) - 1} more)" if len(model.unreadable) > 1 else ""
            seen = f"{first} cannot be read by the container's user{more}"
            yield fail_early(check, seen, f"chmod a+rX {shlex.quote(str(first))}")
    if isinstance(plan.observed.model, ModelFact) and not unreadable:
        yield ok(check, "the container's user can read every file of the model")


def conversion(plan: Plan) -> Iterator[Finding]:
    model = plan.observed.model
    if isinstance(model, ModelFact) and not model.has_draft_vocabulary:
        yield fail_early(
            "model.draft_vocabulary",
            f"draft head: {model.name} has no tokenizer.json to count its frequent tokens with",
            f"sparkdeploy up {plan.resolved.called} --set checkpoint.draft_lm_head=null",
        )
    for reason in model.unfit if model is not None else ():
        yield fail_early(
            "model.conversion",
            f"the recipe's conversion does not apply to this model: {reason}",
            "change `checkpoint` in the recipe, or serve a model that has it",
        )


def held_against_model(plan: Plan) -> Iterator[Finding]:
    """Hold the recipe against the model, and its attention against that of what drafts for it."""
    recipe = plan.resolved.recipe
    ranks = plan.topology.tensor_parallel, plan.topology.pipeline_parallel
    for weights, fact in _models(plan):
        if weights is recipe.model:
            yield from model_findings(plan.resolved, fact.described, ranks=ranks)
        else:
            source, config = shown(weights.source), fact.described.config
            yield from attention_findings(
                recipe.serve, source, config, ranks=ranks, is_drafter=True
            )


def owner(plan: Plan) -> Iterator[Finding]:
    """Only root can give the cache and the key to another user than the caller."""
    check, model, caller = "folders.owner", plan.observed.model, plan.observed.caller_uid
    if not isinstance(model, ModelFact):
        return
    uid, _ = container_user(model)
    if caller in {0, uid}:
        yield ok(check, f"the container runs as uid {uid}")
        return
    yield fail_early(
        check,
        f"{model.root} belongs to uid {model.owner_uid}, so the container would run as uid "
        f"{uid}; uid {caller} cannot make that user's cache and key",
        f"as root: chown -R {caller} {shlex.quote(str(model.root))}",
    )


def exchange(plan: Plan) -> Iterator[Finding]:
    """Name what is mounted or built in that another user could exchange for something of theirs."""
    if plan.resolved.recipe.allow_unsafe:
        return
    trusted = frozenset({0, plan.observed.caller_uid})
    for weights, fact in _present(plan):
        # Root serves the folder of a user as that user, who reads nothing new by exchanging it.
        owners = {fact.owner_uid} if plan.observed.caller_uid == 0 else set()
        root = fact.root.resolve()
        # Users may share a hub cache on purpose, but not with everybody.
        found = exchangeable(root, trusted | owners) if weights.path else open_to_all(root)
        yield from _exchange(fact.root, "a model would be mounted from", found)
    # Behind sudo stands one person, as whom the folders may have been made.
    trusted |= {int(os.environ.get("SUDO_UID", "0"))}
    for path, folder in named_paths(plan.resolved.recipe):
        if path == FP8_SOURCE:
            found = exchangeable(folder, trusted)
            yield from _exchange(folder, "FP8 tensors would be read from", found)
    for mod in plan.resolved.mods:
        if mod.folder is not None:
            found = exchangeable_tree(mod.folder.resolve(), trusted)
            yield from _exchange(mod.folder, "a mod would be built in from", found)


def _exchange(folder: Path, use: str, found: "Exchangeable | None") -> Iterator[Finding]:
    if found is not None:
        yield fail_early(
            "folders.exchange",
            f"{use} {folder}, and another user could exchange it: {found.folder}: {found.reason}",
            f"{found.fix}, or take it as it is with --allow-unsafe",
        )


CHECKS = (
    architecture,
    companions_are_known,
    room_on_disk,
    has_weights,
    files_are_readable,
    conversion,
    held_against_model,
    owner,
    exchange,
)


@dataclass(frozen=True, slots=True)
class Exchangeable:
    folder: Path
    reason: str
    fix: str


def exchangeable(path: Path, trusted_uids: AbstractSet[int]) -> Exchangeable | None:
    """Return the lowest folder of a real path that another user may change; None for none."""
    for folder in (path, *path.parents):
        try:
            status = folder.lstat()
        except OSError:
            continue
        if found := _reason(folder, status, trusted_uids, is_last=folder == path):
            return Exchangeable(folder, *found)
    return None


def exchangeable_tree(folder: Path, trusted_uids: AbstractSet[int]) -> Exchangeable | None:
    """As `exchangeable`, of a folder and of everything in it."""
    if above := exchangeable(folder, trusted_uids):
        return above
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            continue
        if found := _reason(path, path.lstat(), trusted_uids, is_last=True):
            return Exchangeable(path, *found)
    return None


def open_to_all(path: Path) -> Exchangeable | None:
    """Return the lowest folder of a real path that every user may change; None for none."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            mode = folder.lstat().st_mode
            if mode & stat.S_IWOTH and (folder == path or not mode & stat.S_ISVTX):
                return Exchangeable(folder, *_open_to_all(folder))
    return None


def _reason(
    folder: Path, status: os.stat_result, trusted_uids: AbstractSet[int], *, is_last: bool
) -> tuple[str, str] | None:
    name = shlex.quote(str(folder))
    if status.st_uid not in trusted_uids:
        chown = f"sudo chown {max(trusted_uids)} {name}"
        return f"it belongs to {user_name(status.st_uid)}", chown
    if status.st_mode & stat.S_ISVTX and not is_last:
        return None
    if status.st_mode & stat.S_IWOTH:
        return _open_to_all(folder)
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status, trusted_uids):
        return f"group {_group_name(status.st_gid)} may write to it", f"chmod g-w {name}"
    return None


def _open_to_all(folder: Path) -> tuple[str, str]:
    return "every user may write to it", f"chmod o-w {shlex.quote(str(folder))}"


def _is_private_group(status: os.stat_result, trusted_uids: AbstractSet[int]) -> bool:
    """Whether a group has no member but trusted users: root's, or one that a user was made with."""
    if status.st_gid == 0:
        return True
    try:
        group, owner = grp.getgrgid(status.st_gid), pwd.getpwuid(status.st_uid)
        members = {pwd.getpwnam(name).pw_uid for name in group.gr_mem}
    except (KeyError, OverflowError):
        return False
    is_owners = owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name
    return is_owners and members <= trusted_uids


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except (KeyError, OverflowError):
        return str(gid)
