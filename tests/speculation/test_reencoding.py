"""Texts in a draft's tokens, as they grow."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import KINDS, texts, tokenizer

from mxconv.speculation.through_text import LONGEST_TAIL, Reencoding
from mxconv.text.tokenizer import Tokenizer

STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside in the sun.\n"


@pytest.fixture(scope="module", params=KINDS)
def one(request: pytest.FixtureRequest) -> Tokenizer:
    found = tokenizer(request.param)
    if found is None:
        pytest.skip("MXCONV_TEST_MODELS is not set")
    return found


def test_a_story_has_the_tokens_that_it_has_as_a_whole(one: Tokenizer) -> None:
    reencoding = Reencoding(one)
    text = STORY * 60
    assert len(text) > 3 * LONGEST_TAIL
    for end in [*range(0, len(text), 149), len(text), 700, 2000]:
        assert reencoding.encode(text[:end]) == one.encode(text[:end])


@settings(max_examples=20, deadline=None)
@given(st.lists(texts(), max_size=5))
def test_any_text_keeps_every_character(one: Tokenizer, pieces: list[str]) -> None:
    reencoding = Reencoding(one)
    text = ""
    for piece in pieces:
        text += piece * 40
        assert one.decode(reencoding.encode(text)) == one.decode(one.encode(text))


def test_only_the_end_of_a_long_text_is_encoded_again(one: Tokenizer) -> None:
    lengths = []

    class Counting(Tokenizer):
        def encode_from(self, text: str, begin: int) -> list[int]:
            lengths.append(len(text))
            return super().encode_from(text, begin)

    reencoding = Reencoding(Counting(one._backend, None, frozenset(), "counting"))
    for end in range(0, 10_000, 50):
        reencoding.encode((STORY * 200)[:end])
    assert max(lengths) < 2 * LONGEST_TAIL


@pytest.mark.parametrize("limit", [1, 2, 30, 100])
@pytest.mark.parametrize("text", [STORY * 5, "a" * 300, " " * 300])
def test_a_text_that_is_too_long_loses_its_beginning(one: Tokenizer, limit: int, text: str) -> None:
    reencoding = Reencoding(one, limit)
    first = one.encode("")
    begins = set()
    for end in range(len(text) + 1):
        tokens = reencoding.encode(text[:end])
        assert len(tokens) <= max(limit, len(first))
        assert tokens[: len(first)] == first
        begins.add(reencoding._omitted)
    if limit == 100 and text == STORY * 5:
        assert one.decode(one.encode(text)).endswith(one.decode(tokens))
        assert len(begins) < 12  # not with every token, or a cache would be of no use
    assert reencoding.encode(text[:3]) == one.encode(text[:3]) or limit <= 2
