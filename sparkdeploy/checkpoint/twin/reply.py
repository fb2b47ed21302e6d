"""What a served twin must answer, known without an engine."""

from sparkdeploy.checkpoint.twin.grammar import Grammar
from sparkdeploy.checkpoint.twin.shape import TwinShape
from sparkdeploy.checkpoint.twin.tokenizer import TwinTokenizer


def expected_reply(shape: TwinShape, *, seed: int, token_count: int) -> str:
    """The first tokens of the greedy reply to any chat, thinking included.

    The grammar looks at two tokens, and every chat prompt ends with the same two: `<think>` and a
    line break. Treatments and speculation may not change a letter of this text.
    """
    tokenizer = TwinTokenizer(shape.vocab)
    text = Grammar(shape, seed, tokenizer.printed_ids)
    tokens = [tokenizer.token_id("<think>"), tokenizer.newline_id]
    for _ in range(token_count):
        tokens.append(text.next_token(tokens[-2], tokens[-1]))
    return tokenizer.decode(tokens[2:])
