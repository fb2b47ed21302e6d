"""A byte-level BPE tokenizer with Qwen's special tokens, made from nothing but rules."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product

_CONTROL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
# The parsers of tool calls and of reasoning look these up; decoding shows them.
_VISIBLE_TOKENS = (
    *("<tool_call>", "</tool_call>"),
    *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>"),
    *("<tool_response>", "</tool_response>", "<think>", "</think>"),
)
_SPECIAL_TOKENS = (*_CONTROL_TOKENS, *_VISIBLE_TOKENS)
_LETTERS = "etaoinshrdlucmfwygpbvkxqjz"
_SPACE = "\u0120"


@dataclass(frozen=True)
class TinyTokenizer:
    """The vocabulary of exactly `vocab` tokens: bytes, then merges, then special tokens."""

    vocab: int

    def token_id(self, token: str) -> int:
        return self._ids[token]

    @cached_property
    def printed_ids(self) -> frozenset[int]:
        """Tokens that read as plain text: letters, words and single printable characters."""
        printable = set(range(ord(" "), ord("~") + 1)) - set(b'"\\<>|{}')
        merges = range(256, 256 + len(self._merges))
        return frozenset({*(self._ids[_BYTE_SIGNS[byte]] for byte in printable), *merges})

    @property
    def special_ids(self) -> dict[str, int]:
        first = self.vocab - len(_SPECIAL_TOKENS)
        return {token: number for number, token in enumerate(_SPECIAL_TOKENS, start=first)}

    def facts(self) -> dict[str, object]:
        """What the files for the tokenizers library and for transformers have of it."""
        added = {number: _added_token(token) for token, number in self.special_ids.items()}
        return {
            "added_tokens": [{"id": number, **token} for number, token in added.items()],
            "added_tokens_decoder": {str(number): token for number, token in added.items()},
            "additional_special_tokens": list(_CONTROL_TOKENS[1:]),
            "vocabulary": self._model_vocabulary,
            "merges": [list(pair) for pair in self._merges],
        }

    @cached_property
    def _merges(self) -> tuple[tuple[str, str], ...]:
        return tuple(islice(_merge_pairs(), self.vocab - 256 - len(_SPECIAL_TOKENS)))

    @cached_property
    def _model_vocabulary(self) -> dict[str, int]:
        tokens = [*_BYTE_SIGNS, *(left + right for left, right in self._merges)]
        return {token: number for number, token in enumerate(tokens)}

    @cached_property
    def _ids(self) -> dict[str, int]:
        return self._model_vocabulary | self.special_ids


def _added_token(token: str) -> dict[str, object]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": token, **plain, "special": token in _CONTROL_TOKENS}


def _byte_signs() -> tuple[str, ...]:
    """GPT-2's one visible character for each byte: itself where it prints, else from U+0100 on."""
    printing = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printing else next(others)) for byte in range(256))


_BYTE_SIGNS = _byte_signs()


def _merge_pairs() -> Iterator[tuple[str, str]]:
    """Pairs without end: words of two signs, then three and so on, frequent letters first."""
    words = [_SPACE, *_LETTERS]
    while True:
        yield from product(words, _LETTERS)
        words = [word + letter for word, letter in product(words, _LETTERS)]
