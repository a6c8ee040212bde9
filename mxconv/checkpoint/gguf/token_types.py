"""The kinds of tokens of a GGUF vocabulary, and what SentencePiece writes for a space."""

from enum import IntEnum

SPACE = "▁"
NO_MERGE_SCORE = -1e6  # below every rank: of tokens that no merge makes


class TokenType(IntEnum):
    """As llama.cpp numbers them (`llama_token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6
