"""A byte-level BPE tokenizer with Qwen's special tokens, made from nothing but rules."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product

END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"

_CONTROL_TOKENS = (
    END_OF_TEXT,
    *("<|im_start|>", END_OF_TURN, "<|object_ref_start|>", "<|object_ref_end|>"),
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
"""How byte-level BPE writes a space."""

CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type in ('image', 'image_url') %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif part.type in ('video', 'video_url') %}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""


@dataclass(frozen=True)
class TwinTokenizer:
    """The vocabulary of exactly `vocab` tokens: bytes, then merges, then special tokens."""

    vocab: int

    def token_id(self, token: str) -> int:
        return self._ids[token]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids, special ones included."""
        known = {number: token for token, number in self._ids.items()}
        signs = {sign: byte for byte, sign in enumerate(_BYTE_SIGNS)}
        content = b"".join(
            token.encode() if token in _SPECIAL_TOKENS else bytes(signs[sign] for sign in token)
            for token in map(known.__getitem__, tokens)
        )
        return content.decode("utf-8", errors="replace")

    @property
    def newline_id(self) -> int:
        """The token that ends a chat prompt."""
        return self._ids[_BYTE_SIGNS[ord("\n")]]

    @cached_property
    def printed_ids(self) -> frozenset[int]:
        """Tokens that read as plain text: letters, words and single printable characters."""
        printable = set(range(ord(" "), ord("~") + 1)) - set(b'"\\<>|{}')
        merges = range(256, 256 + len(self._merges))
        return frozenset({*(self._ids[_BYTE_SIGNS[byte]] for byte in printable), *merges})

    def tokenizer_json(self) -> dict[str, object]:
        """What the tokenizers library reads."""
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": self._ids[token], "content": token, **_added_token(token)}
                for token in _SPECIAL_TOKENS
            ],
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {**byte_level, "use_regex": True},
            "post_processor": None,
            "decoder": {**byte_level, "use_regex": False},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": self._model_vocabulary,
                "merges": [list(pair) for pair in self._merges],
            },
        }

    def tokenizer_config_json(self) -> dict[str, object]:
        """What transformers reads besides."""
        return {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": {
                str(self._ids[token]): {"content": token, **_added_token(token)}
                for token in _SPECIAL_TOKENS
            },
            "additional_special_tokens": list(_CONTROL_TOKENS[1:]),
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": END_OF_TURN,
            "errors": "replace",
            "model_max_length": 262144,
            "pad_token": END_OF_TEXT,
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
            "chat_template": CHAT_TEMPLATE,
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
        special = enumerate(_SPECIAL_TOKENS, start=len(self._model_vocabulary))
        return self._model_vocabulary | {token: number for number, token in special}


def _added_token(token: str) -> dict[str, bool]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {**plain, "special": token in _CONTROL_TOKENS}


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
