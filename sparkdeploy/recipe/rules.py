"""Settings that are valid alone and wrong together."""

from collections.abc import Iterator
from dataclasses import dataclass

from sparkdeploy.recipe import fallbacks, flags, releases
from sparkdeploy.recipe.document import KeyPath
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.image_name import WAYS
from sparkdeploy.recipe.image_pins import is_unknown
from sparkdeploy.recipe.releases import family_of, parse_version
from sparkdeploy.recipe.schema import Recipe, Speculative, Weights


@dataclass(frozen=True, slots=True)
class Mistake:
    path: KeyPath
    message: str
    fix: str


def find_contradictions(recipe: Recipe, engine: Engine | None) -> list[Mistake]:
    rules = (_weights, _mods, _speculation, _fp8, _extra_arguments, _environment, _limits)
    mistakes = [mistake for rule in rules for mistake in rule(recipe)]
    return mistakes if engine is None else [*mistakes, *_engine(recipe, engine)]


def _failed(*rows: tuple[object, str, str, str]) -> Iterator[Mistake]:
    """Yield a mistake for each row that holds: the condition, the path, the message, the fix."""
    for is_wrong, path, message, fix in rows:
        if is_wrong:
            yield Mistake(tuple(path.split(".")), message, fix)


def _weights(recipe: Recipe) -> Iterator[Mistake]:
    named: list[tuple[KeyPath, Weights]] = [(("model",), recipe.model)]
    named += [(("serve", "lora", at), it) for at, it in enumerate(recipe.serve.lora)]
    for path, weights in named:
        if not weights.source:
            fix = "add repo: ORG/NAME, or the path of a folder"
            yield Mistake(path, "has neither repo nor path", fix)


def _mods(recipe: Recipe) -> Iterator[Mistake]:
    for index, mod in enumerate(recipe.mods):
        if mod.folder is not None and mod.run is not None:
            fix = "make two of it, one with the folder and one with the commands"
            yield Mistake(("mods", index), "has both a folder and commands", fix)
        elif not (mod.folder or mod.run or "").strip():
            fix = "add folder: mods/NAME, or run: COMMANDS"
            yield Mistake(("mods", index), "has neither a folder nor commands", fix)


def drafting_of(recipe: Recipe) -> Iterator[tuple[KeyPath, Speculative]]:
    """Yield what drafts, on one node and on several, by where the recipe says it."""
    for section, drafting in (
        ("serve", recipe.serve.speculative),
        ("cluster", recipe.cluster.speculative),
    ):
        if drafting is not None and drafting != "off":
            yield (section, "speculative"), drafting


_INT4_KERNELS = ("auto", "marlin", "humming", "flashinfer_trtllm")
"""Those that `map_wna16_backend` knows (layers/fused_moe/oracle/int_wna16.py in 0.25.1)."""
_WITH_DRAFTER = (None, "dflash", "eagle", "eagle3", "medusa", "draft_model")
"""Methods that draft with a model of their own."""

SHARING_HEAD = ("dflash", "eagle", "eagle3")
"""Drafters that may come without an LM head, and then get the model's."""


