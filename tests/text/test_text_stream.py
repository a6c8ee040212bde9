"""Streams of text against `decode` of everything, and labels of tokens: what they add to a text."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import KINDS, token_lists, tokenizer

from mxconv.text.text_stream import REPLACEMENT, TextStream, Transcript, token_label
from mxconv.text.tokenizer import Tokenizer


@pytest.fixture(scope="module", params=KINDS)
def one(request: pytest.FixtureRequest) -> Tokenizer:
    found = tokenizer(request.param)
    if found is None:
        pytest.skip("MXCONV_TEST_MODELS is not set")
    return found


def stopped_by_hand(decoder: Tokenizer, tokens: list[int], stops: list[str]) -> tuple[str, int]:
    """The text and the number of tokens used: whole texts are decoded and searched for every token."""
    for num_used in range(1, len(tokens) + 1):
        text = decoder.decode(tokens[:num_used])
        if num_used < len(tokens):
            text = text.rstrip(REPLACEMENT)
        ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
        if ends:
            return text[: min(ends)[1]], num_used
    return decoder.decode(tokens), len(tokens)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_pieces_together_are_the_decoded_text_up_to_a_stop_string(one: Tokenizer, data: st.DataObject) -> None:
    tokens = data.draw(token_lists(one))
    text = one.decode(tokens)
    places = st.integers(0, len(text))
    cuts = st.tuples(places, st.integers(1, 6)).map(lambda cut: text[cut[0] : cut[0] + cut[1]])
    stops = data.draw(st.lists((cuts | st.sampled_from(["\n\n", "the", "a a"])).filter(bool), max_size=3))
    if any(REPLACEMENT in stop for stop in stops):
        stops = []  # these could be found before their bytes are complete
    stream = TextStream(one, stops)
    pieces = []
    num_used = 0
    for token in tokens:
        pieces.append(stream.feed(token))
        num_used += 1
        assert text.startswith("".join(pieces))
        if stream.stopped:
            break
    pieces.append(stream.finish())
    assert ("".join(pieces), num_used) == stopped_by_hand(one, tokens, stops)
    assert stream.finish() == "" or not stream.stopped
    if stream.stopped:
        assert stream.feed(5) == ""


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_a_character_comes_when_its_bytes_are_complete_and_certain(kind: str) -> None:
    one = tokenizer(kind)
    assert one is not None
    tokens = one.encode("a👧b", add_special_tokens=False)
    stream = TextStream(one)
    pieces = [stream.feed(token) for token in tokens]
    assert "".join(pieces) == "a👧b"
    assert not any(REPLACEMENT in piece for piece in pieces)
    assert pieces.index("b" if kind == "byte-level" else "👧b") == len(pieces) - 1


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_none() -> None:
    one = tokenizer("characters")
    assert one is not None
    stream = TextStream(one, ["stop", "ton"])
    pieces = [stream.feed(token) for token in one.encode("a sto sto", add_special_tokens=False)]
    assert pieces == ["", "a", " ", "", "", "", "sto ", "", "", ""]
    assert stream.stop_string is None
    assert stream.feed(one.encode("n", add_special_tokens=False)[-1]) == "s"
    assert stream.stopped and stream.stop_string == "ton"
    assert stream.finish() == ""


def test_a_newline_made_of_bytes_stops_at_once() -> None:
    one = tokenizer("sentencepiece")
    assert one is not None
    stream = TextStream(one, ["\n\n"])
    first, newline = one.encode("a", add_special_tokens=False)[-1], 3 + 0x0A
    pieces = []
    for token in (first, newline, newline):
        assert not stream.stopped
        pieces.append(stream.feed(token))
    assert stream.stopped
    assert "".join(pieces) == "a"


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_transcript_follows_whatever_is_appended_and_taken_back(one: Tokenizer, data: st.DataObject) -> None:
    transcript = Transcript(one)
    for _ in range(data.draw(st.integers(1, 6))):
        kept = data.draw(st.integers(0, len(transcript.tokens)))
        tokens = transcript.tokens[:kept] + data.draw(token_lists(one, 12))
        certain = transcript.text[: transcript.num_certain] if kept == len(transcript.tokens) else ""
        transcript.align(tokens)
        assert transcript.tokens == tokens
        assert transcript.text == one.decode(tokens)
        assert transcript.text.startswith(certain)


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
