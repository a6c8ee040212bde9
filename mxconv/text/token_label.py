"""What single tokens look like to a reader."""

from mxconv.text.tokenizer import Tokenizer
from mxconv.text.transcript import REPLACEMENT


def token_label(tokenizer: Tokenizer, before: int | None, token: int) -> str:
    """What a token adds to a text behind another, for people to look at.

    Decoders drop the space in front of a text's first word, so a token is decoded together with the one before.
    Special tokens have their names; of a character's bytes, one each has its name, `<0xE2>`, where the vocabulary has
    one, and U+FFFD elsewhere. Labels joined together are therefore not always the text.

    Args:
        tokenizer: decodes.
        before: the token before; None at the beginning of a text.
        token: any number; one that is no token has no label.
    """
    if tokenizer.is_byte(token):
        return tokenizer.name_of(token)
    first = [] if before is None else [before]
    start, whole = (tokenizer.decode(tokens, skip_special_tokens=False) for tokens in (first, [*first, token]))
    if not whole.startswith(start) or start.endswith(REPLACEMENT):
        return tokenizer.decode([token], skip_special_tokens=False)
    return whole[len(start) :]
