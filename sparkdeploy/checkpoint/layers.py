"""A model's layers as memory and speed see them: what each keeps of a request, and what it reads.

Widths and counts are elements; every class holds one layer's sizes before any rank divides them.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

STATE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
INDEXER_SCALE_ELEMENTS: Final = 128
"""One FP32 scale stands for so many FP8 keys of an indexer (vLLM's mla/indexer.py)."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Keys and values of every token, or of those in reach."""

    query_heads: int
    kv_heads: int
    key_width: int
    value_width: int
    window: int | None = None
    """Tokens of a sliding window; None for the whole context."""
    chunk: int | None = None

    @property
    def grows(self) -> bool:
        """Whether what it keeps grows with the whole context."""
        return self.window is None and self.chunk is None


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: one vector a token for all heads, whole on every rank."""

    query_heads: int
    rank: int
    rope_width: int
    head_width: int
    """Of a head's keys and values as the compressed vector is unfolded."""
    indexer_width: int = 0
    """Of the keys by which a sparse layer chooses tokens; 0 where it has no indexer."""
    chosen_tokens: int = 0
    """What a sparse layer reads of a context, at most."""
    grows: ClassVar = True

    @property
    def width(self) -> int:
        return self.rank + self.rope_width

    @property
    def indexer_bytes(self) -> int:
        """Return a token's bytes: FP8 keys and their FP32 scales, whatever the cache's format."""
        return self.indexer_width + 4 * -(-self.indexer_width // INDEXER_SCALE_ELEMENTS)


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A state of fixed size a request: a window of a convolution, and a memory for each head."""

    name: str
    heads: int
    """Divided over ranks; so is what goes with them."""
    head_elements: int
    channels: int
    """Convolved channels that go with the heads."""
    window_tokens: int
    """Tokens that the convolution remembers: its kernel less one."""
    memory_bytes: int
    """Of one element of the memory; the window's have two."""
    groups: int = 0
    group_channels: int = 0
    """Convolved channels of one group; a rank has whole groups."""
    window_follows_drafts: bool = True
    checkpoints_since: tuple[int, int, int] | None = None
    """The release from which prefix caching holds one state more, within a prefill."""
    grows: ClassVar = False

    def state_bytes(self, *, ranks: int, draft_tokens: int, memory_bytes: int | None = None) -> int:
        """Return what one request keeps of it on one of `ranks`, of elements of `memory_bytes`."""
        groups = self.groups if self.groups % ranks == 0 else self.groups + ranks - self.groups
        channels = (self.channels + groups * self.group_channels) // ranks
        tokens = self.window_tokens + (draft_tokens if self.window_follows_drafts else 0)
        memory = self.heads // ranks * self.head_elements * (memory_bytes or self.memory_bytes)
        return tokens * channels * 2 + memory


Mixer = Attention | Latent | Recurrent


@dataclass(frozen=True, slots=True)
class Experts:
    count: int
    chosen: int
    width: int


@dataclass(frozen=True, slots=True)
class Layer:
    mixers: tuple[Mixer, ...]
    """One, two where a layer has attention and a state side by side, none for a lone MLP."""
    experts: Experts | None = None
    borrows_cache: bool = False
    """Whether its attention reads the cache of an earlier layer and keeps none."""

    @property
    def kept(self) -> tuple[Mixer, ...]:
        return () if self.borrows_cache else self.mixers


@dataclass(frozen=True, slots=True)
class Architecture:
    model_type: str
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    layers: tuple[Layer, ...]
    dense_width: int = 0
    """Of the inner projection of a feed-forward without experts; 0 where nobody says."""
    draft_layers: tuple[Layer, ...] = ()
    """Multi-token prediction: layers of the checkpoint that only draft."""
    ties_embeddings: bool = False
    keeps_cache: bool = True
    """False for encoders, which read a text at once and keep nothing of it."""

    @property
    def experts(self) -> Experts | None:
        """Return those of the first layer that has any; all layers have alike ones."""
        return next((layer.experts for layer in self.layers if layer.experts is not None), None)

    @property
    def attention_layers(self) -> int:
        return sum(mixer.grows for layer in self.layers for mixer in layer.kept)

    @property
    def recurrent(self) -> Recurrent | None:
        mixers = (mixer for layer in self.layers for mixer in layer.mixers)
        return next((mixer for mixer in mixers if isinstance(mixer, Recurrent)), None)