def _speculation(recipe: Recipe) -> Iterator[Mistake]:
    serve, checkpoint, drafting = recipe.serve, recipe.checkpoint, recipe.serve.speculative
    is_mtp = drafting is not None and drafting.is_mtp
    method = (drafting and drafting.method) or "vLLM"
    shares_head = drafting is not None and drafting.method in SHARING_HEAD
    needs_drafter = drafting is not None and drafting.method in _WITH_DRAFTER
    is_shrunk = checkpoint.mtp_weights != "bf16"
    kernel = drafting.further.get("moe_backend", "auto") if drafting is not None else "auto"
    yield from _failed(
        (
            serve.kv_cache_dtype.startswith("turboquant") and serve.attention_backend is not None,
            "serve.attention_backend",
            f"{serve.attention_backend} cannot read a {serve.kv_cache_dtype} KV cache",
            "set serve.attention_backend to null: vLLM picks TURBOQUANT from the cache's dtype",
        ),
        (
            is_mtp and checkpoint.mtp == "off",
            "serve.speculative",
            "speculative decoding by MTP needs the MTP weights, and checkpoint.mtp is off",
            "set checkpoint.mtp to required, or serve.speculative to null",
        ),
        (
            needs_drafter and drafting is not None and drafting.model is None,
            "serve.speculative",
            f"{method} drafts with a model of its own, and none is named",
            "set serve.speculative.model to the drafter's repository",
        ),
        (
            checkpoint.draft_lm_head is not None and not (is_mtp or shares_head),
            "checkpoint.draft_lm_head",
            "a draft head is for what drafts with the model's own LM head, and this recipe drafts "
            "by no MTP layer, EAGLE or DFlash",
            "set serve.speculative to {method: mtp, tokens: 2}, or remove checkpoint.draft_lm_head",
        ),
        (
            is_shrunk and not is_mtp,
            "checkpoint.mtp_weights",
            "it is for the MTP layer, and this recipe does not draft by MTP",
            "set serve.speculative to {method: mtp, tokens: 2}, or checkpoint.mtp_weights to bf16",
        ),
        (
            is_shrunk and is_mtp and kernel not in _INT4_KERNELS,
            "serve.speculative",
            f"moe_backend {kernel} runs no INT4 experts, which checkpoint.mtp_weights makes",
            "remove serve.speculative.moe_backend, or set checkpoint.mtp_weights to bf16",
        ),
    )


def _fp8(recipe: Recipe) -> Iterator[Mistake]:
    fp8 = recipe.checkpoint.fp8_dense
    has_source, is_finished = fp8.source is not None, fp8.from_ != "source"
    is_prebuilt = fp8.mode == "prebuilt"
    yield from _failed(
        (
            fp8.mode != "off" and recipe.checkpoint.shared_experts != "bf16",
            "checkpoint.shared_experts",
            f"the shared experts cannot become INT4 and be FP8 (fp8_dense mode {fp8.mode})",
            "set checkpoint.fp8_dense.mode to off, or checkpoint.shared_experts to bf16",
        ),
        (
            not is_finished and is_prebuilt and not has_source,
            "checkpoint.fp8_dense.mode",
            "prebuilt FP8 tensors need a repository to come from",
            "set checkpoint.fp8_dense.source, for example Qwen/Qwen3.5-122B-A10B-FP8; or from: "
            "hub or folder where the model itself is the finished hybrid",
        ),
        (
            not is_finished and not is_prebuilt and has_source,
            "checkpoint.fp8_dense.source",
            f"a source makes no sense with mode {fp8.mode}",
            "remove it, or set checkpoint.fp8_dense.mode to prebuilt",
        ),
        (
            is_prebuilt and fp8.layers == "all",
            "checkpoint.fp8_dense.layers",
            "prebuilt FP8 tensors are those of shared experts",
            "set checkpoint.fp8_dense.mode to online, or layers to shared_expert",
        ),
        (
            recipe.checkpoint.converts and recipe.serve.quantization is not None,
            "serve.quantization",
            "a checkpoint that is converted while loading says itself how it is quantised",
            "remove serve.quantization: what the checkpoint has is found without it",
        ),
        (
            is_finished and not is_prebuilt,
            "checkpoint.fp8_dense.from",
            f"from: {fp8.from_} makes no sense with mode {fp8.mode}",
            "remove it, or set checkpoint.fp8_dense.mode to prebuilt",
        ),
        (
            is_finished and has_source,
            "checkpoint.fp8_dense.from",
            f"from: {fp8.from_} takes the model's own FP8 weights, and a source is named too",
            "remove checkpoint.fp8_dense.source; the finished hybrid is the model",
        ),
        (
            fp8.from_ == "folder" and recipe.model.path is None,
            "checkpoint.fp8_dense.from",
            "from: folder needs model.path",
            "set model.path to the folder that `checkpoint build --standalone` wrote",
        ),
    )


