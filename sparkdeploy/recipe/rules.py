"""Settings that are valid alone and wrong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.recipe import fallbacks, flags, releases
from sparkdeploy.recipe.image_name import WAYS
from sparkdeploy.recipe.image_pins import is_unknown
from sparkdeploy.recipe.releases import family_of, parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.recipe.document import KeyPath
    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.schema import Recipe, Speculative, Weights


@dataclass(frozen=True, slots=True)
class Mistake:
    path: KeyPath
    message: str
    fix: str


def find_contradictions(recipe: Recipe, engine: Engine | None) -> list[Mistake]:
    rules = (
        *(_weights, _mods, _turboquant, _speculation, _fp8, _extra_arguments, _environment),
        *(_cluster, _canary, _reported_figure),
    )
    problems = [mistake for rule in rules for mistake in rule(recipe)]
    if engine is not None:
        problems += _engine_support(recipe, engine)
    return problems


def _weights(recipe: Recipe) -> Iterator[Mistake]:
    named: list[tuple[KeyPath, Weights]] = [(("model",), recipe.model)]
    named += [(("serve", "lora", at), it) for at, it in enumerate(recipe.serve.lora)]
    for path, weights in named:
        if not weights.source:
            yield Mistake(
                path, "has neither repo nor path", "add repo: ORG/NAME, or the path of a folder"
            )


def _reported_figure(recipe: Recipe) -> Iterator[Mistake]:
    expect = recipe.expect
    if expect is None:
        return
    if (expect.end_to_end_tok_s is None) == (expect.stream_decode_tok_s is None):
        yield Mistake(
            ("expect",),
            "needs one figure, either end_to_end_tok_s or stream_decode_tok_s",
            "end_to_end_tok_s has prefill and HTTP in it, stream_decode_tok_s has neither",
        )


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


def _turboquant(recipe: Recipe) -> Iterator[Mistake]:
    serve = recipe.serve
    if serve.kv_cache_dtype.startswith("turboquant") and serve.attention_backend is not None:
        yield Mistake(
            ("serve", "attention_backend"),
            f"{serve.attention_backend} cannot read a {serve.kv_cache_dtype} KV cache",
            "set serve.attention_backend to null: vLLM picks TURBOQUANT from the cache's dtype",
        )


def _speculation(recipe: Recipe) -> Iterator[Mistake]:
    speculative, checkpoint = recipe.serve.speculative, recipe.checkpoint
    is_mtp = speculative is not None and speculative.is_mtp
    if is_mtp and checkpoint.mtp == "off":
        yield Mistake(
            ("serve", "speculative"),
            "speculative decoding by MTP needs the MTP weights, and checkpoint.mtp is off",
            "set checkpoint.mtp to required, or serve.speculative to null",
        )
    if speculative is not None and speculative.model is None and _needs_drafter(speculative):
        drafts = f"{speculative.method} drafts" if speculative.method else "vLLM drafts"
        yield Mistake(
            ("serve", "speculative"),
            f"{drafts} with a model of its own, and none is named",
            "set serve.speculative.model to the drafter's repository",
        )
    if checkpoint.draft_lm_head is not None and not is_mtp:
        yield Mistake(
            ("checkpoint", "draft_lm_head"),
            "a draft head belongs to the MTP layer, and this recipe does not draft by MTP",
            "set serve.speculative to {method: mtp, tokens: 2}, or remove checkpoint.draft_lm_head",
        )
    if checkpoint.mtp_weights != "bf16":
        yield from _shrunk_draft_layer(speculative)


def _shrunk_draft_layer(speculative: Speculative | None) -> Iterator[Mistake]:
    if speculative is None or not speculative.is_mtp:
        yield Mistake(
            ("checkpoint", "mtp_weights"),
            "it is for the MTP layer, and this recipe does not draft by MTP",
            "set serve.speculative to {method: mtp, tokens: 2}, or checkpoint.mtp_weights to bf16",
        )
        return
    kernel = speculative.further.get("moe_backend", "auto")
    if kernel not in _INT4_KERNELS:
        yield Mistake(
            ("serve", "speculative"),
            f"moe_backend {kernel} runs no INT4 experts, which checkpoint.mtp_weights makes",
            "remove serve.speculative.moe_backend, or set checkpoint.mtp_weights to bf16",
        )


_INT4_KERNELS = ("auto", "marlin", "humming", "flashinfer_trtllm")
"""Those that `map_wna16_backend` knows (layers/fused_moe/oracle/int_wna16.py in 0.25.1)."""


def _needs_drafter(speculative: Speculative) -> bool:
    return speculative.method in (None, "dflash", "eagle", "eagle3", "medusa", "draft_model")


def _fp8(recipe: Recipe) -> Iterator[Mistake]:
    fp8 = recipe.checkpoint.fp8_dense
    if fp8.mode != "off" and recipe.checkpoint.shared_experts != "bf16":
        yield Mistake(
            ("checkpoint", "shared_experts"),
            f"the shared experts cannot become INT4 and be FP8 (fp8_dense mode {fp8.mode})",
            "set checkpoint.fp8_dense.mode to off, or checkpoint.shared_experts to bf16",
        )
    if fp8.from_ != "source":
        yield from _finished(recipe)
        return
    if fp8.mode == "prebuilt" and fp8.source is None:
        yield Mistake(
            ("checkpoint", "fp8_dense", "mode"),
            "prebuilt FP8 tensors need a repository to come from",
            "set checkpoint.fp8_dense.source, for example Qwen/Qwen3.5-122B-A10B-FP8; or from: "
            "hub or folder where the model itself is the finished hybrid",
        )
    if fp8.mode != "prebuilt" and fp8.source is not None:
        yield Mistake(
            ("checkpoint", "fp8_dense", "source"),
            f"a source makes no sense with mode {fp8.mode}",
            "remove it, or set checkpoint.fp8_dense.mode to prebuilt",
        )


def _finished(recipe: Recipe) -> Iterator[Mistake]:
    fp8 = recipe.checkpoint.fp8_dense
    path = ("checkpoint", "fp8_dense", "from")
    if fp8.mode != "prebuilt":
        yield Mistake(
            path,
            f"from: {fp8.from_} makes no sense with mode {fp8.mode}",
            "remove it, or set checkpoint.fp8_dense.mode to prebuilt",
        )
    if fp8.source is not None:
        yield Mistake(
            path,
            f"from: {fp8.from_} takes the model's own FP8 weights, and a source is named too",
            "remove checkpoint.fp8_dense.source; the finished hybrid is the model",
        )
    if fp8.from_ == "folder" and recipe.model.path is None:
        yield Mistake(
            path,
            "from: folder needs model.path",
            "set model.path to the folder that `checkpoint build --standalone` wrote",
        )


def _extra_arguments(recipe: Recipe) -> Iterator[Mistake]:
    seen: set[str] = set()
    for given in flags.given_flags(recipe.serve.extra_args):
        flag, path = given.flag, given.path
        if flag is None:
            continue
        # `--x.a` and `--x.b` are two values of one mapping.
        whole = ".".join((flag, *given.keys))
        if flag in flags.OWNED_FLAGS:
            yield Mistake(
                path, f"{flag} is set by sparkdeploy", f"use {flags.OWNED_FLAGS[flag]} instead"
            )
        elif (field := flags.FIELD_OF_FLAG.get(flag)) and not _is_free(recipe, field, given):
            yield Mistake(
                path, f"{flag} is given twice", f"set serve.{field} and drop it from here"
            )
        elif whole in seen:
            yield Mistake(path, f"{whole} is given twice", "keep one of them")
        seen.add(whole)


def _is_free(recipe: Recipe, field: str, given: flags.Given) -> bool:
    """Whether keys behind a flag, `--x.key`, are all that a recipe says of that mapping."""
    is_open = getattr(recipe.serve, field) is None
    return field in flags.JSON_FLAGS and bool(given.keys) and is_open


def _environment(recipe: Recipe) -> Iterator[Mistake]:
    for name in recipe.serve.env:
        if name in flags.FORBIDDEN_ENV:
            yield Mistake(
                ("serve", "env", name),
                f"a recipe may not set {name}: {flags.FORBIDDEN_ENV[name]}",
                f"remove serve.env.{name}",
            )
        elif not name.replace("_", "a").isalnum() or name[0].isdigit():
            yield Mistake(
                ("serve", "env", name),
                f"{name!r} is no environment name",
                "use letters, digits and underscores",
            )


def _cluster(recipe: Recipe) -> Iterator[Mistake]:
    cluster = recipe.cluster
    if cluster.backend == "ray" and cluster.data_parallel > 1:
        yield Mistake(
            ("cluster", "data_parallel"),
            "copies of the model are started without Ray, and cluster.backend is ray",
            "set cluster.backend to native, or cluster.data_parallel to 1",
        )
    if cluster.max_nodes is not None and cluster.max_nodes < cluster.least_nodes:
        yield Mistake(
            ("cluster", "max_nodes"),
            f"at most {cluster.max_nodes} nodes are fewer than the {cluster.min_nodes} that "
            "cluster.min_nodes asks for",
            "raise cluster.max_nodes, or lower cluster.min_nodes",
        )


def _canary(recipe: Recipe) -> Iterator[Mistake]:
    limits = recipe.limits
    if limits.canary_idle_s is None:
        return
    if recipe.serve.runner == "pooling":
        yield Mistake(
            ("limits", "canary_idle_s"),
            "the guard asks for a token, and serve.runner pooling writes none",
            "remove limits.canary_idle_s",
        )
    if not limits.stall_s:
        yield Mistake(
            ("limits", "canary_idle_s"),
            "limits.stall_s is 0, so that nobody waits for the token",
            "set limits.stall_s to the seconds that a token may take",
        )


def _engine_support(recipe: Recipe, engine: Engine) -> Iterator[Mistake]:
    checkpoint, speculative = recipe.checkpoint, recipe.serve.speculative
    drafting = _drafting(speculative) if speculative is not None else None
    is_turboquant = recipe.serve.kv_cache_dtype.startswith("turboquant")
    is_online = checkpoint.fp8_dense.mode == "online"
    is_shared_int4 = checkpoint.shared_experts != "bf16"
    for path, is_wanted, feature in (
        ("serve.kv_cache_dtype", is_turboquant, releases.TURBOQUANT_HYBRID),
        ("serve.speculative", is_turboquant and speculative, releases.TURBOQUANT_SPECULATION),
        ("checkpoint.lm_head", checkpoint.lm_head != "bf16", releases.LM_HEAD_METHOD),
        ("checkpoint.draft_lm_head", checkpoint.draft_lm_head, releases.LM_HEAD_METHOD),
        ("checkpoint.mtp_weights", checkpoint.mtp_weights != "bf16", releases.DRAFT_LAYER),
        ("checkpoint.shared_experts", is_shared_int4, releases.SHARED_INT4),
        ("checkpoint.fp8_dense.mode", is_online, releases.ONLINE_FP8_BLOCK),
        ("serve.speculative", drafting, drafting),
    ):
        if is_wanted and feature and not feature.is_in(engine.vllm):
            yield Mistake(
                tuple(path.split(".")),
                f"engine {engine.name}: vLLM {engine.vllm} lacks {feature.name}: it came with "
                f"{feature.since} ({feature.source})",
                "choose another engine (`sparkdeploy list` shows them), or drop the setting",
            )
    yield from _turboquant_with_mtp(recipe, engine)
    yield from _prefix_caching(recipe, engine)
    yield from _engine_itself(recipe, engine)


def _drafting(speculative: Speculative) -> releases.Feature | None:
    if speculative.method == "dflash":
        return releases.DFLASH
    return releases.MTP if speculative.is_mtp else None


def _engine_itself(recipe: Recipe, engine: Engine) -> Iterator[Mistake]:
    yield from _family(recipe, engine)
    least = recipe.least_vllm
    is_older = least is not None and parse_version(engine.vllm) < parse_version(least)
    if is_older and not recipe.allow_known_bad and not is_unknown(engine):
        yield Mistake(
            ("least_vllm",),
            f"engine {engine.name} has vLLM {engine.vllm}, and the recipe needs {least}",
            "choose a newer engine (`sparkdeploy list` shows them), or insist with "
            "--allow-known-bad",
        )
    if engine.kind == "image" and engine.image is None:
        yield Mistake(
            ("image",),
            f"engine {engine.name} is an image of others, and none is named",
            f"add --set image=, which is {WAYS}",
        )
    if engine.kind != "image" and engine.image is not None:
        yield Mistake(
            ("image",),
            f"engine {engine.name} makes its own image",
            "remove it, or set engine to image",
        )


def _family(recipe: Recipe, engine: Engine) -> Iterator[Mistake]:
    """Hold the engine's release against what the model's family needs."""
    family = family_of(recipe.model.known_as)
    # A tag that moves says nothing of its release.
    if family is None or recipe.allow_known_bad or is_unknown(engine):
        return
    failure, least = family.failure(engine.vllm), family.least_release()
    if failure is not None and engine.runs_on == "cuda":
        yield Mistake(
            ("engine",),
            f"engine {engine.name}: vLLM {engine.vllm} is known to be bad for {family.name}: "
            f"{failure.why} ({failure.source})",
            "choose another engine, or insist with --allow-known-bad",
        )
    if least is not None and parse_version(engine.vllm) < parse_version(least):
        yield Mistake(
            ("engine",),
            f"engine {engine.name}: vLLM {engine.vllm} does not know {family.name}, which came "
            f"with {least}",
            "set engine to cuda-0.33, or insist with --allow-known-bad",
        )


def _turboquant_with_mtp(recipe: Recipe, engine: Engine) -> Iterator[Mistake]:
    """Where the recipe leaves its graphs open, a launch chooses those that are proven."""
    if fallbacks.lacks_proven_graphs(recipe, engine) and fallbacks.asks_for_full_graphs(recipe):
        yield Mistake(
            ("serve", "compilation_config", "cudagraph_mode"),
            "TurboQuant with speculation writes garbage under full CUDA graphs unless they were "
            f"proven right: they are {fallbacks.proven_releases()}, not with engine {engine.name}",
            "remove cudagraph_mode: piecewise graphs are chosen then",
        )


def _prefix_caching(recipe: Recipe, engine: Engine) -> Iterator[Mistake]:
    if recipe.serve.enable_prefix_caching and fallbacks.has_no_prefix_caching(recipe, engine):
        yield Mistake(
            ("serve", "enable_prefix_caching"),
            f"engine {engine.name}: {fallbacks.NO_PREFIX_CACHING}",
            "remove it, or set serve.speculative to null",
        )
