"""`evaluate` and llama.cpp on the exported files: the same texts, windows cut as `llama-perplexity` cuts them."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf_models import write_sentence_piece_model
from llama_cpp_oracle import LlamaCpp, with_f32_matrices
from packages import quantize

from mxconv.interop.gguf_export import export_gguf
from mxconv.package.manifest import QualityRecord
from mxconv.verification.evaluation import evaluate
from mxconv.verification.scored_texts import windows

pytest.importorskip("llama_cpp", reason="make test builds llama-cpp-python")

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


def test_the_embedded_model_has_llama_cpps_figures(pylib_mxfp4: Path, tmp_path: Path) -> None:
    theirs, ours, num_tokens = compare(pylib_mxfp4, Path(json.__file__).read_text(), tmp_path)
    assert num_tokens == NUM_WINDOWS * (CONTEXT // 2 - 1)
    assert theirs == pytest.approx({key: getattr(ours, key) for key in theirs}, rel=2e-3)


def test_windows_begin_with_what_the_tokenizer_puts_before_texts(tmp_path: Path) -> None:
    source = write_sentence_piece_model(tmp_path / "source")
    quantize(source, tmp_path / "package")
    theirs, ours, _ = compare(tmp_path / "package", Path(__file__).read_text(), tmp_path)
    assert theirs == pytest.approx({key: getattr(ours, key) for key in theirs}, rel=2e-3)
