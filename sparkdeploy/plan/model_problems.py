"""What stands in the way of a plan because of its model, said before the wait."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shlex
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.source import fetch_command
from sparkdeploy.checks.finding import fail
from sparkdeploy.estimate import attention, context
from sparkdeploy.node.shared_files import user_name
from sparkdeploy.plan.container import container_user
from sparkdeploy.plan.observed import MissingModel, ModelFact
from sparkdeploy.recipe.image_pins import is_unknown
from sparkdeploy.recipe.paths import FP8_SOURCE, named_paths
from sparkdeploy.recipe.releases import first_release, parse_version
from sparkdeploy.recipe.words import shown
from sparkdeploy.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.plan.observed import Observed
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.schema import Weights

NEEDS_NO_FILES = frozenset({"dummy", "ipc_cache", "modelexpress", "tensorizer"})
"""Load formats of vLLM's whose weights come from elsewhere, or from nowhere."""


def model_problems(plan: Plan) -> Iterator[Finding]:
    yield from _weight_problems(plan)
    yield from _unreadable(plan.observed)
    yield from _conversion_problems(plan)
    yield from _cache_problems(plan)
    yield from _owner_problems(plan.observed)
    yield from _exchange_problems(plan)


def architecture_problems(plan: Plan) -> Iterator[Finding]:
    """Hold what the model and its drafter call themselves against the release.

    What no release knows may be remote code.
    """
    engine, recipe = plan.resolved.engine, plan.resolved.recipe
    if recipe.allow_known_bad or is_unknown(engine):
        return
    for weights, fact in ((recipe.model, plan.observed.model), *_companions(plan)):
        named = fact.architectures if isinstance(fact, ModelFact) else ()
        least = first_release(named)
        if least is None or parse_version(engine.vllm) >= parse_version(least):
            continue
        whose = "" if weights is recipe.model else f" of {shown(weights.source)}"
        yield fail(
            "model.architecture",
            f"vLLM {engine.vllm} does not know {', '.join(map(shown, named))}{whose}, which came "
            f"with {least}",
            "set engine to a newer one (`sparkdeploy list` shows them), or insist with "
            "--allow-known-bad",
            blocks="prepare",
        )


def _weight_problems(plan: Plan) -> Iterator[Finding]:
    """Say whose files are here without any that vLLM could load."""
    recipe = plan.resolved.recipe
    if recipe.serve.load_format in NEEDS_NO_FILES:
        return
    wanted = (recipe.model, *recipe.companions)
    facts = (plan.observed.model, *plan.observed.companions)
    for weights, fact in zip(wanted, facts, strict=False):
        if isinstance(fact, ModelFact) and not fact.has_weights:
            yield fail(
                "model.weights",
                f"{fact.root / fact.files} holds no weights: no .safetensors files, and no .bin, "
                ".pt or .gguf files either",
                _how_to_get(weights, is_model=weights is recipe.model),
                blocks="prepare",
            )


def _how_to_get(weights: Weights, *, is_model: bool) -> str:
    if weights.path is None:
        return fetch_command(weights.source, weights.revision)
    another = ": --set model.path=FOLDER" if is_model else " in the recipe"
    return f"copy the files of the weights there, or name another folder{another}"


def model_disk_problems(observed: Observed) -> Iterator[Finding]:
    model, free = observed.model, observed.head.facts.data_free_bytes
    if not isinstance(model, MissingModel) or model.missing_bytes is None or free is None:
        return
    if model.missing_bytes > free:
        yield fail(
            "folders.disk",
            f"disk: {model.repo} takes {format_bytes(model.missing_bytes)}"
            f"{' more' if model.here_bytes else ''} and the hub cache's "
            f"disk has {format_bytes(free)} free",
            "free some space, or point HF_HOME at another disk",
            blocks="prepare",
        )


def _unreadable(observed: Observed) -> Iterator[Finding]:
    for model in observed.present:
        if model.unreadable:
            first = model.unreadable[0]
            more = f" (and {len(model.unreadable) - 1} more)" if len(model.unreadable) > 1 else ""
            yield fail(
                "folders.readable",
                f"{first} cannot be read by the container's user{more}",
                f"chmod a+rX {first}",
                blocks="prepare",
            )


def _conversion_problems(plan: Plan) -> Iterator[Finding]:
    model = plan.observed.model
    if isinstance(model, ModelFact) and not model.has_draft_vocabulary:
        yield fail(
            "model.draft_vocabulary",
            f"draft head: {model.name} has no tokenizer.json to count its frequent tokens with",
            f"sparkdeploy up {plan.resolved.called} --set checkpoint.draft_lm_head=null",
            blocks="prepare",
        )
    for reason in model.unfit if model is not None else ():
        yield fail(
            "model.conversion",
            f"the recipe's conversion does not apply to this model: {reason}",
            "change `checkpoint` in the recipe, or serve a model that has it",
            blocks="prepare",
        )


