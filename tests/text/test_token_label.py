"""Labels of tokens: what they add to a text, as `tokenizers` itself decodes the whole of it."""

import os
from pathlib import Path

import pytest

from mxconv.text.token_label import token_label
from mxconv.text.tokenizer import Tokenizer

PYLIB = Path(__file__).parents[2] / "examples" / "models" / "pylib-1.5m"


def test_labels_of_a_text_without_fragments_are_the_text() -> None:
    tokenizer = Tokenizer.from_folder(PYLIB)
    text = "def read_lines(path):\n    return [line for line in path.open()]\t# </script>\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    labels = [token_label(tokenizer, before, token) for before, token in zip([None, *ids], ids, strict=False)]
    assert "".join(labels) == text
    assert len(ids) > 10


def test_bytes_of_a_character_and_strangers_have_labels_too() -> None:
    tokenizer = Tokenizer.from_folder(PYLIB)
    first, *rest = tokenizer.encode("\N{SNOWMAN}", add_special_tokens=False)
    assert rest  # its bytes are several tokens
    assert token_label(tokenizer, None, first) == "\ufffd"
    assert token_label(tokenizer, first, rest[0])
    assert token_label(tokenizer, None, 10**6) == ""


@pytest.fixture
def sentencepiece() -> Tokenizer:
    models = os.environ.get("MXCONV_TEST_MODELS")
    if models is None:
        pytest.skip("MXCONV_TEST_MODELS is not set")
    return Tokenizer.from_folder(Path(models) / "stories260K-bf16")


def test_spaces_special_tokens_and_byte_tokens_of_sentencepiece_show(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("Once upon a time", add_special_tokens=False)
    labels = [token_label(sentencepiece, before, token) for before, token in zip([None, *ids], ids, strict=False)]
    assert "".join(labels) == "Once upon a time"
    ends = {token_label(sentencepiece, ids[-1], token).strip() for token in sentencepiece.eos_token_ids}
    assert "</s>" in ends
    byte = next(token for token in range(512) if sentencepiece.is_byte(token))
    assert token_label(sentencepiece, ids[-1], byte) == sentencepiece.name_of(byte)
    assert sentencepiece.name_of(byte).startswith("<0x")
