"""How many words make a prompt of so many tokens, learnt from what the server counts."""

from __future__ import annotations

from dataclasses import dataclass, field

SPARE_TOKENS = 32
SPARE_SHARE = 0.02
"""Words differ in tokens: over 200 prompts of 3K tokens, 0.7 % was the standard deviation with a
tokenizer of one to twelve characters a token, and must not carry a prompt over the model's end."""
PROBE_WORDS = (40, 140)
REACH = 3
"""How many times the longest known prompt may be foretold before a probe goes part of the way."""


@dataclass(slots=True)
class Sizer:
    """Words and the prompt tokens they became; the more is learnt, the longer the better.

    Tokens grow linearly with the words of our filler, after a chat template's constant.
    """

    _known: dict[int, int] = field(default_factory=dict)

    def learn(self, words: int, prompt_tokens: int) -> None:
        """Take in one prompt that the server has counted."""
        self._known[words] = prompt_tokens

    @property
    def can_foretell(self) -> bool:
        """Whether any length can be foretold, if not well."""
        return all(words in self._known for words in PROBE_WORDS)

    def probe_for(self, prompt_tokens: int) -> int | None:
        """Return the words of a prompt to learn first, None once this length can be foretold."""
        for words in PROBE_WORDS:
            if words not in self._known:
                return words
        reach_tokens = REACH * max(self._known.values())
        if prompt_tokens <= reach_tokens:
            return None
        words = self._words(reach_tokens)
        return words if words > max(self._known) else None

    def words_for(self, prompt_tokens: int) -> int:
        """Return the words of a prompt of nearly, and not more than, so many tokens.

        Needs every probe to have been learnt.
        """
        return self._words(prompt_tokens - SPARE_TOKENS - int(prompt_tokens * SPARE_SHARE))

    def _words(self, prompt_tokens: int) -> int:
        fewest, most = min(self._known), max(self._known)
        tokens_a_word = (self._known[most] - self._known[fewest]) / (most - fewest)
        room = prompt_tokens - self._known[fewest]
        return max(fewest + int(room / max(tokens_a_word, 0.1)), 1)
