"""How many words make a prompt of so many tokens, learnt from what the server counts."""

from __future__ import annotations

from dataclasses import dataclass, field

SPARE_TOKENS = 32
"""A sentence more than was asked for still fits."""
PROBE_WORDS = (40, 140)


@dataclass(slots=True)
class Sizer:
    """Words and the prompt tokens they became; the more is learnt, the longer the better.

    Tokens grow linearly with the words of our filler, after a chat template's constant.
    """

    _known: dict[int, int] = field(default_factory=dict)

    def learn(self, words: int, prompt_tokens: int) -> None:
        """Take in one prompt that the server has counted."""
        self._known[words] = prompt_tokens

    def words_for(self, prompt_tokens: int) -> int:
        """Return the words of a prompt of nearly, and not more than, so many tokens.

        Needs two prompts of different length to have been learnt.
        """
        fewest, most = min(self._known), max(self._known)
        tokens_a_word = (self._known[most] - self._known[fewest]) / (most - fewest)
        room = prompt_tokens - SPARE_TOKENS - self._known[fewest]
        return max(fewest + int(room / max(tokens_a_word, 0.1)), 1)
