from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama, write_tiny_tokenizer
from ngram_tables import write_table
from packages import quantize

from mxconv.checkpoint.regular_file import sha256_file
from mxconv.errors import MxconvError
from mxconv.verify import verify


def test_a_draft_travels_in_a_folder_of_its_own_and_is_verified_with_the_rest(tmp_path: Path) -> None:
    target = write_tiny_llama(tmp_path / "m")
    small = write_tiny_llama(tmp_path / "small", hidden_size=32, seed=1, num_shards=2)
    quantize(write_tiny_llama(tmp_path / "mini", hidden_size=16), tmp_path / "packed", codec="bsfp")
    manifest = quantize(
        target,
        tmp_path / "p",
        drafts=(f"checkpoint:{small},num_draft_tokens=3", f"package:{tmp_path / 'packed'},confidence=0.5"),
    )
    records = [(r.kind, r.codec, r.level, r.num_draft_tokens, r.confidence) for r in manifest.levels[2:]]
    assert records == [("model", "bf16", None, 3, 0.4), ("model", "package", "bsfp", 8, 0.5)]
    assert {path.name for path in (tmp_path / "p/drafts/1-small").iterdir()} == {p.name for p in small.iterdir()}
    assert verify(tmp_path / "p/drafts/2-packed").lossless
    assert verify(tmp_path / "p").ok
    (tmp_path / "p/drafts/1-small/generation_config.json").write_bytes(b"{" + b" " * 36 + b"}")
    assert verify(tmp_path / "p").damaged_files == ["drafts/1-small/generation_config.json"]


def error_of(folder: Path, *drafts: str) -> str:
    with pytest.raises(MxconvError) as caught:
        quantize(folder, folder.with_name("p"), drafts=drafts)
    assert not folder.with_name("p.partial").exists()
    return str(caught.value)


def model_with(folder: Path, vocab_size: int, num_tokens: int | None = None) -> Path:
    """A model whose matrices have more rows, or fewer, than it has tokens."""
    write_tiny_llama(folder, vocab_size=vocab_size)
    write_tiny_tokenizer(folder / "tokenizer.json", num_tokens or vocab_size)
    return folder


def test_a_draft_may_be_padded_to_another_size(tmp_path: Path) -> None:
    target, draft = model_with(tmp_path / "m", 96, 90), model_with(tmp_path / "d", 112, 90)
    for one, other in ((target, draft), (draft, target)):
        manifest = quantize(one, one.with_name(f"{one.name}-package"), drafts=(f"checkpoint:{other}",))
        assert manifest.levels[2].shares == ["tokenizer"]
        assert manifest.levels[2].confidence == 0.4


def test_a_token_without_a_row_is_refused(tmp_path: Path) -> None:
    target, draft = model_with(tmp_path / "m", 96), model_with(tmp_path / "d", 90, 96)
    for one, other in ((target, draft), (draft, target)):
        assert error_of(one, f"checkpoint:{other}") == (
            f"--draft {other}: {draft} has tokens up to 95 and vocab_size 90; a row for each token is required. "
            "Choose another model."
        )


def test_a_draft_may_have_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    target, draft = write_tiny_llama(tmp_path / "m"), write_tiny_llama(tmp_path / "d", vocab_size=64)
    level = quantize(target, tmp_path / "p", drafts=(f"checkpoint:{draft}",)).levels[2]
    assert (level.shares, level.confidence) == ([], 0.65)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """An n-gram table in the tokens of `write_tiny_llama`."""
    write_tiny_llama(tmp_path / "like")
    return write_table(tmp_path / "stories.safetensors", sha256_file(tmp_path / "like" / "tokenizer.json"))


def test_drafts_of_every_kind_become_levels(tmp_path: Path, table: Path) -> None:
    """A table below a model is in the tokens of that model."""
    target, small = write_tiny_llama(tmp_path / "m", vocab_size=90), write_tiny_llama(tmp_path / "small")
    specs = (
        "streaming:sink=2,window=9,cache=own",
        f"checkpoint:{small}",
        f"ngram:{table}",
        "prompt-lookup:min_ngram=2",
    )
    manifest = quantize(target, tmp_path / "p", drafts=specs)
    levels = manifest.levels[2:]
    assert [level.name for level in levels] == ["streaming", "small", "stories", "prompt-lookup"]
    assert [level.kind for level in levels] == ["streaming", "model", "ngram", "prompt-lookup"]
    assert (levels[0].sink, levels[0].window, levels[0].shares) == (2, 9, ["weights", "tokenizer"])
    assert levels[2].path == "drafts/3-stories/stories.safetensors"
    assert (tmp_path / "p" / levels[2].path).read_bytes() == table.read_bytes()
    assert (levels[3].min_ngram, levels[3].max_ngram) == (2, 3)
    assert verify(tmp_path / "p").ok


MODEL = "checkpoint:{d}"


def nothing(target: Path, draft: Path) -> None:
    """Leave both models as they are."""


@pytest.mark.parametrize(
    ("change", "drafts", "message"),
    [
        (lambda m, d: (d / "tokenizer.json").unlink(), MODEL, "--draft {d}: it has no tokenizer.json; both are"),
        (lambda m, d: (m / "tokenizer.json").unlink(), MODEL, "--draft {d}: {m} has no tokenizer.json; both are"),
        (lambda m, d: (d / "tokenizer.json").write_text("{"), MODEL, "{d}/tokenizer.json: no valid JSON in UTF-8"),
        (lambda m, d: (d / "config.json").write_text("{"), MODEL, "{d}/config.json: no valid JSON in UTF-8"),
        (lambda m, d: write_tiny_llama(d, dtype="F32"), MODEL, "--draft checkpoint:{d}: holds F32; BF16 or F16 saf"),
        (lambda m, d: quantize(m, m.with_name("q"), target="reference"), "package:{d}/../q", "q: references its"),
        (lambda m, d: write_table(d / "t", "0" * 64), "ngram:{d}/t", "{d}/t: its tokens are of a tokenizer.json"),
        (nothing, "checkpoint:{d}/model.safetensors", "no config.json; a folder with it and the weights is"),
        (nothing, "package:{d}/none", "{d}/none/mxconv.json: no such file;"),
        (nothing, "prompt-lookup streaming", "--draft prompt-lookup: a look-up, with streaming below it; only a model"),
    ],
)
def test_what_cannot_draft_is_refused(
    tmp_path: Path, change: Callable[[Path, Path], Any], drafts: str, message: str
) -> None:
    target, draft = write_tiny_llama(tmp_path / "m"), write_tiny_llama(tmp_path / "d")
    change(target, draft)
    found = error_of(target, *drafts.replace("{d}", str(draft)).split())
    assert message.replace("{d}", str(draft)).replace("{m}", str(target)) in found
