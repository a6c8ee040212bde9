"""Levels of tiny random models made in memory, and greedy decoding written out as the oracle of every speculation."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from stored_matrices import stored_mxfp4

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe_values
from mxconv.arch.required_tensors import required_tensors
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.drafts.kind import DraftSpec
from mxconv.drafts.kinds import KINDS
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.weights import ModelWeights
from mxconv.kernels.draft_matrix import FourBitMatrix, mxfp4_matrix
from mxconv.kernels.matrix import DenseMatrix, Matrix
from mxconv.package.level_record import LevelRecord, ModelRecord, PlainRecord
from mxconv.speculation.acceptance import Acceptance, GreedyAcceptance
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.pace import FixedPace
from mxconv.speculation.proposal import Draft, Proposal
from mxconv.speculation.round import Level
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.speculation.session import Session
from mxconv.speculation.statistics import Generation, LevelStatistics
from mxconv.text.distribution import distribution

VOCAB_SIZE = 24
MAX_POSITIONS = 40


def tiny_config(max_position_embeddings: int = MAX_POSITIONS, num_layers: int = 2, **changes: Any) -> ModelConfig:
    values: dict[str, object] = {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": max_position_embeddings,
    }
    return describe_values(values | changes)


def tiny_values(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Gaussian matrices that make logits which differ."""
    rng = np.random.default_rng(seed)
    matrices = {name: shape for name, shape in required_tensors(config, ()).items() if len(shape) == 2}
    return {name: (rng.standard_normal(shape) * 0.4).astype(np.float32) for name, shape in matrices.items()}


def norms(config: ModelConfig) -> dict[str, np.ndarray]:
    vectors = (name for name, shape in required_tensors(config, ()).items() if len(shape) == 1)
    return dict.fromkeys(vectors, np.ones(config.hidden_size, np.float32))


def dense(values: dict[str, np.ndarray], float_format: FloatFormat) -> dict[str, Matrix]:
    return {name: DenseMatrix(float_format.encode(array), float_format) for name, array in values.items()}


def four_bit(values: dict[str, np.ndarray]) -> dict[str, Matrix]:
    return {name: _four_bit(array) for name, array in values.items() if name != "model.embed_tokens.weight"}


def _four_bit(values: np.ndarray) -> FourBitMatrix:
    stored, _ = stored_mxfp4(values)
    return mxfp4_matrix(stored.shape, stored.codes, stored.scales)


def record(name: str, shares_cache: bool = False) -> LevelRecord:
    return (PlainRecord if shares_cache else ModelRecord)(
        name=name,
        kind="self-draft" if shares_cache else "model",
        codec="bf16",
        location="package",
        files=[],
        shares=["kv_cache", "tokenizer"] if shares_cache else ["tokenizer"],
    )


def record_of(spec: DraftSpec, name: str, *rest: Any, **more: Any) -> LevelRecord:
    """The level that a SPEC becomes; see `DraftKind.record`."""
    return KINDS[spec.kind].record(spec, name, *rest, **more)


def look_up(kind: str, **members: Any) -> LoadedLevel:
    """A level that is no model."""
    made = KINDS[kind]
    record = made.record(DraftSpec(kind, parameters=members), made.name)
    return LoadedLevel(record.model_copy(update={"num_draft_tokens": None, "confidence": None}), None, kind=made)


def target_level(seed: int = 0, float_format: FloatFormat = BF16, **config: Any) -> LoadedLevel:
    """A 16-bit target."""
    return LoadedLevel(record("target"), _target(seed, float_format, **config))


@cache
def _target(seed: int, float_format: FloatFormat, **config: Any) -> Decoder:
    sizes = tiny_config(**config)
    weights = ModelWeights(dense(tiny_values(sizes, seed), float_format), norms(sizes))
    return Decoder(sizes, weights, "target")


def self_draft(
    seed: int = 0, float_format: FloatFormat = BF16, shares_cache: bool = True, **config: Any
) -> LoadedLevel:
    """The 4-bit copy of that target: its own embedding, everything else in MXFP4."""
    return LoadedLevel(record("mxfp4", shares_cache), _self_draft(seed, float_format, **config))


