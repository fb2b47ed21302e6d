"""A recipe in miniature: the same conversion and speculation on a CPU engine and a twin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparkdeploy.checkpoint.contents import model_sizes, read_config
from sparkdeploy.checkpoint.draft_vocabulary import (
    DraftVocabulary,
    rank_tokens,
    vocabulary_file,
    write_vocabulary,
)
from sparkdeploy.checkpoint.fp8_shard import Order, fetch_shard, shard_folder
from sparkdeploy.checkpoint.ranges import FolderRanges
from sparkdeploy.checkpoint.source import open_folder, source_identity
from sparkdeploy.checkpoint.standalone import build_standalone
from sparkdeploy.checkpoint.tiny_model.drafter import build_drafter
from sparkdeploy.checkpoint.tiny_model.fp8 import build_tiny_fp8_model
from sparkdeploy.checkpoint.tiny_model.tokenizer import TinyTokenizer
from sparkdeploy.errors import NodeError, RecipeError
from sparkdeploy.node.ports import is_port_free
from sparkdeploy.recipe import fallbacks
from sparkdeploy.recipe.flags import given_flags
from sparkdeploy.recipe.paths import is_folder
from sparkdeploy.recipe.releases import parse_version
from sparkdeploy.recipe.words import shown

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Checkpoint, Cluster, Serve
    from sparkdeploy.rehearsal.stand_in import StandInModel
    from sparkdeploy.settings import Settings

TURBOQUANT = "turboquant_"
DFLASH = "dflash"
PORTS = range(8190, 8290)
MAX_MODEL_LEN = 2048
STATES = "float32"
ANY_STATES_SINCE = (0, 32, 0)
"""`chunk_gated_delta_rule_cpu` of 0.25.1 refuses other states than FP32; between was not tried."""
DRAFT_ROWS = 256
"""Half of the twin's tokens: the other half is what a draft head leaves out."""
STARTUP_TIMEOUT_S = 600.0
MEMORY_FLOOR_GIB = 1.0
NOTHING_COMPILED = {"TORCH_COMPILE_DISABLE": "1"}
"""Without it the first log probabilities are counted by what torch compiles just then: 7 seconds of
a processor, and 13 where nothing of it is kept (0.32.0 on a Xeon core)."""
OF_A_GPU = ("moe_backend", "attention_backend", "linear_backend")
"""Keys of `speculative` that choose a drafter's kernels."""
_DROPPED = {
    "chat_template_of_mod": "a mod brings it, and mods are for another image",
    "attention_backend": "the CPU engine has its own",
    "compilation_config": "it speaks of CUDA graphs",
    "load_format": "it reads through a GPU",
    "enable_expert_parallel": "one rank has every expert",
}


_OF_A_TWIN = {
    "enable_prefix_caching": fallbacks.NO_PREFIX_CACHING,
    "quantization": "the twin says itself how it is quantised",
    "hf_overrides": "the twin has a configuration of its own",
    "kv_cache_dtype": "the CPU engine has no such cache",
    "runner": "the twin writes text",
    "convert": "the twin writes text",
}
_OF_A_STAND_IN = {
    "hf_overrides": "the stand-in has a configuration of its own",
    "quantization": "the CPU engine computes it in 16 bits",
    "trust_remote_code": "vLLM's own class of this model is served",
}
KEPT_ARGUMENTS = frozenset(
    {
        *("--block-size", "--chat-template-content-format", "--default-mm-loras", "--dtype"),
        *("--disable-log-stats", "--enable-prompt-tokens-details", "--generation-config"),
        *("--enable-force-include-usage", "--exclude-tools-when-tool-choice-none", "--seed"),
        *("--language-model-only", "--limit-mm-per-prompt", "--mm-processor-kwargs"),
        *("--long-prefill-token-threshold", "--max-logprobs", "--pooler-config"),
        *("--response-role", "--return-tokens-as-token-ids", "--scheduling-policy"),
        *("--reasoning-config", "--structured-outputs-config", "--tokenizer-mode"),
        *("--trust-request-chat-template", "--disable-hybrid-kv-cache-manager"),
        *("--enable-log-requests", "--logprobs-mode", "--uvicorn-log-level"),
    }
)
"""Flags that mean on a CPU what they mean on a GPU."""


@dataclass(frozen=True, slots=True)
class Miniature:
    resolved: Resolved
    dropped: tuple[str, ...]
    """What had to be left out, in sentences."""
    stand_in: StandInModel | None = None
    """What is served instead of a twin; None for Qwen3.5-MoE."""