def _extra_arguments(recipe: Recipe) -> Iterator[Mistake]:
    seen: set[str] = set()
    for given in flags.given_flags(recipe.serve.extra_args):
        flag, path = given.flag, given.path
        if flag is None:
            continue
        # `--x.a` and `--x.b` are two values of one mapping.
        whole = ".".join((flag, *given.keys))
        field = flags.FIELD_OF_FLAG.get(flag)
        # Keys behind a flag, `--x.key`, may be all that a recipe says of that mapping.
        is_free = field in flags.JSON_FLAGS and given.keys and getattr(recipe.serve, field) is None
        if flag in flags.OWNED_FLAGS:
            fix = f"use {flags.OWNED_FLAGS[flag]} instead"
            yield Mistake(path, f"{flag} is set by sparkdeploy", fix)
        elif field and not is_free:
            fix = f"set serve.{field} and drop it from here"
            yield Mistake(path, f"{flag} has a field of its own", fix)
        elif whole in seen:
            yield Mistake(path, f"{whole} is given twice", "keep one of them")
        seen.add(whole)


def _environment(recipe: Recipe) -> Iterator[Mistake]:
    for name in recipe.serve.env:
        path = ("serve", "env", name)
        if name in flags.FORBIDDEN_ENV:
            message = f"a recipe may not set {name}: {flags.FORBIDDEN_ENV[name]}"
            yield Mistake(path, message, f"remove serve.env.{name}")
        elif not name.replace("_", "a").isalnum() or name[0].isdigit():
            fix = "use letters, digits and underscores"
            yield Mistake(path, f"{name!r} is no environment name", fix)


def _limits(recipe: Recipe) -> Iterator[Mistake]:
    cluster, limits, expect = recipe.cluster, recipe.limits, recipe.expect
    has_canary = limits.canary_idle_s is not None
    yield from _failed(
        (
            cluster.backend == "ray" and cluster.data_parallel > 1,
            "cluster.data_parallel",
            "copies of the model are started without Ray, and cluster.backend is ray",
            "set cluster.backend to native, or cluster.data_parallel to 1",
        ),
        (
            cluster.max_nodes is not None and cluster.max_nodes < cluster.least_nodes,
            "cluster.max_nodes",
            f"at most {cluster.max_nodes} nodes are fewer than the {cluster.min_nodes} that "
            "cluster.min_nodes asks for",
            "raise cluster.max_nodes, or lower cluster.min_nodes",
        ),
        (
            has_canary and recipe.serve.runner == "pooling",
            "limits.canary_idle_s",
            "the guard asks for a token, and serve.runner pooling writes none",
            "remove limits.canary_idle_s",
        ),
        (
            has_canary and not limits.stall_s,
            "limits.canary_idle_s",
            "limits.stall_s is 0, so that nobody waits for the token",
            "set limits.stall_s to the seconds that a token may take",
        ),
        (
            expect and (expect.end_to_end_tok_s is None) == (expect.stream_decode_tok_s is None),
            "expect",
            "needs one figure, either end_to_end_tok_s or stream_decode_tok_s",
            "end_to_end_tok_s has prefill and HTTP in it, stream_decode_tok_s has neither",
        ),
    )


