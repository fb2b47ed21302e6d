"""A recipe in miniature: the same conversion and speculation on a CPU engine and a tiny model."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkdeploy import yaml_text
from sparkdeploy.checkpoint import draft_vocabulary
from sparkdeploy.checkpoint.contents import model_sizes, read_config
from sparkdeploy.checkpoint.fp8_shard import Order, fetch_shard, shard_folder
from sparkdeploy.checkpoint.ranges import FolderRanges
from sparkdeploy.checkpoint.source import open_folder, source_identity
from sparkdeploy.checkpoint.standalone import build_standalone
from sparkdeploy.checkpoint.tiny_model.build import build_drafter, build_tiny_fp8_model
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.checkpoint.tiny_model.tokenizer import TinyTokenizer
from sparkdeploy.errors import NodeError, RecipeError
from sparkdeploy.node.ports import is_port_free
from sparkdeploy.recipe import fallbacks
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.flags import given_flags
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.paths import is_folder
from sparkdeploy.recipe.releases import parse_version
from sparkdeploy.recipe.schema import Checkpoint, Serve
from sparkdeploy.recipe.words import shown
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
_RULES = yaml_text.load_file(Path(__file__).with_name("cpu.yaml"))


@dataclass(frozen=True, slots=True)
class Miniature:
    resolved: Resolved
    dropped: tuple[str, ...]
    stand_in: StandInModel | None = None
    """What is served instead of a twin; None for Qwen3.5-MoE."""


@dataclass(slots=True)
class _Edit:
    """The `serve` of a recipe as it becomes one for a CPU, and what that changed, in sentences."""

    serve: Serve
    notes: list[str] = field(default_factory=list)

    def set(self, note: str = "", **fields: object) -> None:
        self.serve = self.serve.model_copy(update=fields)
        if note:
            self.notes.append(note)

    def keep_states(self, engine: Engine) -> None:
        own = self.serve.mamba_ssm_cache_dtype
        if parse_version(engine.vllm) < ANY_STATES_SINCE and own != STATES:
            self.set(
                f"serve.mamba_ssm_cache_dtype={own or 'null'} -> {STATES}: vLLM {engine.vllm} for "
                "CPUs has no others",
                mamba_ssm_cache_dtype=STATES,
            )


def miniature_of(resolved: Resolved, *, engine: Engine, twin: Path, port: int) -> Miniature:
    """Return the rehearsal of a recipe; raise RecipeError when nothing of it would be left."""
    recipe = resolved.recipe
    dropped = _RULES["tiny_model"] | {"enable_prefix_caching": fallbacks.NO_PREFIX_CACHING}
    if recipe.serve.kv_cache_dtype.startswith(TURBOQUANT):
        del dropped["kv_cache_dtype"]  # our plugin has it for CPUs
    edit = _on_cpu(recipe.serve, port, dropped)
    if recipe.serve.mamba_ssm_cache_dtype is not None:
        edit.keep_states(engine)
    drafting = edit.serve.speculative
    if drafting is not None and not drafting.is_mtp:
        if drafting.method != DFLASH:
            raise RecipeError(
                f"{recipe.name} drafts with {drafting.method or drafting.model}, and drafters can "
                "be made for MTP and DFlash",
                hint="rehearse it with --set serve.speculative=null: everything but the drafts",
            )
        instead = {"model": str(drafter_beside(twin)), "revision": "main", "subfolder": None}
        made = drafting.model_copy(update=instead)
        note = f"serve.speculative.model={drafting.model} -> a drafter made for the twin"
        edit.set(note, speculative=made)
    if arguments := recipe.serve.extra_args:
        edit.set(f"serve.extra_args={arguments}: they may exist on CUDA only", extra_args=[])
    # Also without drafts: both texts that are compared are made in one way.
    edit.set(enable_prefix_caching=False)
    checkpoint, draft = recipe.checkpoint, recipe.checkpoint.draft_lm_head
    if draft is not None and draft.rows > DRAFT_ROWS:
        fewer = draft.model_copy(update={"rows": DRAFT_ROWS})
        checkpoint = checkpoint.model_copy(update={"draft_lm_head": fewer})
        edit.set(f"checkpoint.draft_lm_head.rows={draft.rows} -> {DRAFT_ROWS}: a twin")
    return _assembled(resolved, engine, twin, edit, checkpoint)


def miniature_of_stand_in(
    resolved: Resolved, *, engine: Engine, stand_in: StandInModel, port: int
) -> Miniature:
    """Return the rehearsal of a recipe whose model is none of Qwen3.5-MoE."""
    own, untreated = resolved.recipe.checkpoint, type(resolved.recipe.checkpoint)()
    edit = _on_cpu(resolved.recipe.serve, port, _RULES["stand_in"])
    if stand_in.is_hybrid:
        edit.keep_states(engine)
    _leave_out_what_needs_a_gpu(edit, stand_in)
    if own != untreated:
        edit.set("checkpoint: dummy weights are not treated")
    edit.notes[:0] = stand_in.notes
    made = _assembled(resolved, engine, stand_in.folder, edit, untreated)
    return replace(made, stand_in=stand_in)


def _on_cpu(serve: Serve, port: int, dropped: Mapping[str, str]) -> _Edit:
    edit = _Edit(serve)
    edit.set(port=port)
    for name, reason in (_RULES["always"] | dropped).items():
        value, default = getattr(serve, name), type(serve).model_fields[name].default
        if value is not None and value != default:
            edit.set(f"serve.{name}={value}: {reason}", **{name: default})
    drafting = serve.speculative
    if drafting is not None:
        kernels = [key for key in _RULES["drafter_kernels"] if key in drafting.further]
        kept = {key: value for key, value in drafting.model_dump().items() if key not in kernels}
        named = ", ".join(f"{key}={drafting.further[key]}" for key in kernels)
        note = f"serve.speculative: {named}: kernels of a GPU" if kernels else ""
        edit.set(note, speculative=type(drafting).model_validate(kept) if kernels else drafting)
    if serve.context_limit is None or serve.context_limit > MAX_MODEL_LEN:
        note = f"serve.max_model_len={serve.max_model_len} -> {MAX_MODEL_LEN}: a twin"
        edit.set(note, max_model_len=MAX_MODEL_LEN)
    if serve.enforce_eager is None:
        note = "serve.enforce_eager=null -> true: compiling outlasts the rehearsal"
        edit.set(note, enforce_eager=True, env=NOTHING_COMPILED | serve.env)
    return edit


def _leave_out_what_needs_a_gpu(edit: _Edit, stand_in: StandInModel) -> None:
    """Drop what only CUDA has, flag by flag, and drafters that have no miniature."""
    serve = edit.serve
    edit.set(load_format="dummy")
    if (reason := _why_no_such_cache(serve.kv_cache_dtype, stand_in)) is not None:
        note = f"serve.kv_cache_dtype={serve.kv_cache_dtype}: {reason}"
        edit.set(note, kv_cache_dtype="auto")
    drafting = serve.speculative
    if drafting is not None and not drafting.is_mtp:
        note = f"serve.speculative={drafting.method}: its drafter has no miniature"
        edit.set(note, speculative=None)
    elif drafting is not None:
        note = f"serve.enable_prefix_caching -> false: {fallbacks.NO_PREFIX_CACHING}"
        edit.set(note, enable_prefix_caching=False)
    kept: list[str] = []
    for given in given_flags(serve.extra_args):
        if given.flag in _RULES["kept_arguments"]:
            kept += given.words
        elif given.flag is not None:
            edit.set(f"{given.flag}: nobody knows what it means on a CPU")
    edit.set(extra_args=kept)
    if serve.lora:
        edit.set("serve.lora: adapters do not fit the stand-in", lora=[])


def _why_no_such_cache(cache_dtype: str, stand_in: StandInModel) -> str | None:
    if cache_dtype in {"auto", "bfloat16"} or cache_dtype.startswith("fp8"):
        return None
    if not cache_dtype.startswith(TURBOQUANT):
        return "the CPU engine has no such cache"
    if stand_in.is_hybrid:
        return None
    # vLLM's get_boundary_skip_layers: two at either end, of hybrids none.
    return "vLLM keeps the outer layers at 16 bits, and a stand-in has few others"


def _assembled(
    resolved: Resolved, engine: Engine, folder: Path, edit: _Edit, checkpoint: Checkpoint
) -> Miniature:
    """Return the recipe for a folder of this machine on a CPU engine, and what that changed."""
    recipe = resolved.recipe
    counts = {"min_nodes": recipe.cluster.min_nodes, "max_nodes": recipe.cluster.max_nodes}
    notes = [
        f"engine {resolved.engine.name} -> {engine.name}",
        *(
            f"cluster.{name}={count}: this machine rehearses it alone"
            for name, count in counts.items()
            if count is not None
        ),
        *(f"mod {shown(mod.name)}: it is for another image" for mod in recipe.mods),
        *edit.notes,
    ]
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
        "serve": edit.serve,
        # A twin needs none of the memory that a number of nodes stands for.
        "cluster": recipe.cluster.model_copy(update=dict.fromkeys(counts)),
        "limits": recipe.limits.model_copy(update=limits),
    }
    small = recipe.model_copy(update=changed)
    return Miniature(
        replace(resolved, recipe=small, engine=engine, mods=(), image=None), tuple(notes)
    )


def without_speculation(resolved: Resolved) -> Resolved:
    serve = resolved.recipe.serve.model_copy(update={"speculative": None})
    return replace(resolved, recipe=resolved.recipe.model_copy(update={"serve": serve}))


def port_of(resolved: Resolved, owned: Container[int | None] = ()) -> int:
    """Return the port that was typed, or a free one that no deployment owns."""
    origin = resolved.origins.get(("serve", "port"))
    if origin is not None and origin.line is None:
        return resolved.recipe.serve.port
    port = next((it for it in PORTS if it not in owned and is_port_free(it)), None)
    if port is None:
        raise NodeError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")
    return port


def drafter_beside(twin: Path) -> Path:
    return twin.with_name(f"{twin.name}-drafter")


def make_drafter(resolved: Resolved, twin: Path, shape: TinyShape, *, seed: int) -> None:
    """Write the drafter beside a twin, where the recipe drafts with one of DFlash's."""
    drafting = resolved.recipe.serve.speculative
    if drafting is not None and drafting.method == DFLASH:
        build_drafter(drafter_beside(twin), shape, seed=seed)