def miniature_of(resolved: Resolved, *, engine: Engine, twin: Path, port: int) -> Miniature:
    """Return the rehearsal of a recipe; raise RecipeError when nothing of it would be left."""
    recipe = resolved.recipe
    serve, dropped = _serve_on_cpu(recipe.serve, port, _DROPPED | _out_of_a_twin(recipe.serve))
    if serve.mamba_ssm_cache_dtype is not None:
        serve = _with_states(serve, engine, dropped)
    drafting = serve.speculative
    if drafting is not None and not drafting.is_mtp:
        _refuse_without_miniature(resolved)
        made = drafting.model_copy(update={"model": str(drafter_beside(twin)), "revision": "main"})
        serve = serve.model_copy(update={"speculative": made})
        dropped.append(f"serve.speculative.model={drafting.model} -> a drafter made for the twin")
    if recipe.serve.extra_args:
        dropped.append(f"serve.extra_args={recipe.serve.extra_args}: they may exist on CUDA only")
    # Also without drafts: both texts that are compared are made in one way.
    serve = serve.model_copy(update={"extra_args": [], "enable_prefix_caching": False})
    checkpoint, fewer = _conversion_of_twin(recipe.checkpoint)
    small, notes = _on_cpu(resolved, engine, twin, serve, checkpoint)
    return Miniature(small, (*notes, *dropped, *fewer))


def drafter_beside(twin: Path) -> Path:
    return twin.with_name(f"{twin.name}-drafter")


def make_drafter(resolved: Resolved, twin: Path, shape: TinyShape, *, seed: int) -> None:
    """Write the drafter beside a twin, where the recipe drafts with one of DFlash's."""
    drafting = resolved.recipe.serve.speculative
    if drafting is not None and drafting.method == DFLASH:
        build_drafter(drafter_beside(twin), shape, seed=seed)


def _refuse_without_miniature(resolved: Resolved) -> None:
    drafting = resolved.recipe.serve.speculative
    if drafting is not None and drafting.method != DFLASH:
        raise RecipeError(
            f"{resolved.recipe.name} drafts with {drafting.method or drafting.model}, and drafters "
            "can be made for MTP and DFlash",
            hint="rehearse it with --set serve.speculative=null: everything but the drafts",
        )


def port_of(resolved: Resolved, owned: Container[int | None] = ()) -> int:
    """Return the port that was typed, or a free one: the recipe's own is for the model itself.

    `owned` are those of deployments, which may not listen yet. Raises NodeError where none is free.
    """
    origin = resolved.origins.get(("serve", "port"))
    if origin is not None and origin.line is None:
        return resolved.recipe.serve.port
    port = next((it for it in PORTS if it not in owned and is_port_free(it)), None)
    if port is None:
        raise NodeError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")
    return port


def miniature_of_stand_in(
    resolved: Resolved, *, engine: Engine, stand_in: StandInModel, port: int
) -> Miniature:
    """Return the rehearsal of a recipe whose model is none of Qwen3.5-MoE."""
    recipe = resolved.recipe
    serve, dropped = _serve_on_cpu(recipe.serve, port, _DROPPED | _OF_A_STAND_IN)
    if stand_in.is_hybrid:
        serve = _with_states(serve, engine, dropped)
    serve, fewer = _without_what_needs_a_gpu(serve, stand_in)
    untreated = type(recipe.checkpoint)()
    if recipe.checkpoint != untreated:
        fewer.append("checkpoint: dummy weights are not treated")
    small, notes = _on_cpu(resolved, engine, stand_in.folder, serve, untreated)
    return Miniature(small, (*notes, *stand_in.notes, *dropped, *fewer), stand_in)


def _on_cpu(
    resolved: Resolved, engine: Engine, folder: Path, serve: Serve, checkpoint: Checkpoint
) -> tuple[Resolved, list[str]]:
    """Return the recipe for a folder of this machine on a CPU engine, and what that changed."""
    recipe = resolved.recipe
    cluster, free = _without_node_limits(recipe.cluster)
    free += [f"mod {shown(mod.name)}: it is for another image" for mod in recipe.mods]
    limits = {
        "memory_floor_gib": min(recipe.limits.memory_floor_gib, MEMORY_FLOOR_GIB),
        "startup_timeout_s": STARTUP_TIMEOUT_S,
    }
    changed: dict[str, Any] = {
        "engine": engine.name,
        "image": None,
        "mods": [],
        "model": recipe.model.model_copy(update={"path": str(folder)}),
        "checkpoint": checkpoint,
        "serve": serve,
        "cluster": cluster,
        "limits": recipe.limits.model_copy(update=limits),
    }
    small = replace(
        resolved, recipe=recipe.model_copy(update=changed), engine=engine, mods=(), image=None
    )
    return small, [f"engine {resolved.engine.name} -> {engine.name}", *free]


