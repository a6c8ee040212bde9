"""Texts as windows: every token in order, and every corpus that is none."""

import json
from pathlib import Path

import numpy as np
import pytest
from trained_levels import TRAINED

from mxconv.errors import ModelError, MxconvError
from mxconv.text.tokenizer import Tokenizer
from mxconv.train.windows import text_windows, written_windows

TEXT = "def read(self):\n    return self.items\n" * 20


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TRAINED)


def test_windows_are_the_documents_one_behind_another(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": TEXT}) + "\n" + json.dumps({"prompt": "x = 1"}) + "\n")
    reported: list[tuple[str, int, int]] = []
    files = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    windows = text_windows(files, tokenizer, 16, lambda *step: reported.append(step))
    ids = [*tokenizer.encode(TEXT), *tokenizer.encode(TEXT), *tokenizer.encode("x = 1")]
    assert windows.token_ids.ravel().tolist() == ids[: len(ids) // 16 * 16]
    assert (windows.length, windows.num_prompt_tokens) == (16, 0)
    total = sum(path.stat().st_size for path in files)
    assert reported[-1] == ("read texts", total, total)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "corpus.txt: 0 tokens; a window of 16 at least is required. Give more text."),
        (b"x = 1\n", "tokens; a window of 16 at least"),
        (b"\x7fELF\xff\xfe", "corpus.txt: byte 4 is no UTF-8"),
    ],
)
def test_corpora_that_are_refused(content: bytes, message: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_bytes(content)
    with pytest.raises(ModelError, match=message):
        text_windows([tmp_path / "corpus.txt"], tokenizer, 16)
    with pytest.raises(MxconvError, match=r"nowhere\.txt"):
        text_windows([tmp_path / "nowhere.txt"], tokenizer, 16)


def test_what_the_target_wrote_is_read_as_it_is(tmp_path: Path) -> None:
    rows = [[1, 2, 3, 4], [5, 6, 7, 8]]
    lines = [json.dumps({"token_ids": row, "num_prompt_tokens": 2, "text": "..."}) for row in rows]
    (tmp_path / "own.jsonl").write_text("\n".join(lines) + "\n")
    windows = written_windows(tmp_path / "own.jsonl", 9)
    np.testing.assert_array_equal(windows.token_ids, rows)
    assert windows.num_prompt_tokens == 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"token_ids": [1, 9], "num_prompt_tokens": 1}], "line 1: no `token_ids` below 9"),
        ([{"token_ids": [1, -1], "num_prompt_tokens": 1}], "line 1: no `token_ids` below 9"),
        ([{"token_ids": [1, True], "num_prompt_tokens": 1}], "line 1: no `token_ids` below 9"),
        ([{"token_ids": [1, 2], "num_prompt_tokens": 2}], "a shorter `num_prompt_tokens`"),
        ([{"text": "a text"}], "what `mxconv train generate` writes for this target is required"),
        (
            [{"token_ids": [1, 2], "num_prompt_tokens": 1}, {"token_ids": [1], "num_prompt_tokens": 0}],
            "2 lines of diff",
        ),
        ([], "0 lines of different lengths, or none; alike ones are required"),
    ],
)
def test_other_files_are_refused(lines: list[dict[str, object]], message: str, tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ModelError, match=message):
        written_windows(tmp_path / "own.jsonl", 9)
