"""Exported files in llama.cpp: the same text, tokens, ends of texts and perplexity."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_tiny_llama
from gguf_models import write_model
from llama_cpp_oracle import LlamaCpp, with_f32_matrices
from packages import quantize
from sentence_pieces import write_llama
from tokenizers import Tokenizer as BackendTokenizer

from mxconv.arrays import F32
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.interop.gguf_export import export_gguf
from mxconv.package.manifest import QualityRecord
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.text.tokenizer import Tokenizer
from mxconv.verification.evaluation import evaluate
from mxconv.verification.scored_texts import windows

pytest.importorskip("llama_cpp", reason="make test builds llama-cpp-python")

NUM_NEW_TOKENS = 24
STORY_PROMPTS = [
    "Once upon a time", "One day, a little girl named Lily found a needle in her", "Tom and Jane are friends.",
    "The dog was big and", "Lily  had two  spaces.", '"Hello", said the bird.', "The sun", "He wanted to play",
    "Mom said no.", "It was a sunny day", "She saw a cat", "In the park,", "Ben likes to run", "The old man",
    "They went home", "A small boat", "Sara was sad", "The ball is red", "There was a frog", "At night",
]  # fmt: skip


EXAMPLES = Path(__file__).parents[2] / "examples"
SHARED_MODELS = os.environ.get("MXCONV_TEST_MODELS")


@pytest.fixture(scope="module")
def python_prompts() -> list[str]:
    lines = (EXAMPLES / "prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines[:20]]


@pytest.fixture(scope="module")
def pylib_mxfp4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model whose head is tied to the embeddings."""
    package = tmp_path_factory.mktemp("gguf") / "pylib"
    quantize(EXAMPLES / "models" / "pylib-1.5m", package)
    return package


