"""What a checkpoint holds: every tensor with its file, and the sizes its config.json states."""

import contextlib
import gc
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sparkdeploy.checkpoint.architecture import config_sizes
from sparkdeploy.checkpoint.durable import read_errors
from sparkdeploy.checkpoint.repo_files import files_here, name_problem, printable, shown
from sparkdeploy.checkpoint.safetensors import (
    TENSORS_LIMIT,
    Header,
    TensorInfo,
    read_header,
    within_limits,
)
from sparkdeploy.errors import CheckpointError
from sparkdeploy.stored_json import check_pairs, read_bytes

CONFIG_FILE = "config.json"
MODELOPT_FILE = "hf_quant_config.json"
GENERATION_FILE = "generation_config.json"
CONFIG_LIMIT_BYTES = 4 << 20
TOKENIZER_FILE = "tokenizer_config.json"
_CHATS = re.compile(r".*chat_template|tekken\.json$|processor_config\.json$")
"""Files that are, or may have, a chat template."""
"""What is read of a stranger's config.json; real ones have some thousand bytes."""
INDEX_FILE = "model.safetensors.index.json"
INDEX_LIMIT_BYTES = 48 << 20
"""What is read of a stranger's index; one of 200,000 tensors has 27 million bytes."""
_INDEX_SIGNS_LIMIT = TENSORS_LIMIT + 10
"""Colons or commas; there is one of each for a tensor, and some for what stands beside."""
_INDEX_NESTING_LIMIT = 1000
"""An index has three objects; thousands of nested ones take memory and nothing else."""
_CONFIG_NESTING_LIMIT = 64
"""Objects within objects; what is deeper could be read and not be written again."""
_INDEX_HINT = "download the model again, from an owner you trust; nothing of it was used"


@dataclass(frozen=True, slots=True)
class Located:
    file: str
    info: TensorInfo


@dataclass(frozen=True, slots=True)
class Described:
    """What a model's files say beside their tensors, on this machine or on a hub."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """Empty where nobody has read it."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """Of generation_config.json."""
    names: Collection[str] = ()
    """Of all files; empty where nobody has listed them."""
    indexed: Collection[str] = ()
    """Files that an index lists."""
    repeated: Collection[str] = ()
    """Tensors that several files hold; empty where nobody has looked."""


NOT_DESCRIBED = Described()


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """What config.json says about the language model; counts and widths in elements."""

    layers: int
    hidden: int
    vocab: int
    experts: int
    shared_expert_intermediate: int
    mtp_layers: int
    ties_embeddings: bool
    prefix: str = "model.language_model."


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Spare Python's search for cycles, a third of the time of the 122B's 111,523 tensors."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@collector_paused()
def read_headers(folder: Path) -> Mapping[str, Header]:
    """By file name; CheckpointError when `folder` has no safetensors file or one is damaged."""
    files = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("."))
    if not files:
        raise CheckpointError(f"{folder} holds no .safetensors files.")
    read = ((path.name, read_header(path)) for path in files)
    return dict(within_limits(str(folder), read))


def read_tensors(
    folder: Path, headers: Mapping[str, Header] | None = None
) -> Mapping[str, Located]:
    """Return every tensor of the safetensors files in `folder`; of two, the index decides."""
    preferred = (read_index(folder) or {}).get("weight_map", {})
    headers = read_headers(folder) if headers is None else headers
    _refuse_absent(folder, headers.keys(), {*preferred.values()})
    tensors: dict[str, Located] = {}
    for file, header in headers.items():
        for name, info in header.tensors.items():
            known = tensors.get(name)
            if known is None or preferred.get(name) == file:
                tensors[name] = Located(file, info)
            elif preferred.get(name) != known.file:
                raise CheckpointError(
                    f"{printable(name)} stands in both {printable(known.file)} and "
                    f"{printable(file)}.",
                    hint="the index says which one counts; write one, or remove a file",
                )
    missing = sorted(set(preferred) - set(tensors))
    if missing:
        raise CheckpointError(f"{folder}: no file holds {summary(missing)}, listed in its index.")
    return MappingProxyType(tensors)


def describe(folder: Path, names: Collection[str]) -> Described:
    """Read a model's small files; an adapter has no config.json."""
    config = read_config(folder) if (folder / CONFIG_FILE).is_file() else {}
    indexed = (read_index(folder) or {}).get("weight_map", {}).values()
    return Described(config, read_generation(folder), frozenset(names), frozenset(indexed))


