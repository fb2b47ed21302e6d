"""A recipe held against its model's own small files: what vLLM refuses or changes after the wait.

The rules are those of vLLM 0.25.1 and 0.32.0: config/model.py (`verify_with_parallel_config`,
`get_diff_sampling_param`), model_executor/layers/linear.py (`QKVParallelLinear`),
layers/mamba/ and model_loader/default_loader.py.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, Final

from sparkdeploy.checkpoint.architecture import config_sizes
from sparkdeploy.checkpoint.contents import Described, method_of, summary
from sparkdeploy.checkpoint.layers import Architecture, Attention, Mixer, Recurrent
from sparkdeploy.checkpoint.repo_files import files_here, has_weights
from sparkdeploy.checkpoint.source import fetch_command
from sparkdeploy.checks.report import Finding, fail_early, warn
from sparkdeploy.errors import CheckpointError
from sparkdeploy.estimate import limits
from sparkdeploy.estimate.model import known_layers
from sparkdeploy.recipe import flags
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.image_pins import is_unknown
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.mods import maker_of
from sparkdeploy.recipe.releases import parse_version
from sparkdeploy.recipe.schema import Weights
from sparkdeploy.recipe.serve import Serve
from sparkdeploy.recipe.words import shown

SIZES: Final = range(1, 17)
"""Tensor parallel sizes among which those that work are looked for."""
SHOWN_SIZES: Final = 4
NEEDS_NO_FILES: Final = frozenset({"dummy", "ipc_cache", "modelexpress", "tensorizer"})
"""Load formats of vLLM's whose weights come from elsewhere, or from nowhere."""
UNIQUE_NAMES: Final = frozenset(
    {"fastsafetensors", "instanttensor", "runai_streamer", "runai_streamer_sharded"}
)
"""Load formats that need each tensor in one file; others take what they read last."""
TAKEN_FILES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("safetensors", "fastsafetensors", "instanttensor"), "*.safetensors"),
    "runai_streamer": "*.safetensors",
    **dict.fromkeys(("runai_streamer_sharded", "sharded_state"), "model-rank-*.safetensors"),
    "mistral": "consolidated*.safetensors",
    "npcache": "*.bin",
    "pt": "*.pt",
}
"""What a load format reads, where that is not each format of vLLM's."""
EXCLUDING: Final = (
    *("modules_to_not_convert", "ignored_layers", "ignore", "exclude", "exclude_modules"),
    *("dynamic", "extra_config", "layer_quant_config"),
)
"""Keys of quantization_config that name the layers which are of another precision."""
_NUMBERED: Final = re.compile(r"(?:^|[.*:^])layers\\?\.(\d{1,5})(?![\d\[\]{}()?+|])")
_TOWER: Final = re.compile("visual|vision|audio|image|encoder|talker|code_predictor|token2wav")
METHODS: Final = frozenset(
    {"awq", "bitsandbytes", "compressed", "fp8", "gptq", "modelopt", "mxfp4"}
)
"""Beginnings of methods of quantisation of which none reads a checkpoint of another."""
UNDRAFTED: Final = (
    *("gemma2", "gemma3", "gemma3_text", "gpt_oss", "llama", "mistral", "mixtral", "phi3"),
    *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
)
"""Kinds of models without layers that draft, for which vLLM knows no method `mtp`."""
PENALTIES: Final = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""By the value that changes nothing."""
ALL_PENALTIES: Final = (0, 32, 0)
"""The first release that was seen to take more of generation_config.json than the first; 0.25.1
takes no other."""
OF_VLLM: Final = "--set serve.generation_config=vllm"


def model_findings(
    resolved: Resolved, model: Described, *, ranks: tuple[int, int] = (1, 1)
) -> Iterator[Finding]:
    """Yield what is wrong between a recipe and its model, on tensor x pipeline parallel ranks."""
    recipe, source = resolved.recipe, shown(resolved.recipe.model.source)
    yield from _drafter_in_image(resolved)
    yield from _context(recipe.serve, resolved.engine, source, model.config)
    if _reads_each_format(recipe.serve):
        yield from _files(recipe.model, source, model)
    yield from _loader(recipe.serve, source, model)
    yield from _generation(recipe.serve, resolved.engine, source, model)
    yield from _quantisation(recipe.serve, source, model.config)
    yield from _own_drafts(recipe.serve, source, model.config)
    yield from attention_findings(recipe.serve, source, model.config, ranks=ranks)
    drafting = recipe.serve.speculative
    drafts = drafting is not None and drafting.is_mtp
    if strays := stray_layers(model.config, drafts=drafts):
        yield warn(
            "model.quantization",
            f"config.json of {source} leaves layers out of quantisation that the model has not "
            f"({summary(strays)}): what was meant by them is read as quantised",
            "take a checkpoint whose list fits; where a draft layer is meant, "
            "--set serve.speculative=null does without it",
        )


def _quantisation(serve: Serve, source: str, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Name a method of quantisation that is not the checkpoint's; vLLM takes no other."""
    stated, wanted = method_of(config), serve.quantization
    # `gptq_marlin` reads what `gptq` does.
    kinds = {re.split("[-_]", it.lower(), maxsplit=1)[0] for it in (stated, wanted) if it}
    if len(kinds) > 1 and kinds <= METHODS:
        yield fail_early(
            "model.quantization",
            f"{source} is quantised by {shown(stated)}, and serve.quantization is {shown(wanted)}",
            "--set serve.quantization=null: the checkpoint says it",
        )