def _with_states(serve: Serve, engine: Engine, dropped: list[str]) -> Serve:
    """Return it with recurrent states that the release can keep, and add what that changed."""
    own = serve.mamba_ssm_cache_dtype
    if parse_version(engine.vllm) >= ANY_STATES_SINCE or own == STATES:
        return serve
    dropped.append(
        f"serve.mamba_ssm_cache_dtype={own or 'null'} -> {STATES}: vLLM {engine.vllm} for CPUs has "
        "no others"
    )
    return serve.model_copy(update={"mamba_ssm_cache_dtype": STATES})


def _out_of_a_twin(serve: Serve) -> dict[str, str]:
    """Keys that a twin is served without, and why; our plugin has TurboQuant for CPUs."""
    has_turboquant = serve.kv_cache_dtype.startswith(TURBOQUANT)
    return {
        field: reason
        for field, reason in _OF_A_TWIN.items()
        if not (field == "kv_cache_dtype" and has_turboquant)
    }


def _without_what_needs_a_gpu(serve: Serve, stand_in: StandInModel) -> tuple[Serve, list[str]]:
    """Drop what only CUDA has, flag by flag, and drafters that have no miniature."""
    changed: dict[str, Any] = {"load_format": "dummy"}
    notes: list[str] = []
    if (reason := _why_no_such_cache(serve.kv_cache_dtype, stand_in)) is not None:
        notes.append(f"serve.kv_cache_dtype={serve.kv_cache_dtype}: {reason}")
        changed["kv_cache_dtype"] = "auto"
    drafting = serve.speculative
    if drafting is not None and not drafting.is_mtp:
        notes.append(f"serve.speculative={drafting.method}: its drafter has no miniature")
        changed["speculative"] = None
    elif drafting is not None:
        changed["enable_prefix_caching"] = False
        notes.append(f"serve.enable_prefix_caching -> false: {fallbacks.NO_PREFIX_CACHING}")
    kept, dropped = _kept_arguments(serve.extra_args)
    changed["extra_args"] = kept
    notes += [f"{flag}: nobody knows what it means on a CPU" for flag in dropped]
    if serve.lora:
        changed["lora"] = []
        notes.append("serve.lora: adapters do not fit the stand-in")
    return serve.model_copy(update=changed), notes


def _why_no_such_cache(cache_dtype: str, stand_in: StandInModel) -> str | None:
    if cache_dtype in {"auto", "bfloat16"} or cache_dtype.startswith("fp8"):
        return None
    if not cache_dtype.startswith(TURBOQUANT):
        return "the CPU engine has no such cache"
    if stand_in.is_hybrid:
        return None
    # vLLM's get_boundary_skip_layers: two at either end, of hybrids none.
    return "vLLM keeps the outer layers at 16 bits, and a stand-in has few others"


def _kept_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part flags that a CPU engine takes as a GPU's does, with their values, from all others."""
    kept: list[str] = []
    dropped: list[str] = []
    for given in given_flags(arguments):
        if given.flag in KEPT_ARGUMENTS:
            kept += given.words
        elif given.flag is not None:
            dropped.append(given.flag)
    return kept, dropped


def without_speculation(resolved: Resolved) -> Resolved:
    serve = resolved.recipe.serve.model_copy(update={"speculative": None})
    return replace(resolved, recipe=resolved.recipe.model_copy(update={"serve": serve}))


def _conversion_of_twin(checkpoint: Checkpoint) -> tuple[Checkpoint, list[str]]:
    draft = checkpoint.draft_lm_head
    if draft is None or draft.rows <= DRAFT_ROWS:
        return checkpoint, []
    fewer = draft.model_copy(update={"rows": DRAFT_ROWS})
    note = f"checkpoint.draft_lm_head.rows={draft.rows} -> {DRAFT_ROWS}: a twin"
    return checkpoint.model_copy(update={"draft_lm_head": fewer}), [note]