def _engine(recipe: Recipe, engine: Engine) -> Iterator[Mistake]:
    checkpoint, speculative = recipe.checkpoint, recipe.serve.speculative
    is_turboquant = recipe.serve.kv_cache_dtype.startswith("turboquant")
    is_online = checkpoint.fp8_dense.mode == "online"
    is_dflash = speculative is not None and speculative.method == "dflash"
    is_mtp = speculative is not None and speculative.is_mtp
    for path, is_wanted, feature in (
        ("serve.kv_cache_dtype", is_turboquant, releases.TURBOQUANT_HYBRID),
        ("serve.speculative", is_turboquant and speculative, releases.TURBOQUANT_SPECULATION),
        ("checkpoint.lm_head", checkpoint.lm_head != "bf16", releases.LM_HEAD_METHOD),
        ("checkpoint.draft_lm_head", checkpoint.draft_lm_head, releases.LM_HEAD_METHOD),
        ("checkpoint.mtp_weights", checkpoint.mtp_weights != "bf16", releases.DRAFT_LAYER),
        ("checkpoint.shared_experts", checkpoint.shared_experts != "bf16", releases.SHARED_INT4),
        ("checkpoint.fp8_dense.mode", is_online, releases.ONLINE_FP8_BLOCK),
        ("serve.speculative", is_dflash, releases.DFLASH),
        ("serve.speculative", is_mtp and not is_dflash, releases.MTP),
    ):
        if is_wanted and not feature.is_in(engine.vllm):
            yield Mistake(
                tuple(path.split(".")),
                f"engine {engine.name}: vLLM {engine.vllm} lacks {feature.name}: it came with "
                f"{feature.since} ({feature.source})",
                "choose another engine (`sparkdeploy list` shows them), or drop the setting",
            )
    yield from _fallbacks(recipe, engine)
    # A tag that moves says nothing of its release.
    if not recipe.allow_known_bad and not is_unknown(engine):
        yield from _release(recipe, engine)
    yield from _failed(
        (
            engine.kind == "image" and engine.image is None,
            "image",
            f"engine {engine.name} is an image of others, and none is named",
            f"add --set image=, which is {WAYS}",
        ),
        (
            engine.kind != "image" and engine.image is not None,
            "image",
            f"engine {engine.name} makes its own image",
            "remove it, or set engine to image",
        ),
    )


def _release(recipe: Recipe, engine: Engine) -> Iterator[Mistake]:
    """Hold the engine's release against what the recipe and the model's family need."""

    def is_older(least: str | None) -> bool:
        return least is not None and parse_version(engine.vllm) < parse_version(least)

    if (family := family_of(recipe.model.known_as)) is not None:
        failure, least = family.failure(engine.vllm), family.least_release()
        yield from _failed(
            (
                engine.runs_on == "cuda" and failure,
                "engine",
                f"engine {engine.name}: vLLM {engine.vllm} is known to be bad for {family.name}: "
                + (f"{failure.why} ({failure.source})" if failure else ""),
                "choose another engine, or insist with --allow-known-bad",
            ),
            (
                is_older(least),
                "engine",
                f"engine {engine.name}: vLLM {engine.vllm} does not know {family.name}, which came "
                f"with {least}",
                "set engine to cuda-0.33, or insist with --allow-known-bad",
            ),
        )
    yield from _failed(
        (
            is_older(recipe.least_vllm),
            "least_vllm",
            f"engine {engine.name} has vLLM {engine.vllm}, and the recipe needs "
            f"{recipe.least_vllm}",
            "choose a newer engine (`sparkdeploy list` shows them), or insist with "
            "--allow-known-bad",
        )
    )


def _fallbacks(recipe: Recipe, engine: Engine) -> Iterator[Mistake]:
    """Refuse what a launch does without where the recipe leaves it open."""
    has_unproven = fallbacks.lacks_proven_graphs(recipe, engine)
    has_no_caching = fallbacks.has_no_prefix_caching(recipe, engine)
    yield from _failed(
        (
            has_unproven and fallbacks.asks_for_full_graphs(recipe),
            "serve.compilation_config.cudagraph_mode",
            "TurboQuant with speculation writes garbage under full CUDA graphs unless they were "
            f"proven right: they are {fallbacks.proven_releases()}, not with engine {engine.name}",
            "remove cudagraph_mode: piecewise graphs are chosen then",
        ),
        (
            recipe.serve.enable_prefix_caching and has_no_caching,
            "serve.enable_prefix_caching",
            f"engine {engine.name}: {fallbacks.NO_PREFIX_CACHING}",
            "remove it, or set serve.speculative to null",
        ),
    )