def _own_drafts(serve: Serve, source: str, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Name a model of a kind that has no draft layer, where that is to draft."""
    text, drafting = config.get("text_config"), serve.speculative
    kinds = {it.get("model_type") for it in (config, text) if isinstance(it, dict)}
    if drafting is not None and drafting.is_mtp and any(it in UNDRAFTED for it in kinds):
        yield fail_early(
            "model.drafter",
            f"{source} has no layer that drafts (MTP), and serve.speculative.method is "
            f"{shown(drafting.method)}",
            "--set serve.speculative=null, or name a drafter: --set serve.speculative.model=...",
        )


def _drafter_in_image(resolved: Resolved) -> Iterator[Finding]:
    speculative = resolved.recipe.serve.speculative
    if speculative is None or not speculative.is_in_image:
        return
    named, maker = shown(speculative.model), maker_of(speculative.model or "", resolved.mods)
    fix = "name a folder of a repository so: --set serve.speculative.model=ORG/NAME --set "
    fix += "serve.speculative.subfolder=FOLDER"
    if maker is not None:
        made = f"the drafter {named} is a folder of the image that mod {shown(maker)} makes"
        yield warn("model.drafter", f"{made}: it is neither looked at nor counted", fix)
    elif resolved.engine.kind == "image":
        seen = f"the drafter {named} has to be a folder of the image: it is not looked at"
        yield warn("model.drafter", seen, fix)
    else:
        seen = f"the drafter {named} is a folder of the image, and no mod of the recipe makes it"
        yield fail_early("model.drafter", seen, fix)


def attention_findings(
    serve: Serve,
    source: str,
    config: Mapping[str, Any],
    *,
    ranks: tuple[int, int] = (1, 1),
    is_drafter: bool = False,
) -> Iterator[Finding]:
    """Yield what the attention of a model, or of what drafts for it, does not serve."""
    layers = _layers_of(config)
    for words in limits.unserved(serve, limits.needs_of(config, layers)):
        yield fail_early("model.kv_cache", f"{source} has {words}", limits.FORMAT_FIX)
    tensor, pipeline = ranks
    drafting = serve.speculative.further if is_drafter and serve.speculative else {}
    if type(stated := drafting.get("draft_tensor_parallel_size")) is int:
        tensor = stated
    counts = head_counts(config, layers)
    uneven = sorted(f"{it.count} {it.name}" for it in counts if not it.divides(tensor))
    if uneven:
        works = [size for size in SIZES if size > 1 and all(it.divides(size) for it in counts)]
        sizes = " or ".join(map(str, works[:SHOWN_SIZES]))
        takes = f"--set cluster.tensor_parallel={works[0]} ({sizes} works), or " if works else ""
        yield fail_early(
            "model.heads",
            f"{source} has {', '.join(uneven)}: tensor parallel size {tensor} does not divide them",
            f"{takes}divide the layers instead: --set cluster.tensor_parallel=1 "
            f"--set cluster.pipeline_parallel={tensor * pipeline}",
        )


@dataclass(frozen=True, slots=True)
class HeadCount:
    name: str
    count: int
    is_replicated: bool = False
    """Whether each of several ranks may hold the same one where there are more ranks."""

    def divides(self, ranks: int) -> bool:
        """Return whether ranks of that number share them evenly."""
        if self.is_replicated and 0 < self.count < ranks:
            return ranks % self.count == 0
        return self.count % ranks == 0


def head_counts(config: Mapping[str, Any], layers: Architecture | None) -> list[HeadCount]:
    """Return what tensor parallel ranks divide; of unknown layers what config.json says."""
    try:
        sizes = config_sizes(config)
        width = sizes.optional("intermediate_size", "n_inner") or 0
        inner = [HeadCount("feed-forward channels", width)] if width else []
        if layers is None:
            heads = sizes.optional("num_attention_heads", "n_head") or 0
            keys = 0 if sizes.optional("kv_lora_rank") else sizes.optional("num_key_value_heads")
            found = [HeadCount("attention heads", heads), HeadCount("KV heads", keys or 0, True)]
            return [*(it for it in found if it.count), *inner]
        key_heads = sizes.optional("linear_num_key_heads") or 0
    except CheckpointError:
        return []
    mixers = (mixer for layer in layers.layers for mixer in layer.mixers)
    return [*dict.fromkeys(it for mixer in mixers for it in _of_mixer(mixer, key_heads)), *inner]


def _of_mixer(mixer: Mixer, key_heads: int) -> Iterator[HeadCount]:
    if isinstance(mixer, Recurrent):
        is_linear = mixer.checkpoints_since is not None and not mixer.groups
        yield HeadCount(f"{'linear-attention' if is_linear else mixer.name} heads", mixer.heads)
        if is_linear and key_heads and key_heads != mixer.heads:
            yield HeadCount("linear-attention key heads", key_heads)
        # One group is on every rank; several are divided.
        if mixer.groups > 1:
            yield HeadCount(f"{mixer.name} groups", mixer.groups)
        return
    yield HeadCount("attention heads", mixer.query_heads)
    if isinstance(mixer, Attention):
        yield HeadCount("KV heads", mixer.kv_heads, is_replicated=True)


def stray_layers(config: Mapping[str, Any], *, drafts: bool = True) -> list[str]:
    """Return entries of quantisation lists that name a layer by a number that the model has not.

    Nobody reads a draft layer that does not draft: there an author's list may still have one.
    """
    layers, stated = _layers_of(config), config.get("quantization_config")
    if layers is None or not isinstance(stated, dict):
        return []
    own, count = len(layers.draft_layers) or int(not drafts), len(layers.layers)
    strays = []
    for entry in _excluded(stated):
        number = _NUMBERED.search(entry)
        if number is None or _TOWER.search(entry):
            continue
        # Draft layers are counted from 0, or follow the model's own.
        last = max(own, 1) if "mtp" in entry else count + own
        if int(number[1]) >= last:
            strays.append(entry)
    return strays


def _excluded(stated: Mapping[str, Any]) -> Iterator[str]:
    for key in EXCLUDING:
        entries = stated.get(key)
        if isinstance(entries, list | dict):
            yield from (entry for entry in entries if isinstance(entry, str))
    inner = stated.get("quantization")
    if isinstance(inner, dict):
        yield from _excluded({key: it for key, it in inner.items() if key in EXCLUDING})


def _layers_of(config: Mapping[str, Any]) -> Architecture | None:
    try:
        return known_layers(config)[0] if config else None
    except CheckpointError:
        # Numbers that no model has are for the download to refuse.
        return None


def _context(
    serve: Serve, engine: Engine, source: str, config: Mapping[str, Any]
) -> Iterator[Finding]:
    if (wanted := serve.context_limit) is None:
        return
    if not config:
        seen = f"the context of {source} is not known, and serve.max_model_len {wanted:,} was not "
        yield warn("model.context", f"{seen}held against it", "try again where the hub answers")
        return
    beyond = limits.beyond_context(serve, config)
    if beyond is not None:
        yield fail_early("model.context", f"{source} has {beyond}", limits.CONTEXT_FIX)
    elif limits.needs_stated_context(serve, config, engine):
        place = "text_config." if "text_config" in (serve.hf_overrides or {}) else ""
        yield warn(
            "model.context",
            f"vLLM {engine.vllm} does not multiply the context of {source} by its YaRN factor, and "
            f"may refuse serve.max_model_len {wanted:,}",
            f"--set serve.hf_overrides.{place}max_position_embeddings={wanted}",
        )


def _files(weights: Weights, source: str, model: Described) -> Iterator[Finding]:
    """Name weights that are there in part: a download or a copy that was broken off."""
    if counted := files_here(model.names, model.indexed):
        fetch = fetch_command(weights.source, weights.revision)
        yield fail_early(
            "model.files",
            f"{source} has {counted[0]} of {counted[1]} files of its weights",
            fetch if weights.path is None else "copy the other files there, or download it again",
        )


def _reads_each_format(serve: Serve) -> bool:
    """Whether the load format reads what an index of safetensors, or the numbers, count."""
    chosen = (serve.load_format or "auto").lower()
    return chosen not in NEEDS_NO_FILES and TAKEN_FILES.get(chosen) in (None, "*.safetensors")


def _loader(serve: Serve, source: str, model: Described) -> Iterator[Finding]:
    """Name what the recipe's load format cannot read."""
    chosen = (serve.load_format or "auto").lower()
    pattern, here_names = TAKEN_FILES.get(chosen), [it for it in model.names if "/" not in it]
    if flags.value_of(serve.extra_args, "--model-loader-extra-config") and "rank" in str(pattern):
        # It may name another pattern.
        pattern = None
    if pattern and has_weights(here_names) and not any(fnmatch(it, pattern) for it in here_names):
        seen = f"load format {chosen} reads {pattern}, and {source} has no such file"
        yield fail_early("model.loader", seen, "--set serve.load_format=auto")
    if chosen in UNIQUE_NAMES and model.repeated:
        yield fail_early(
            "model.loader",
            f"load format {chosen} needs each tensor in one file, and several of {source} hold "
            f"{summary([*model.repeated])}",
            "--set serve.load_format=safetensors",
        )


def _generation(serve: Serve, engine: Engine, source: str, model: Described) -> Iterator[Finding]:
    """Name what generation_config.json does to answers of clients that say nothing of it.

    Without that file vLLM takes the same keys of config.json.
    """
    if serve.generation_config not in (None, "auto") or serve.runner == "pooling":
        return
    file, given = "generation_config.json", model.generation
    if not given:
        text = model.config.get("text_config")
        file, given = "config.json", {**(text if isinstance(text, dict) else {}), **model.config}
    overridden = serve.override_generation_config or {}
    own = {
        key: it for key, it in given.items() if type(it) in (int, float) and key not in overridden
    }
    limit = own.get("max_new_tokens")
    if limit is not None and limit < (serve.context_limit or limit + 1):
        yield warn(
            "model.generation",
            f"{file} of {source} cuts answers after {limit:,} tokens "
            "(max_new_tokens) where a client names no max_tokens",
            OF_VLLM,
        )
    takes_all = is_unknown(engine) or parse_version(engine.vllm) >= ALL_PENALTIES
    taken = [*PENALTIES.items()][: None if takes_all else 1]
    if changes := [f"{key} {own[key]:g}" for key, it in taken if own.get(key, it) != it]:
        seen = f"{file} of {source} changes answers: {', '.join(changes)}"
        yield warn("model.generation", seen, OF_VLLM)