def _without_node_limits(cluster: Cluster) -> tuple[Cluster, list[str]]:
    """A twin needs none of the memory that a number of nodes stands for."""
    limits = {"min_nodes": cluster.min_nodes, "max_nodes": cluster.max_nodes}
    dropped = [
        f"cluster.{name}={count}: this machine rehearses it alone"
        for name, count in limits.items()
        if count is not None
    ]
    return cluster.model_copy(update=dict.fromkeys(limits)), dropped


def _serve_on_cpu(serve: Serve, port: int, without: Mapping[str, str]) -> tuple[Serve, list[str]]:
    changed: dict[str, Any] = {"port": port}
    dropped: list[str] = []
    for field, reason in without.items():
        value = getattr(serve, field)
        default = type(serve).model_fields[field].default
        if value is not None and value != default:
            dropped.append(f"serve.{field}={value}: {reason}")
            changed[field] = default
    drafting = serve.speculative
    on_gpu = [key for key in OF_A_GPU if drafting is not None and key in drafting.further]
    if drafting is not None and on_gpu:
        named = ", ".join(f"{key}={drafting.further[key]}" for key in on_gpu)
        dropped.append(f"serve.speculative: {named}: kernels of a GPU")
        kept = {key: value for key, value in drafting.model_dump().items() if key not in on_gpu}
        changed["speculative"] = type(drafting).model_validate(kept)
    if serve.context_limit is None or serve.context_limit > MAX_MODEL_LEN:
        dropped.append(f"serve.max_model_len={serve.max_model_len} -> {MAX_MODEL_LEN}: a twin")
        changed["max_model_len"] = MAX_MODEL_LEN
    if serve.enforce_eager is None:
        dropped.append("serve.enforce_eager=null -> true: compiling outlasts the rehearsal")
        changed["enforce_eager"] = True
        changed["env"] = NOTHING_COMPILED | serve.env
    return serve.model_copy(update=changed), dropped


def twin_to_serve(resolved: Resolved, twin: Path) -> Path:
    """The twin itself; for a recipe with a finished hybrid, the one that is made of it here."""
    if not resolved.recipe.checkpoint.fp8_dense.is_finished:
        return twin
    fp8, finished = (twin.with_name(f"{twin.name}-{part}") for part in ("fp8", "finished"))
    build_tiny_fp8_model(fp8, twin)
    origin = f"the twin {source_identity(open_folder(fp8))}"
    order = Order(model_sizes(read_config(twin)), origin, model=twin)
    folder = shard_folder(twin.with_name(f"{twin.name}-shards"), order)
    shard = fetch_shard(FolderRanges(fp8), order, folder, _unseen)
    build_standalone(
        open_folder(twin), shard, finished, replaces=lambda _out: True, on_progress=_unseen
    )
    return finished


def with_fp8_twin(resolved: Resolved, twin: Path) -> Resolved:
    """Let a recipe with prebuilt FP8 tensors take them from a twin of its FP8 repository."""
    recipe = resolved.recipe
    fp8 = recipe.checkpoint.fp8_dense
    if fp8.mode != "prebuilt" or fp8.source is None or is_folder(fp8.source):
        return resolved
    folder = twin.with_name(f"{twin.name}-fp8")
    build_tiny_fp8_model(folder, twin)
    from_twin = fp8.model_copy(update={"source": str(folder)})
    checkpoint = recipe.checkpoint.model_copy(update={"fp8_dense": from_twin})
    return replace(resolved, recipe=recipe.model_copy(update={"checkpoint": checkpoint}))


def count_twin(resolved: Resolved, twin: Path, settings: Settings) -> None:
    """Write the draft vocabulary of a twin, for a recipe with a draft head.

    What its grammar says comes first, as it would in a list counted over its texts.
    """
    recipe = resolved.recipe
    if recipe.checkpoint.draft_lm_head is None:
        return
    size = model_sizes(read_config(twin)).vocab
    spoken = dict.fromkeys(TinyTokenizer(size).printed_ids, 1)
    tokens = rank_tokens(spoken, special=(), vocabulary=size)
    counted = DraftVocabulary(tokens, len(spoken), len(spoken), ("the twin's grammar",))
    model = recipe.model.model_copy(update={"path": str(twin)})
    write_vocabulary(vocabulary_file(model, settings), counted)


def _unseen(_done_bytes: int, _total_bytes: int) -> None:
    """A twin is made in a second: nobody needs to watch."""
