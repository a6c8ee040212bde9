"""What the tokens of a text do to the logits after it, against transformers' processors."""

from collections import Counter

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

from mxconv.arrays import F32
from mxconv.errors import ModelError
from mxconv.speculation.path_rules import PathPenalties, PathRules
from mxconv.text.distribution import Penalties, penalized

NUM_PATHS = 200


def random_logits(random: np.random.Generator, number: int, vocab_size: int) -> F32:
    """Of every kind: plain ones, many ties, extremes, and tokens that cannot be."""
    logits = (random.standard_normal(vocab_size) * random.choice([0.5, 4, 30])).astype(np.float32)
    if number % 4 == 1:
        logits = np.round(logits)
    if number % 4 == 2:
        logits[random.integers(0, vocab_size, 5)] = [1e30, -1e30, 0.0, -0.0, 3e4]
    if number % 4 == 3:
        logits[random.integers(0, vocab_size, vocab_size // 3)] = -np.inf
        logits[number % vocab_size] = 1.0
    return logits


def random_penalties(random: np.random.Generator, vocab_size: int) -> Penalties:
    some = random.permutation(vocab_size)[: random.integers(0, 6)].tolist()
    return Penalties(
        float(random.choice([1.0, 0.7, 1.1, 1.9])),
        float(random.choice([0.0, -1.5, 0.3, 2.0])),
        float(random.choice([0.0, -0.4, 0.1, 2.0])),
        tuple((token, float(random.uniform(-100, 100))) for token in some),
    )


def as_expected(logits: F32, penalties: Penalties, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """transformers' processors for what it has, and OpenAI's sentence for presence and frequency, in float32."""
    ids, scores = torch.tensor([[*prompt, *answer]]), torch.from_numpy(logits.copy())[None]
    if penalties.logit_bias:
        biases = {(token,): bias for token, bias in penalties.logit_bias}
        scores = SequenceBiasLogitsProcessor(biases)(ids, scores)
    if penalties.repetition != 1:
        scores = RepetitionPenaltyLogitsProcessor(penalties.repetition)(ids, scores)
    for token, count in Counter(answer).items():
        scores[0, token] = scores[0, token] - np.float32(penalties.frequency) * np.float32(count)
        scores[0, token] = scores[0, token] - np.float32(penalties.presence)
    return scores


@pytest.mark.parametrize("vocab_size", [512, 50_257])
def test_every_path_has_the_logits_of_transformers(vocab_size: int) -> None:
    random = np.random.default_rng(vocab_size)
    for number in range(NUM_PATHS):
        logits, penalties = random_logits(random, number, vocab_size), random_penalties(random, vocab_size)
        often = random.integers(0, vocab_size, 12)  # so that tokens come again
        text = np.where(random.random(60) < 0.5, random.choice(often, 60), random.integers(0, vocab_size, 60)).tolist()
        cut = int(random.integers(1, 60))
        counts = PathRules(PathPenalties(penalties, cut))
        tail = int(random.integers(cut, 61))
        found = counts.row(logits, text[:tail], text[tail:])
        scores = as_expected(logits, penalties, text[:cut], text[cut:])
        np.testing.assert_array_equal(found, scores[0].numpy())  # bit for bit, so the greedy token is theirs too


def test_counts_follow_a_path_to_any_other() -> None:
    """Up and down a tree, to longer contexts and back to shorter ones: always what a fresh count gives."""
    random, penalties = np.random.default_rng(3), Penalties(1.3, 0.5, 0.25)
    logits = random.standard_normal(16).astype(np.float32)
    counts, context = PathRules(PathPenalties(penalties, 4)), [1, 2, 3, 4]
    for step in range(300):
        if step % 3 == 0:
            context += random.integers(0, 16, 2).tolist()  # as a text grows, in place
        if step % 7 == 0:
            context = context[: int(random.integers(4, len(context) + 1))]
        if step % 11 == 0:
            context = [*context[:4], *random.integers(0, 16, len(context) - 4).tolist()]
        tail = random.integers(0, 16, int(random.integers(0, 5))).tolist()
        expected = PathRules(PathPenalties(penalties, 4)).row(logits, [*context, *tail])
        np.testing.assert_array_equal(counts.row(logits, context, tail), expected)


def test_a_draft_with_fewer_tokens_hears_what_there_is_of_them() -> None:
    counts = PathRules(PathPenalties(Penalties(2.0, logit_bias=((1, 5.0), (9, 5.0))), 3))
    np.testing.assert_array_equal(counts.row(np.ones(3, np.float32), [0, 7, 9]), [0.5, 6.0, 1.0])


def test_logits_of_the_model_stay_as_they_are() -> None:
    logits = np.ones(3, np.float32)
    tokens, once = np.array([1]), np.array([1], np.int32)
    np.testing.assert_array_equal(penalized(logits, Penalties(frequency=0.5), tokens, once, once), [1, 0.5, 1])
    np.testing.assert_array_equal(logits, 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"repetition": 0.0}, "repetition_penalty: 0.0; a number from 0.001 to 1000 is required"),
        ({"repetition": float("nan")}, "repetition_penalty: nan; a number from"),
        ({"repetition": True}, "repetition_penalty: True; a number from"),
        ({"presence": float("inf")}, "presence_penalty: inf; a finite number is required, 0 for none"),
        ({"frequency": "1"}, "frequency_penalty: '1'; a finite number is required, 0 for none"),
        ({"logit_bias": ((3, 101.0),)}, "logit_bias: 101.0 for token id 3; a number from -100 to 100 is required"),
        ({"logit_bias": ((3, float("nan")),)}, "logit_bias: nan for token id 3; a number from -100 to 100"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Penalties(**values)  # type: ignore[arg-type]


def test_a_bias_is_on_a_token_of_the_vocabulary() -> None:
    Penalties(logit_bias=((7, 1.0),)).check(8)
    with pytest.raises(ModelError, match="logit_bias: token id 8; ids from 0 to 7 are required"):
        Penalties(logit_bias=((8, 1.0),)).check(8)