@cache
def _self_draft(seed: int, float_format: FloatFormat, **config: Any) -> Decoder:
    sizes = tiny_config(**config)
    values = tiny_values(sizes, seed)
    weights = ModelWeights(dense(values, float_format) | four_bit(values), norms(sizes))
    return Decoder(sizes, weights, "mxfp4")


def noisy_copy(
    seed: int = 0, noise: float = 0.1, shares_cache: bool = False, name: str = "noisy", **config: Any
) -> LoadedLevel:
    """A dense model near the target of that seed: noise 0 always agrees with it, noise 10 hardly ever."""
    return LoadedLevel(record(name, shares_cache), _noisy_copy(seed, noise, name, **config))


@cache
def _noisy_copy(seed: int, noise: float, name: str, **config: Any) -> Decoder:
    sizes = tiny_config(**config)
    rng = np.random.default_rng(seed + 1)
    values = {
        tensor: array + (noise * 0.4 * rng.standard_normal(array.shape)).astype(np.float32)
        for tensor, array in tiny_values(sizes, seed).items()
    }
    return Decoder(sizes, ModelWeights(dense(values, BF16), norms(sizes)), name)


FORMATS = {"BF16": BF16, "F16": FP16}


def levels_of(count: int) -> list[LoadedLevel]:
    """Target, its 4-bit copy in the same cache, a small model with its own."""
    return [target_level(), self_draft(), noisy_copy(0, 0.3)][:count]


def level_over(
    decoder: Decoder,
    draft: Draft | None = None,
    acceptance: Acceptance | None = None,
    vocab_size: int = VOCAB_SIZE,
    shared: Session | None = None,
) -> Level:
    """A level of a run with a session of its own or a shared one, whose draft is asked for four tokens."""
    return Level(
        decoder=decoder,
        session=Session(KVCache(decoder.config)) if shared is None else shared,
        shares_session=shared is not None,
        vocab_size=vocab_size,
        acceptance=acceptance or GreedyAcceptance(),
        statistics=LevelStatistics("level"),
        drafts=[draft] if draft else [],
        pace=FixedPace(4),
    )


@dataclass(frozen=True)
class Decoded:
    """New tokens, and for each the bytes of the logits that chose it."""

    token_ids: list[int]
    logits: list[bytes]


def paths_of(proposal: Proposal) -> list[tuple[int, ...]]:
    """The tokens of each node's path."""
    assert proposal.parents is not None
    found: list[tuple[int, ...]] = []
    for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
        assert parent < len(found)  # parents before children
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def decoder_of(level: LoadedLevel) -> Decoder:
    assert level.decoder is not None
    return level.decoder


def by_hand(
    decoder: Decoder,
    prompt: Sequence[int],
    max_new_tokens: int,
    stop_tokens: Collection[int] = (),
    selection: Selection = GREEDY,
) -> Decoded:
    """One token after another, from the decoder alone, greedy or with coupled noise; made once for many hierarchies.

    Under a constraint: by the masks of a matcher that is never taken back.
    """
    return _by_hand(decoder, tuple(prompt), max_new_tokens, frozenset(stop_tokens), selection)


@lru_cache(maxsize=512)
def _by_hand(
    decoder: Decoder, prompt: tuple[int, ...], max_new_tokens: int, stop_tokens: frozenset[int], selection: Selection
) -> Decoded:
    cache = KVCache(decoder.config)
    matcher = None if selection.constraint is None else selection.constraint.matcher()
    token_ids: list[int] = []
    logits: list[bytes] = []
    todo = list(prompt)
    while len(token_ids) < max_new_tokens and cache.length + len(todo) <= decoder.config.max_position_embeddings:
        row = decoder.forward(todo, cache)[-1]
        chosen_by = row if selection.penalties.is_neutral else penalized_by_hand(row, selection, prompt, token_ids)
        if matcher is not None:
            chosen_by = np.where(matcher.mask(len(row)), chosen_by, np.float32(-np.inf))
        if selection.sampling is None:
            todo = [int(np.flatnonzero(chosen_by == chosen_by.max())[0])]
        else:
            shares = distribution(chosen_by, selection.sampling)
            todo = [gumbel_max(shares, selection.seed, len(prompt) + len(token_ids))]
        token_ids += todo
        logits.append(row.tobytes())
        if todo[0] in stop_tokens:
            break
        assert matcher is None or matcher.consume(todo[0])
    return Decoded(token_ids, logits)


