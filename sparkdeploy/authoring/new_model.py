"""What is known of a model that `new` writes a recipe for: its family, its use, its context."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sparkdeploy.recipe.families import family_among, short_name
from sparkdeploy.recipe.words import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from sparkdeploy.checkpoint.published import PublishedConfig
    from sparkdeploy.recipe.families import Family
    from sparkdeploy.recipe.schema import Weights

CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_target_positions",
    "seq_length",
    "max_seq_len",
    "model_max_length",
)
"""Where configurations say how long a request may be; vLLM reads the same."""
CONTEXT_LIMIT = 1 << 24
MOST_ARCHITECTURES = 8
"""Real models have one or two."""
SHOWN_ARCHITECTURES = 3
_POOLING = re.compile(
    r"(Embedding|Embed|Bidirectional|Reward|Classification)Model$|EmbeddingGemma"
    r"|For(Sequence|Token|Audio|Image|Video)Classification$"
    r"|For(MaskedLM|TextEncoding|RewardModel|RewardModeling|ProcessRewardModel|Retrieval|Ranking)$"
    r"|^(HF_|Ops)?Col[A-Z]|GeoSpatialMAE|Terratorch"
    r"|^((XLM)?Roberta|(Modern|Nomic)?Bert|ModernVBert|Ernie|Gte(New)?|CLIP|Siglip|Gemma2"
    r"|Gemma3Text|Llama|Mistral|Qwen2|Qwen2_5Omni|JinaEmbeddingsV5|LlamaNemotronVL)Model$"
)
"""Architectures that vLLM's registry has for embeddings, scores and classes."""
_SPEECH = re.compile(r"Whisper|ASR|Asr[A-Z]|Transcrib|FireRedLID|VoxtralRealtime")
_POOLING_NAME = re.compile(r"embedding|rerank")
_POOLING_FILES = frozenset(
    {"modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"}
)


class Use(Enum):
    """What a model answers with."""

    CHAT = "text"
    POOLING = "embeddings, scores or classes"
    SPEECH = "what was said in a recording"


@dataclass(frozen=True, slots=True)
class NewModel:
    """A model by what its owner publishes of it, strange as that may be."""

    weights: Weights
    published: PublishedConfig

    @property
    def name(self) -> str:
        return short_name(self.weights.known_as)

    @property
    def architectures(self) -> list[str]:
        named = self.published.config.get("architectures")
        found = named[:MOST_ARCHITECTURES] if isinstance(named, list) else []
        return [str(item) for item in found]

    def told(self) -> str:
        """Return its architectures as a note may say them."""
        names = self.architectures
        if names:
            more = ", ..." if names[SHOWN_ARCHITECTURES:] else ""
            return ", ".join(map(shown, names[:SHOWN_ARCHITECTURES])) + more
        kind = self.published.config.get("model_type")
        return f"a {shown(kind)} model" if kind else "config.json names no architecture"

    def family(self) -> Family | None:
        return family_among(self.name, self.architectures)

    def has_own_code(self) -> bool:
        return bool(self.published.config.get("auto_map"))

    def use(self) -> Use:
        if any(map(_POOLING.search, self.architectures)):
            return Use.POOLING
        if any(map(_SPEECH.search, self.architectures)):
            return Use.SPEECH
        is_named = _POOLING_NAME.search(self.name.lower()) is not None
        is_packed = not _POOLING_FILES.isdisjoint(self.published.files)
        return Use.POOLING if is_named or is_packed else Use.CHAT

    def own_context(self) -> int:
        """Return the longest request in tokens that the configuration allows; 0 where it is silent.

        vLLM reads the language model's own part where there is one.
        """
        config = self.published.config
        text = config.get("text_config")
        parts = (text if isinstance(text, dict) else {}, config)
        return next((min(found) for part in parts if (found := list(_contexts(part)))), 0)


def _contexts(part: Mapping[str, Any]) -> Iterator[int]:
    for key in CONTEXT_KEYS:
        value = part.get(key)
        if type(value) is int and 0 < value < CONTEXT_LIMIT:
            yield value