@pytest.fixture(params=["stories260K-bf16", "babyllama105-bf16"])
def story_package(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Trained models with SentencePiece tokenizers; with bytes, and without."""
    if SHARED_MODELS is None:
        pytest.skip("MXCONV_TEST_MODELS names no folder of story models")
    quantize(Path(SHARED_MODELS) / request.param, tmp_path / "package")
    return tmp_path / "package"


@dataclass(frozen=True)
class Continued:
    """A prompt, and how we go on."""

    text: str
    prompt: list[int]
    new: list[int]

    @property
    def whole(self) -> list[int]:
        return [*self.prompt, *self.new]


@contextmanager
def llama(path: Path) -> Iterator[LlamaCpp]:
    loaded = LlamaCpp(path, 256)
    try:
        yield loaded
    finally:
        loaded.close()


def logits(loaded: LoadedPackage, level: int, ids: list[int]) -> F32:
    return loaded.levels[level].decoder.forward(ids, KVCache(loaded.config))


def continued(loaded: LoadedPackage, prompts: Iterable[str]) -> list[Continued]:
    """By the target, greedily."""
    tokenizer, found = loaded.tokenizer, []
    for prompt in prompts:
        ids = tokenizer.encode(prompt)
        new = Hierarchy(loaded.levels[:1]).generate(ids, NUM_NEW_TOKENS, tokenizer.eos_token_ids).token_ids
        found.append(Continued(prompt, ids, new))
    return found


def negative_log_likelihood(rows: F32, ids: list[int]) -> float:
    exact = rows[:-1].astype(np.float64)
    exact -= exact.max(axis=-1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    return float(-exact[np.arange(len(ids) - 1), ids[1:]].sum())


def check_target(loaded: LoadedPackage, file: Path, texts: list[Continued], limit: float) -> None:
    """Same tokens, same greedy text; where it parts, our two best logits lie closer than the two programs' logits.

    Both round activations to BF16 before they multiply, in different places: `limit` bounds what that does to a logit.
    """
    with llama(file) as theirs:
        num_equal, largest = 0, 0.0
        for ours in texts:
            found = theirs.greedy(ours.prompt, NUM_NEW_TOKENS, loaded.tokenizer.eos_token_ids)
            rows = logits(loaded, 0, ours.whole)
            difference = np.abs(rows - theirs.logits(ours.whole)).max(axis=-1)
            largest = max(largest, float(difference.max()))
            assert difference.max() < limit
            if found == ours.new:
                num_equal += 1
                continue
            place = next(i for i, pair in enumerate(zip(ours.new, found, strict=False)) if pair[0] != pair[1])
            at = len(ours.prompt) - 1 + place
            third, second, best = np.sort(rows[at])[-3:]
            margin = best - second
            print(f"parts at token {place}: margin {margin:.4f}, logits differ by up to {difference[at]:.4f}")
            assert margin < 2 * difference[at]
            assert third < second  # so that it was between these two
            assert rows[at][found[place]] == second
        print(f"{num_equal} of {len(texts)} texts equal, logits differ by up to {largest:.4f}")
        assert num_equal >= len(texts) - 4
        for ours in texts:
            assert theirs.tokenize(ours.text) == ours.prompt


def check_draft(loaded: LoadedPackage, file: Path, texts: list[Continued]) -> None:
    """Perplexity within 1% on prompts with the target's continuation."""
    with llama(file) as theirs:
        sums, num_tokens = np.zeros(2), 0
        for text in texts:
            sums += [
                negative_log_likelihood(rows, text.whole)
                for rows in (logits(loaded, 1, text.whole), theirs.logits(text.whole))
            ]
            num_tokens += len(text.whole) - 1
        ours, found = np.exp(sums / num_tokens)
        print(f"perplexity of the MXFP4 level over {num_tokens} tokens: ours {ours:.4f}, llama.cpp's {found:.4f}")
        assert 1.2 < ours < 20  # a model that predicts
        assert found == pytest.approx(ours, rel=0.01)


def export(package: Path, folder: Path) -> list[Path]:
    return [folder / name for name in export_gguf(package, folder).files]


def test_a_trained_byte_level_model_writes_the_same_text_and_is_as_perplexed(
    pylib_mxfp4: Path, python_prompts: list[str], tmp_path: Path
) -> None:
    target, draft = export(pylib_mxfp4, tmp_path / "pylib")
    assert (target.name, draft.name) == ("pylib-BF16.gguf", "pylib-MXFP4.gguf")
    with LoadedPackage(pylib_mxfp4, num_threads=1) as loaded:
        texts = continued(loaded, python_prompts)
        check_target(loaded, target, texts, 0.2)
        check_draft(loaded, draft, texts)


def test_trained_sentence_piece_models_write_the_same_text_and_are_as_perplexed(
    story_package: Path, tmp_path: Path
) -> None:
    target, draft = export(story_package, tmp_path / "story")
    # a vocabulary of letters alone makes llama.cpp end the process at anything else
    vocabulary = BackendTokenizer.from_file(str(story_package / "tokenizer.json")).get_vocab()
    prompts = [prompt for prompt in STORY_PROMPTS if set(prompt) - {" "} <= vocabulary.keys()]
    assert len(prompts) >= 18
    with LoadedPackage(story_package, num_threads=1) as loaded:
        texts = continued(loaded, prompts)
        check_target(loaded, target, texts, 0.3)
        check_draft(loaded, draft, texts)


def test_in_float32_text_is_ours_and_logits_are_up_to_summation(
    pylib_mxfp4: Path, python_prompts: list[str], tmp_path: Path
) -> None:
    target, _ = export(pylib_mxfp4, tmp_path / "pylib")
    exact = with_f32_matrices(target, tmp_path / "f32.gguf")
    with LoadedPackage(pylib_mxfp4, ["target"], kernel="numpy") as loaded, llama(exact) as theirs:
        largest, stops = 0.0, loaded.tokenizer.eos_token_ids
        for prompt in python_prompts[:10]:
            ids = loaded.tokenizer.encode(prompt)
            new = theirs.greedy(ids, NUM_NEW_TOKENS, stops)
            rows = logits(loaded, 0, [*ids, *new])
            # our greedy text is this one if each of its tokens is our choice
            assert rows[len(ids) - 1 : -1].argmax(axis=-1).tolist() == new
            largest = max(largest, float(np.abs(theirs.logits([*ids, *new]) - rows).max()))
        print(f"10 of 10 texts equal in float32, logits differ by up to {largest:.1e}")
        assert largest < 1e-4


CHATS = "{{ messages[0].content }}<|im_end|>"
# generation_config.json, tokenizer_config.json, and tokens that tokenizer.json lacks; what llama.cpp says of the rest
ENDS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "the tokenizer's alone": ({"eos_token_id": None}, {"eos_token": "<think>"}, ""),
    "and the tokenizer's": ({"eos_token_id": 0}, {"eos_token": "<|im_end|>"}, ""),
    "of chats": ({"eos_token_id": 0}, {"eos_token": "<|end|>", "chat_template": CHATS}, ""),
    "three, and names": ({"eos_token_id": [0, 1, 301]}, {"eos_token": "<|im_end|>", "chat_template": CHATS}, ""),
    "beyond the vocabulary": ({"eos_token_id": [0, 4000]}, {"eos_token": "<|end|>", "pad_token": "<pad>"}, ""),
    "beyond the embedding": (
        {"eos_token_id": 0},
        {"extra_special_tokens": [f"<{i}>" for i in range(30)]},
        "no row for <16>, <",
    ),
    "too many": ({"eos_token_id": [0, 1, 2, 3]}, {"eos_token": "<|im_end|>"}, "llama.cpp goes on after #, $."),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_text_ends_in_llama_cpp_where_it_ends_here(name: str, tmp_path: Path) -> None:
    generation, settings, note = ENDS[name]
    source = write_model(tmp_path / "source")
    declared = {"303": {"content": "<|im_end|>", "special": True}}
    (source / "generation_config.json").write_text(json.dumps({"bos_token_id": 300} | generation))
    (source / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": declared} | settings))
    quantize(source, tmp_path / "package")
    notes = export_gguf(tmp_path / "package", tmp_path / "a.gguf", level="target").notes
    assert note in " ".join(notes) and bool(note) == any("llama.cpp goes on" in n or "no row" in n for n in notes)
    ours = Tokenizer.from_folder(source)
    ends = set(ours.eos_token_ids) - ({2, 3} if name == "too many" else set())
    with llama(tmp_path / "a.gguf") as theirs:
        by_name = {301, 303}  # <|end|> and <|im_end|>, at which llama.cpp ends whatever the file says
        assert {token for token in range(320) if theirs.is_end(token)} == ends | by_name
        assert theirs.tokenize("a<|im_end|>", special=True) == ours.encode("a<|im_end|>")


CONTEXT = 48
NUM_WINDOWS = 6


def llama_log_probabilities(path: Path, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Of the second halves of windows: (num_tokens, vocab_size) logarithms, and the tokens that came.

    Each window begins with the token that the file puts before texts, in place of its own first token.
    """
    loaded = LlamaCpp(path, CONTEXT)
    try:
        tokens = loaded.tokenize(text)
        adds_bos = loaded.metadata["tokenizer.ggml.add_bos_token"] == "true"
        logits, came = [], []
        for number in range(NUM_WINDOWS):
            window = tokens[number * CONTEXT : (number + 1) * CONTEXT]
            first = [int(loaded.metadata["tokenizer.ggml.bos_token_id"])] if adds_bos else window[:1]
            logits.append(loaded.logits(first + window[1:])[CONTEXT // 2 : -1].astype(np.float64))
            came += window[CONTEXT // 2 + 1 :]
    finally:
        loaded.close()
    rows = np.concatenate(logits)
    return rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True), np.array(came)


def compare(package: Path, text: str, folder: Path) -> tuple[dict[str, float], QualityRecord, int]:
    """What llama.cpp and mxconv say of the draft, and how many tokens count."""
    (folder / "text.txt").write_text(text)
    made = {}
    for level in ("target", "draft"):
        export_gguf(package, folder / f"{level}.gguf", level=level)
        exact = with_f32_matrices(folder / f"{level}.gguf", folder / f"{level}-f32.gguf")
        made[level], came = llama_log_probabilities(exact, text)
    p, q = made["target"], made["draft"]
    theirs = {
        "perplexity": float(np.exp(-q[np.arange(len(came)), came].mean())),
        "mean_kl": float((np.exp(p) * (p - q)).sum(axis=-1).mean()),
        "agreement": float((p.argmax(axis=-1) == q.argmax(axis=-1)).mean()),
    }
    found = evaluate(
        package,
        lambda loaded: windows(loaded, folder / "text.txt", CONTEXT, NUM_WINDOWS * CONTEXT),
        activations="fp32",
        kernel="numpy",
    )
    assert found.num_texts == NUM_WINDOWS
    assert found.levels[0].perplexity == pytest.approx(float(np.exp(-p[np.arange(len(came)), came].mean())), rel=1e-3)
    return theirs, found.levels[1], len(came)


def test_windows_begin_with_what_the_tokenizer_puts_before_texts(tmp_path: Path) -> None:
    source = write_llama(write_tiny_llama(tmp_path / "source", vocab_size=400, max_position_embeddings=256))
    (source / "tokenizer.json").unlink()
    quantize(source, tmp_path / "package")
    theirs, ours, _ = compare(tmp_path / "package", Path(__file__).read_text(), tmp_path)
    assert theirs == pytest.approx({key: getattr(ours, key) for key in theirs}, rel=2e-3)
