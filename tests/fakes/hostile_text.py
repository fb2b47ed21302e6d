"""Text that commands a terminal, and how to see that none of it is left."""

import unicodedata

HOSTILE = "\x1b]0;gone\x07\x1b[2J\x1b[31mred\x1b[0m \x9b2J \x7f\b \u202egnp.exe\u2066 \udc9b end"


def commands_in(text: str) -> set[str]:
    """What a terminal may obey: by Unicode's own categories, and what turns the direction."""
    return {
        letter
        for letter in text
        if (unicodedata.category(letter) in {"Cc", "Cs", "Zl", "Zp"} and letter not in "\n\t")
        or unicodedata.bidirectional(letter) in {"LRE", "RLE", "LRO", "RLO", "PDF"}
        or unicodedata.bidirectional(letter) in {"LRI", "RLI", "FSI", "PDI"}
        or letter in "\u200e\u200f\u061c"
    }