def with_fp8_twin(resolved: Resolved, twin: Path) -> tuple[Resolved, Path]:
    """Return the recipe with FP8 tensors of a twin, where it takes them from elsewhere, and the
    twin to serve: for a recipe with a finished hybrid, the one that is made of both here.
    """
    fp8 = resolved.recipe.checkpoint.fp8_dense
    is_prebuilt = fp8.mode == "prebuilt" and fp8.source is not None and not is_folder(fp8.source)
    if not fp8.is_finished and not is_prebuilt:
        return resolved, twin
    folder = twin.with_name(f"{twin.name}-fp8")
    build_tiny_fp8_model(folder, twin)
    if is_prebuilt:
        from_twin = fp8.model_copy(update={"source": str(folder)})
        checkpoint = resolved.recipe.checkpoint.model_copy(update={"fp8_dense": from_twin})
        recipe = resolved.recipe.model_copy(update={"checkpoint": checkpoint})
        return replace(resolved, recipe=recipe), twin

    def unseen(_done_bytes: int, _total_bytes: int) -> None:
        """A twin is made in a second: nobody needs to watch."""

    finished = twin.with_name(f"{twin.name}-finished")
    origin = f"the twin {source_identity(open_folder(folder))}"
    order = Order(model_sizes(read_config(twin)), origin, model=twin)
    shards = shard_folder(twin.with_name(f"{twin.name}-shards"), order)
    shard = fetch_shard(FolderRanges(folder), order, shards, unseen)
    build_standalone(open_folder(twin), shard, finished, overwrite=True, on_progress=unseen)
    return resolved, finished


def count_twin(resolved: Resolved, twin: Path, settings: Settings) -> None:
    """Write the draft vocabulary of a twin, what its grammar says first."""
    recipe = resolved.recipe
    if recipe.checkpoint.draft_lm_head is None:
        return
    size = model_sizes(read_config(twin)).vocab
    spoken = dict.fromkeys(TinyTokenizer(size).printed_ids, 1)
    tokens = draft_vocabulary.rank_tokens(spoken, special=(), vocabulary=size)
    counted = draft_vocabulary.DraftVocabulary(
        tokens, len(spoken), len(spoken), ("the twin's grammar",)
    )
    model = recipe.model.model_copy(update={"path": str(twin)})
    draft_vocabulary.write_vocabulary(draft_vocabulary.vocabulary_file(model, settings), counted)
