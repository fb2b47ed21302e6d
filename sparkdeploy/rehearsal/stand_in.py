"""The folder that is served instead of a model: its shrunken config.json, and no weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sparkdeploy.checkpoint import durable
from sparkdeploy.checkpoint.contents import CONFIG_FILE
from sparkdeploy.checkpoint.tiny_model.build import config_files
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.rehearsal.shrink import shrink
from sparkdeploy.stored_json import read_json

if TYPE_CHECKING:
    from sparkdeploy.checkpoint.published import PublishedConfig

TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "tekken.json",
    "chat_template.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "generation_config.json",
)
_BY_NUMBER: Final = {"gpt_oss"}
"""vLLM writes their conversations by tokens' numbers, which a smaller vocabulary lacks."""
_VOCABULARIES: Final = ("tokenizer.json", "tekken.json", "tokenizer.model", "vocab.txt")
_MARKS: Final = Path(__file__).with_name("marks.json")
"""What vLLM's parsers look for in a vocabulary (its tool_parsers/ and reasoning/, 0.32); a
tokenizer without them ends the server's start."""


@dataclass(frozen=True, slots=True)
class StandInModel:
    folder: Path
    notes: tuple[str, ...]
    has_own_tokenizer: bool
    """Whether tokenizer and template are the model's own."""
    is_hybrid: bool = False


def make_stand_in(folder: Path, published: PublishedConfig, name: str) -> StandInModel:
    """Write the folder anew; what an earlier rehearsal left there goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    own = _copy_tokenizer(published, folder)
    vocabulary = None if own else _write_stand_in_tokenizer(folder)
    if published.config.get("model_type") in _BY_NUMBER:
        vocabulary = None
    small = shrink(published.config, vocabulary)
    durable.write_json(folder / CONFIG_FILE, small.config)
    notes = [
        f"{name} -> a stand-in with dummy weights: its config.json {published.origin}, shrunk",
        *small.notes,
    ]
    if not own:
        notes.append("tokenizer and chat template are a stand-in's: the model's own are not here")
    return StandInModel(folder, tuple(notes), own, small.is_hybrid)


def _copy_tokenizer(published: PublishedConfig, folder: Path) -> bool:
    """Copy what small files of the model are at hand; a vocabulary must be among them."""
    source = published.folder
    if source is None or not any((source / name).is_file() for name in _VOCABULARIES):
        return False
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    return True


def _write_stand_in_tokenizer(folder: Path) -> int:
    """Write the twin's tokenizer with marks that parsers know; return its tokens."""
    files = config_files(TinyShape())
    tokenizer: dict[str, Any] = files["tokenizer.json"]
    first = TinyShape().vocab
    known = {item["content"] for item in tokenizer["added_tokens"]}
    marks = [mark for mark in read_json(_MARKS) if mark not in known]
    tokenizer["added_tokens"] += [_mark(first + at, mark) for at, mark in enumerate(marks)]
    settings = files["tokenizer_config.json"]
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings["added_tokens_decoder"] |= {
        str(first + at): {key: value for key, value in _mark(0, mark).items() if key != "id"}
        for at, mark in enumerate(marks)
    }
    durable.write_text(folder / "tokenizer.json", json.dumps(tokenizer))
    durable.write_text(folder / "tokenizer_config.json", json.dumps(settings))
    durable.write_text(folder / "chat_template.jinja", settings["chat_template"])
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        durable.write_text(folder / name, json.dumps(files[name]))
    return -(-(first + len(marks)) // 64) * 64


def _mark(number: int, content: str) -> dict[str, object]:
    return {
        "id": number,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": False,
    }