def _cache_problems(plan: Plan) -> Iterator[Finding]:
    """Hold the cache's format against the attention of the model, and of what drafts for it."""
    recipe = plan.resolved.recipe
    models = ((recipe.model, plan.observed.model), *_companions(plan))
    for weights, fact in models:
        for words in attention.unserved(recipe.serve, fact.demands) if fact is not None else ():
            yield fail(
                "model.kv_cache",
                f"{shown(weights.source)} has {words}",
                attention.FIX,
                blocks="prepare",
            )
    layers = plan.observed.model.layers if plan.observed.model is not None else None
    if beyond := context.beyond_context(recipe.serve, layers):
        message = f"{shown(recipe.model.source)} has {beyond}"
        yield fail("model.context", message, context.CONTEXT_FIX, blocks="prepare")


def _companions(plan: Plan) -> Iterator[tuple[Weights, ModelFact | MissingModel]]:
    return zip(plan.resolved.recipe.companions, plan.observed.companions, strict=False)


def _owner_problems(observed: Observed) -> Iterator[Finding]:
    """Only root can give the cache and the key to another user than the caller."""
    model = observed.model
    if not isinstance(model, ModelFact):
        return
    uid, _gid = container_user(model)
    if observed.caller_uid not in {0, uid}:
        yield fail(
            "folders.owner",
            f"{model.root} belongs to uid {model.owner_uid}, so the container would run as uid "
            f"{uid}; uid {observed.caller_uid} cannot make that user's cache and key",
            f"as root: chown -R {observed.caller_uid} {shlex.quote(str(model.root))}",
            blocks="prepare",
        )


def _exchange_problems(plan: Plan) -> Iterator[Finding]:
    """Name what is mounted or built in that another user could exchange for something of theirs."""
    if plan.resolved.recipe.allow_unsafe:
        return
    trusted = frozenset({0, plan.observed.caller_uid})
    yield from _exchangeable_weights(plan, trusted)
    # Behind sudo stands one person, as whom the folders may have been made.
    trusted |= {int(os.environ.get("SUDO_UID", "0"))}
    for path, folder in named_paths(plan.resolved.recipe):
        if path == FP8_SOURCE and (found := exchangeable(folder, trusted)):
            yield _exchange_problem(folder, "FP8 tensors would be read from", found)
    for mod in plan.resolved.mods:
        if mod.folder is not None and (found := exchangeable_tree(mod.folder.resolve(), trusted)):
            yield _exchange_problem(mod.folder, "a mod would be built in from", found)


def _exchangeable_weights(plan: Plan, trusted: frozenset[int]) -> Iterator[Finding]:
    """In the hub cache users may share on purpose what they download, but not with everybody."""
    recipe, observed = plan.resolved.recipe, plan.observed
    wanted, facts = (recipe.model, *recipe.companions), (observed.model, *observed.companions)
    for weights, fact in zip(wanted, facts, strict=False):
        if not isinstance(fact, ModelFact):
            continue
        # Root serves the folder of a user as that user, who reads nothing new by exchanging it.
        owner = {fact.owner_uid} if observed.caller_uid == 0 else set()
        root = fact.root.resolve()
        found = exchangeable(root, trusted | owner) if weights.path else open_to_all(root)
        if found is not None:
            yield _exchange_problem(fact.root, "a model would be mounted from", found)


def _exchange_problem(folder: Path, use: str, found: Exchangeable) -> Finding:
    return fail(
        "folders.exchange",
        f"{use} {folder}, and another user could exchange it: {found.folder}: {found.reason}",
        f"{found.fix}, or take it as it is with --allow-unsafe",
        blocks="prepare",
    )


@dataclass(frozen=True, slots=True)
class Exchangeable:
    folder: Path
    reason: str
    fix: str


def exchangeable(path: Path, trusted_uids: AbstractSet[int]) -> Exchangeable | None:
    """Return the lowest folder of a real path that another user may change; None for none.

    Nobody but its owner exchanges what lies in a folder with the sticky bit. What cannot be looked
    at is left to whoever reads it.
    """
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
    return exchangeable(folder, trusted_uids) or next(
        (
            Exchangeable(path, *found)
            for path in sorted(folder.rglob("*"))
            if not path.is_symlink()
            and (found := _reason(path, path.lstat(), trusted_uids, is_last=True))
        ),
        None,
    )


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
        owner = max(trusted_uids)
        return f"it belongs to {user_name(status.st_uid)}", f"sudo chown {owner} {name}"
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
