"""Windows: every token in order, every corpus that is none; stages read each window once before any again."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from trained_levels import TRAINED

from mxconv.errors import ModelError, MxconvError
from mxconv.text.tokenizer import Tokenizer
from mxconv.train.windows import TrainingStage, Windows, frequent_tokens, stage_of, text_windows, written_windows

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


WINDOWS = Windows(np.arange(35, dtype=np.int32).reshape(7, 5))


def stage(name: str = "text", num_steps: int = 14, batch_size: int = 3) -> TrainingStage:
    return TrainingStage(name, WINDOWS, num_steps, batch_size, 1e-3, 1e-4)


def test_every_window_comes_once_before_any_comes_again() -> None:
    rows = np.concatenate([stage().rows(step, 5) for step in range(14)])
    firsts = (rows[:, 0] // 5).tolist()
    assert len(firsts) == 42
    for epoch in range(6):
        assert sorted(firsts[7 * epoch : 7 * epoch + 7]) == list(range(7))
    assert firsts[:7] != firsts[7:14]
    np.testing.assert_array_equal(stage().rows(9, 5), rows[27:30])
    assert (stage().rows(0, 6) != rows[:3]).any()


def test_a_batch_may_be_larger_than_the_corpus() -> None:
    rows = stage(batch_size=20).rows(0, 0)
    assert sorted(np.bincount(rows[:, 0] // 5, minlength=7).tolist()) == [2, 3, 3, 3, 3, 3, 3]


def test_the_rate_rises_for_a_twentieth_and_falls_along_a_cosine() -> None:
    long = stage(num_steps=100)
    rates = [long.learning_rate(step) for step in range(100)]
    assert rates[:5] == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 1e-3])
    assert max(rates) == pytest.approx(1e-3)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    middle = 5 + 95 / 2
    assert (rates[int(middle)] + rates[int(middle) + 1]) / 2 == pytest.approx(5.5e-4, rel=0.01)
    assert rates[-1] == pytest.approx(1e-4, rel=0.01)


def test_steps_of_all_stages() -> None:
    stages = [stage("text", 3), stage("own text", 2)]
    found = [(stage.name, place) for stage, place in (stage_of(stages, step) for step in range(5))]
    assert found == [*(("text", place) for place in range(3)), ("own text", 0), ("own text", 1)]
    with pytest.raises(IndexError):
        stage_of(stages, 5)
    assert stages[0].num_tokens == 3 * 3 * 5


NUM_TOKENS = 12
TOKENS = arrays(np.int32, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.integers(0, NUM_TOKENS - 1))


@given(st.lists(TOKENS, min_size=1, max_size=3), st.integers(1, NUM_TOKENS))
def test_they_are_the_first_of_all_sorted_by_count(texts: list[np.ndarray], count: int) -> None:
    ids = [token for text in texts for token in text.ravel().tolist()]
    by_count = sorted(range(NUM_TOKENS), key=lambda token: (-ids.count(token), token))
    found = frequent_tokens([Windows(text) for text in texts], count, NUM_TOKENS)
    assert found.tolist() == sorted(by_count[:count])
    assert found.dtype == np.int64
