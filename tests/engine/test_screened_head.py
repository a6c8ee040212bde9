"""An output head of which a draft reads few rows: kernels beside their reference, and rows beside themselves alone."""

from typing import Any

import numpy as np
import pytest
from checkpoints import TINY_LLAMA, llama_tensors

from mxconv.arch.families.registry import describe_values
from mxconv.codecs.float16 import BF16, FORMATS
from mxconv.codecs.screen_axes import ScreenAxes, candidates
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.sequence_rows import States
from mxconv.engine.weights import ModelWeights, ScreenedHead
from mxconv.kernels.encoders import encode_mxfp4
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.package.stored import StoredMxfp4

VOCABULARY, RANK, CANDIDATES = 1000, 32, 9  # of 63 tiles, the last of 8 tokens
IDS = [int(token) for token in np.random.default_rng(5).integers(0, VOCABULARY, 40)]
CASES = [(name, dtype) for name in native_names() for dtype in ("BF16", "F16")]


def screened(kernel: str, dtype: str, num_threads: int = 1, **config: Any) -> Decoder:
    """A model whose head has a screen; its other weights are those of the target."""
    make = Matrices(choose_engine(kernel, num_threads))
    values = TINY_LLAMA | {"vocab_size": VOCABULARY, "tie_word_embeddings": True} | config
    described = describe_values(values)
    tensors = llama_tensors(values, dtype)
    head = tensors["model.embed_tokens.weight"].astype(np.float32)
    projection, given = ScreenAxes.of((head.T @ head).astype(np.float64), np.eye(head.shape[1])).of_rank(RANK)
    codes, scales = encode_mxfp4(BF16.encode((head @ given).astype(np.float32)), BF16, "mse")
    matrices, vectors = {}, {}
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            vectors[name] = tensor.astype(np.float32)
        else:
            matrices[name] = make.dense(tensor.view(np.uint16), FORMATS[dtype])
    matrices["lm_head.weight"] = ScreenedHead(
        make.dense(BF16.encode(projection.astype(np.float32)), BF16),
        make.mxfp4_draft(StoredMxfp4((VOCABULARY, RANK), codes, scales)),
        matrices["model.embed_tokens.weight"],
        CANDIDATES,
    )
    return make.decoder(described, ModelWeights(matrices, vectors), "screened")


def evaluated(decoder: Decoder, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and the normed states that they come from."""
    states = States(normed_last=True)
    logits = decoder.forward(ids, KVCache(decoder.config), states=states)
    assert states.values is not None
    return logits, states.values[0]


@pytest.mark.parametrize(("kernel", "dtype"), CASES)
@pytest.mark.parametrize("count", [1, 3, 9, 40])
def test_kernels_give_candidates_the_heads_logits_and_others_their_scores(kernel: str, dtype: str, count: int) -> None:
    decoder = screened(kernel, dtype, num_threads=2)
    logits, states = evaluated(decoder, IDS[:count])
    head = decoder.head
    assert isinstance(head, ScreenedHead)
    scores = head.scores.multiply(head.projection.multiply(states))
    exact = head.head.multiply(states)
    for row, score, wanted in zip(logits, scores, exact, strict=True):
        chosen = candidates(score, CANDIDATES)
        assert CANDIDATES <= chosen.sum() < 60
        assert row[chosen].tobytes() == wanted[chosen].tobytes()
        assert row[~chosen].tobytes() == score[~chosen].tobytes()
    assert np.abs(head.multiply(states) - logits).max() < 0.05 * np.abs(logits).max()  # the reference, in float32


@pytest.mark.parametrize("kernel", native_names())
def test_a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(kernel: str) -> None:
    one = screened(kernel, "BF16")
    cache = KVCache(one.config)
    alone = np.concatenate([one.forward([token], cache) for token in IDS])
    for num_threads in (1, 2, 3):
        together, _ = evaluated(screened(kernel, "BF16", num_threads), IDS)
        assert together.tobytes() == alone.tobytes(), num_threads


@pytest.mark.parametrize("kernel", ["numpy", *native_names()])
def test_multipliers_and_caps_come_after_the_screen(kernel: str) -> None:
    plain, _ = evaluated(screened(kernel, "BF16"), IDS[:5])
    granite = {"architectures": ["GraniteForCausalLM"], "model_type": "granite", "logits_scaling": 4.0}
    granite |= {"embedding_multiplier": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 0.25}
    divided, _ = evaluated(screened(kernel, "BF16", **granite), IDS[:5])
    assert np.allclose(divided, plain / 4, rtol=1e-5, atol=1e-6)