def penalized_by_hand(
    logits: np.ndarray, selection: Selection, prompt: Sequence[int], answer: Sequence[int]
) -> np.ndarray:
    """A token after the other: its bias, its repetition, and how often the answer has it."""
    row, penalties = logits.copy(), selection.penalties
    for token, bias in penalties.logit_bias:
        row[token] += np.float32(bias)
    for token in {*prompt, *answer}:
        factor = np.float32(penalties.repetition)
        row[token] = row[token] * factor if row[token] < 0 else row[token] / factor
    for token, count in Counter(answer).items():
        row[token] -= np.float32(penalties.frequency) * np.float32(count)
        row[token] -= np.float32(penalties.presence)
    return row


def gumbel_max(shares: np.ndarray, seed: int, position: int) -> int:
    """argmax(log p - log(-log u)), u the tokens' numbers in the stream that seed and position begin."""
    uniform = np.random.Generator(np.random.Philox(key=np.array([seed, position], np.uint64))).random(len(shares))
    scores = [math.log(p) - math.log(-math.log(u)) if p else -math.inf for p, u in zip(shares, uniform, strict=True)]
    return scores.index(max(scores))


def speculate(
    hierarchy: Hierarchy,
    prompt: Sequence[int],
    max_new_tokens: int,
    stop_tokens: Collection[int] = (),
    selection: Selection = GREEDY,
) -> tuple[Decoded, Generation]:
    logits: list[bytes] = []

    def keep(position: int, row: np.ndarray) -> None:
        assert position == len(logits)
        logits.append(row.tobytes())

    generation = hierarchy.generate(prompt, max_new_tokens, stop_tokens, keep, selection)
    return Decoded(generation.token_ids, logits), generation


def assert_lossless(
    hierarchy: Hierarchy,
    prompt: Sequence[int],
    max_new_tokens: int,
    stop_tokens: Collection[int] = (),
    selection: Selection = GREEDY,
) -> Generation:
    """Tokens and logits are those of plain decoding, bit for bit, and the statistics add up."""
    found, generation = speculate(hierarchy, prompt, max_new_tokens, stop_tokens, selection)
    expected = by_hand(decoder_of(hierarchy.levels[0]), prompt, max_new_tokens, stop_tokens, selection)
    assert found.token_ids == expected.token_ids
    assert found.logits == expected.logits
    assert_consistent(generation, stop_tokens)
    return generation


def assert_consistent(generation: Generation, stop_tokens: Collection[int] = ()) -> None:
    """What the statistics and the trace say about each other and about the text."""
    trace = generation.trace
    target, *drafts = trace.statistics
    assert (target.num_proposed, target.num_accepted) == (0, 0)
    assert target.num_forwards == trace.num_rounds
    for level in drafts:
        assert 0 <= level.num_accepted <= level.num_proposed
    # a round gives one token and those it accepted; a stop token may cut the last one short
    produced = trace.num_rounds + (drafts[0].num_accepted if drafts else 0)
    stopped = bool(generation.token_ids) and generation.token_ids[-1] in stop_tokens
    assert produced == len(generation.token_ids) or (stopped and produced > len(generation.token_ids))
    assert [entry.round for entry in trace.entries] == [r for r in range(trace.num_rounds) for _ in trace.statistics]
    for index, level in enumerate(trace.statistics):
        entries = trace.entries[index :: len(trace.statistics)]
        assert {entry.level for entry in entries} <= {level.name}
        assert sum(entry.num_proposed for entry in entries) == level.num_proposed
        assert sum(entry.num_accepted for entry in entries) == level.num_accepted
        assert sum(entry.num_forwards for entry in entries) == level.num_forwards
        np.testing.assert_allclose(sum(entry.seconds for entry in entries), level.seconds, rtol=1e-6, atol=1e-9)
        assert all(0 <= entry.num_accepted <= entry.num_proposed for entry in entries) or index > 1
    assert sum(level.seconds for level in trace.statistics) <= generation.seconds + 1e-6
