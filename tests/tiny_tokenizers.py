"""Tokenizers of the kinds that models have, small ones built here and those of trained models."""

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from mxconv.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[1]
SHARED_MODELS = os.environ.get("MXCONV_TEST_MODELS")

SENTENCES = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the sunshine.",
    "def read(path):\n    with open(path) as file:\n        return file.read()\n",
    "naïve café, 日本語 and 🙂🙂 emoji;  two spaces\tand a tab.",
)
SPECIAL = ["<unk>", "<s>", "</s>"]

KINDS = ("pylib", "byte-level", "sentencepiece", "characters", "tok512", "babyllama105")


@cache
def tokenizer(kind: str) -> Tokenizer | None:
    """The tokenizer of one of KINDS; None where MXCONV_TEST_MODELS names no trained models."""
    match kind:
        case "pylib":
            return Tokenizer.from_folder(ROOT / "examples" / "models" / "pylib-1.5m")
        case "tok512" | "babyllama105":
            if SHARED_MODELS is None:
                return None
            name = "stories260K-bf16" if kind == "tok512" else "babyllama105-bf16"
            return Tokenizer.from_folder(Path(SHARED_MODELS) / name)
        case "byte-level":
            return Tokenizer(_byte_level(), None, frozenset([2]), kind)
        case "sentencepiece":
            return Tokenizer(_sentencepiece(), 1, frozenset([2]), kind)
        case "characters":
            return Tokenizer(_characters(), 1, frozenset([2]), kind)
    raise ValueError(kind)


def texts() -> st.SearchStrategy[str]:
    """Words, runs of whitespace, the names of special tokens, emoji of several code points, combining characters."""
    pieces = st.sampled_from(
        [*"aeh.,\"'\n\t ", " the", "Once", "  ", "    ", "\r\n", "<s>", "</s>", "<unk>", "<0x41>", "<|endoftext|>"]
    ) | st.sampled_from(
        [
            "é",
            "e\u0301",
            "\u0301",
            "ﬁ",
            "日本",
            "🙂",
            "👩\u200d👧",
            "🇫🇷",
            "\ufffd",
            "\u00a0",
            "\u2028",
            "▁",
            "Ġ",
            "\x00",
        ]
    )
    parts = pieces | st.text(max_size=4) | st.sampled_from(SENTENCES).flatmap(_slices)
    return st.lists(parts, max_size=8).map("".join)


def token_lists(tokenizer: Tokenizer, max_size: int = 40) -> st.SearchStrategy[list[int]]:
    """What a model may say: encoded texts, any tokens at all, ids without a token."""
    noise = st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=6)
    pieces = texts().map(lambda text: tokenizer.encode(text, add_special_tokens=False)) | noise
    return st.lists(pieces, max_size=5).map(lambda parts: [token for part in parts for token in part][:max_size])


def _slices(sentence: str) -> st.SearchStrategy[str]:
    places = st.integers(0, len(sentence))
    return st.tuples(places, places).map(lambda ends: sentence[min(ends) : max(ends)])


def _byte_level() -> Backend:
    """As GPT-2 has it, and with its post-processor, which trims offsets and adds no special token."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(_corpus(), trainer)
    return backend


def _sentencepiece() -> Backend:
    """As Llama 2 has it: a space before the text, bytes for unknown characters; and NFC, as Qwen has it."""
    trained = Backend(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # or it learns whole sentences
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=[], show_progress=False, limit_alphabet=40)
    trained.train_from_iterator(_corpus(), trainer)
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    learned = sorted(trained.get_vocab(with_added_tokens=False), key=trained.token_to_id)
    vocabulary = {name: index for index, name in enumerate([*names, *learned])}
    merges = [tuple(merge) for merge in json.loads(trained.to_str())["model"]["merges"]]
    backend = Backend(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), trained.normalizer])
    return _with_marks(backend)


def _characters() -> Backend:
    """A token a character, and one for all others."""
    vocabulary = {name: index for index, name in enumerate([*SPECIAL, "▁", *"abcdefghijklmnopqrstuvwxyzOSL.,\n"])}
    backend = Backend(models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _with_marks(backend)


def _with_marks(backend: Backend) -> Backend:
    """Special tokens, <s> in front, and the decoder of Llama 2."""
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def _corpus() -> Iterator[str]:
    return iter(SENTENCES * 3)
