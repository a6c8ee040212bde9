"""Texts read in pieces."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mxconv.errors import MxconvError
from mxconv.text import texts
from mxconv.text.texts import DocumentPiece, read_pieces


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.sampled_from("ab\n \r\u00e9\u20ac\U0001f600"), max_size=60), st.integers(1, 9))
def test_pieces_are_the_file_cut_behind_line_ends(tmp_path: Path, text: str, piece_bytes: int) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    done: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "PIECE_BYTES", piece_bytes)
        pieces = list(read_pieces(path, done.append))
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.begins_document for piece in pieces] == [True, False, False][: len(pieces)] + [False] * (
        len(pieces) - 3
    )
    assert sum(done) == len(text.encode())
    for piece in pieces[:-1]:
        assert piece.text.endswith("\n") or len(piece.text) >= piece_bytes
    assert all(len(piece.text) <= 2 * piece_bytes for piece in pieces)


def test_every_line_of_jsonl_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    members = [{"text": "a\nb", "prompt": "a"}, {"prompt": "c", "id": 1}, {"text": ""}]
    path.write_text("\n".join(json.dumps(line) for line in members) + "\n\n")
    done: list[int] = []
    assert list(read_pieces(path, done.append)) == [
        DocumentPiece("a\nb", True),
        DocumentPiece("c", True),
        DocumentPiece("", True),
    ]
    assert sum(done) == path.stat().st_size


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.txt",
            b"abc\n\xff",
            "byte 4 is no UTF-8 (invalid start byte); text in UTF-8 is required. Convert the file.",
        ),
        ("a.txt", b"abcd\n\xe2\x82", "byte 5 is no UTF-8 (unexpected end of data); text in UTF-8 is required."),
        ("a.txt", b"abcd\n\xe2\x82x", "byte 5 is no UTF-8 (invalid continuation byte); text in UTF-8 is required."),
        ("a.jsonl", b'{"text": "a"}\n{"text": 1}', "line 2: no `text` and no `prompt` in it; one that is text is"),
        ("a.jsonl", b"\n[]", "line 2: a JSON list is at the top; a JSON object is required."),
        ("a.jsonl", b'{"text": "' + b"x" * 60 + b'"}', "line 1: more than 50 bytes; at most so many are read. Split"),
    ],
)
def test_files_that_hold_no_text_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, message: str
) -> None:
    monkeypatch.setattr(texts, "MAX_LINE_BYTES", 50)
    path = tmp_path / name
    path.write_bytes(content)
    for piece_bytes in (1, 3, 1000):
        monkeypatch.setattr(texts, "PIECE_BYTES", piece_bytes)
        with pytest.raises(MxconvError) as caught:
            list(read_pieces(path, lambda num_bytes: None))
        assert str(caught.value).startswith(f"{path}: {message}")