def repeated_tensors(
    headers: Mapping[str, Header], indexed: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the tensors that several files hold, of those that an index lists if there is one."""
    counts = Counter(
        name
        for file, header in headers.items()
        if not indexed or file in indexed
        for name in header.tensors
    )
    return tuple(sorted(name for name, count in counts.items() if count > 1))


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as it is; CheckpointError when it is no JSON object."""
    path = folder / CONFIG_FILE
    with read_errors(path):
        text = read_bytes(path, CONFIG_LIMIT_BYTES)
    return parse_config(str(path), text)


def read_generation(folder: Path) -> dict[str, Any]:
    """generation_config.json as it is; empty where there is none that is one."""
    path = folder / GENERATION_FILE
    with contextlib.suppress(OSError, CheckpointError):
        return parse_config(str(path), read_bytes(path, CONFIG_LIMIT_BYTES))
    return {}


def may_chat(folder: Path, config: Mapping[str, Any]) -> bool:
    """Say whether a model may have a chat template; False where its tokenizer has none.

    vLLM has its own for some models with pictures and for releases of DeepSeek.
    """
    path = folder / TOKENIZER_FILE
    try:
        tokenizer = parse_config(str(path), read_bytes(path, CONFIG_LIMIT_BYTES))
    except (OSError, CheckpointError):
        return True
    has_own = "vision_config" in config or str(config.get("model_type")).startswith("deepseek")
    return (
        has_own
        or "chat_template" in tokenizer
        or any(_CHATS.match(it.name) for it in folder.iterdir())
    )


def read_quantization(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """How a checkpoint is quantised: in config.json, or as ModelOpt writes it beside it.

    Empty for 16 bits. CheckpointError where it is no JSON object. Lists of single layers stand in
    ModelOpt's file alone, which engines read for its own method's name only.
    """
    text = config.get("text_config")
    stated = config.get("quantization_config")
    if stated is None and isinstance(text, dict):
        stated = text.get("quantization_config")
    stated = {} if stated is None else stated
    if not isinstance(stated, dict):
        raise CheckpointError("config.json: quantization_config is not an object.")
    beside = folder / MODELOPT_FILE
    if stated.get("quant_method", "modelopt") != "modelopt" or not beside.is_file():
        return stated
    with read_errors(beside):
        found = parse_config(str(beside), read_bytes(beside, CONFIG_LIMIT_BYTES))
    return {**stated, **found, "quant_method": "modelopt"}


def read_index(folder: Path) -> dict[str, Any] | None:
    """The index of a folder, as `parse_index` checks it; None without one."""
    path = folder / INDEX_FILE
    with read_errors(path):
        try:
            text = read_bytes(path, INDEX_LIMIT_BYTES)
        except FileNotFoundError:
            return None
    return parse_index(str(path), text)


def parse_config(name: str, text: bytes) -> dict[str, Any]:
    """A config.json that was read from anywhere; errors call it `name`."""
    try:
        # What json.loads makes of bytes; a mark at the beginning is none of the text.
        letters = text.decode(json.detect_encoding(text))
        config = json.loads(letters)
        _check_nesting(config)
        check_pairs(letters, config)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} cannot be read: {printable(error)}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{name} is not a JSON object.")
    return config


def _check_nesting(content: object, left: int = _CONFIG_NESTING_LIMIT) -> None:
    if isinstance(content, dict | list):
        if not left:
            raise ValueError("it is nested too deep")
        for inner in content.values() if isinstance(content, dict) else content:
            _check_nesting(inner, left - 1)


def method_of(config: Mapping[str, Any]) -> str | None:
    stated = config.get("quantization_config")
    if not isinstance(stated, dict):
        return None
    method = stated.get("quant_method")
    return method if isinstance(method, str) else ""


def model_sizes(config: Mapping[str, Any]) -> ModelSizes:
    sizes = config_sizes(config)
    mtp_layers = sizes.optional("mtp_num_hidden_layers")
    if mtp_layers is None:
        # Qwen3-Next has a draft layer, and its configuration does not say so.
        mtp_layers = int(sizes.model_type == "qwen3_next")
    return ModelSizes(
        layers=sizes.number("num_hidden_layers"),
        hidden=sizes.number("hidden_size"),
        vocab=sizes.number("vocab_size"),
        experts=sizes.optional("num_experts") or 0,
        shared_expert_intermediate=sizes.optional("shared_expert_intermediate_size") or 0,
        mtp_layers=mtp_layers,
        ties_embeddings=sizes.ties_embeddings,
        # Models that see keep their language model within; Qwen3-Next and the like are one.
        prefix="model." if sizes.text is config else "model.language_model.",
    )


def shared_expert_shapes(sizes: ModelSizes) -> Iterator[tuple[str, tuple[int, int]]]:
    """Names and shapes of the weights that become FP8: three for each layer that has them."""
    if not sizes.shared_expert_intermediate:
        return
    wide = (sizes.shared_expert_intermediate, sizes.hidden)
    for layer in range(sizes.layers):
        prefix = f"{sizes.prefix}layers.{layer}.mlp.shared_expert"
        yield f"{prefix}.gate_proj.weight", wide
        yield f"{prefix}.up_proj.weight", wide
        yield f"{prefix}.down_proj.weight", wide[::-1]


def mtp_names(sizes: ModelSizes) -> frozenset[str]:
    """Names of the draft layers' tensors: 3 for an expert, 13 more for a layer, and 4."""
    names = {
        f"mtp.{n}.weight" for n in ("fc", "norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding")
    }
    for layer in range(sizes.mtp_layers):
        prefix = f"mtp.layers.{layer}"
        attention = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
        linears = ("gate_proj", "up_proj", "down_proj")
        parts = ["input_layernorm", "post_attention_layernorm", "mlp.gate"]
        parts += ["mlp.shared_expert_gate", *(f"self_attn.{name}" for name in attention)]
        parts += [f"mlp.shared_expert.{name}" for name in linears]
        parts += [f"mlp.experts.{e}.{name}" for e in range(sizes.experts) for name in linears]
        names |= {f"{prefix}.{part}.weight" for part in parts}
    return frozenset(names)


def _refuse_absent(folder: Path, names: Collection[str], indexed: Collection[str]) -> None:
    if (counted := files_here(names, indexed)) is not None:
        absent = sorted({*indexed} - {*names})
        lacks = f": it lacks {summary(absent)}, which its index lists" if absent else ""
        raise CheckpointError(
            f"{printable(folder)} has {counted[0]} of {counted[1]} files of its weights{lacks}.",
            hint="Download the model again; an interrupted download looks like this.",
        )


def summary(names: Sequence[str]) -> str:
    """The first three, as a terminal may show them, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(printable, names[:3])) + more


def index_content(tensors: Mapping[str, Located]) -> dict[str, object]:
    total = sum(located.info.size_bytes for located in tensors.values())
    return {
        "metadata": {"total_size": total},
        "weight_map": {name: tensors[name].file for name in sorted(tensors)},
    }


def parse_index(name: str, text: bytes) -> dict[str, Any]:
    """Return an index whose weight_map leads from tensors to files of its own folder."""
    if max(text.count(sign) for sign in (b":", b",")) > _INDEX_SIGNS_LIMIT:
        raise CheckpointError(f"{name} has more than {TENSORS_LIMIT} entries.", hint=_INDEX_HINT)
    if text.count(b"{") + text.count(b"[") > _INDEX_NESTING_LIMIT:
        raise CheckpointError(f"{name} is no plain list of tensors.", hint=_INDEX_HINT)
    try:
        index = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} cannot be read: {printable(error)}") from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{name} has no weight_map from tensors to files.")
    # Each file once, by what it is: there are thousands of tensors to one, and JSON has lists.
    files = {file if isinstance(file, str) else type(file) for file in weight_map.values()}
    for file in files:
        problem = _file_problem(file)
        if problem is not None:
            raise CheckpointError(
                f"{name} has no weight_map from tensors to files: {shown(file)} {problem}.",
                hint=_INDEX_HINT,
            )
    whole: dict[str, Any] = index
    return whole


def _file_problem(file: object) -> str | None:
    problem = name_problem(file)
    if problem is None and "/" in str(file):
        return "lies in a folder"
    if problem is None and not str(file).endswith(".safetensors"):
        return "is no .safetensors file"
    return problem
