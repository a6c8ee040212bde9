"""Native kernels of mxconv; see mxconv/kernels/native/kernels.hpp."""

from collections.abc import Sequence
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray


def available() -> list[str]:
    """Implementations that this processor runs, best first."""

def compiler() -> str:
    """The compiler that built this module."""

class Engine:
    def __init__(self, name: str, num_threads: int) -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def num_threads(self) -> int: ...

    def read(self, bytes: NDArray[numpy.uint8]) -> int:
        """
        Read a byte array at memory speed with all threads, whole pieces of 256 KB; returns a checksum.
        """

    def multiply_adds(self, form: str, iterations: int) -> int:
        """
        Multiply-add as fast as registers allow, on all threads; returns how many were done.
        """

class Matrix:
    """A weight matrix over arrays that stay where they are."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def multiply(self, engine: Engine, x: NDArray[numpy.float32], out: NDArray[numpy.float32]) -> None:
        """
        Write x (tokens, in_features) times the matrix to out (tokens, out_features), float32.
        """

    def patterns(self, engine: Engine, first_row: int, out: NDArray[numpy.uint16]) -> None:
        """
        Write the 16-bit patterns of rows first_row, first_row + 1, ... to out (rows, in_features), uint16.
        """

def dense(patterns: NDArray[numpy.uint16], float_format: str) -> Matrix: ...

def bsfp(rows: int, columns: int, float_format: str, codes: NDArray[numpy.uint8], residual_low: NDArray[numpy.uint8], residual_high: NDArray[numpy.uint8], starts: NDArray[numpy.uint16], escape_counts: NDArray[numpy.uint8], escape_offsets: NDArray[numpy.int64], escape_positions: NDArray[numpy.uint8], escape_high: NDArray[numpy.uint8]) -> Matrix: ...

@overload
def four_bit_int8(rows: int, columns: int, codes: NDArray[numpy.uint8], levels: NDArray[numpy.int8], scales: NDArray[numpy.uint8], scale_factor: float) -> Matrix: ...

@overload
def four_bit_int8(rows: int, columns: int, codes: NDArray[numpy.uint8], levels: NDArray[numpy.int8], scales: NDArray[numpy.uint16], scale_factor: float) -> Matrix: ...

@overload
def four_bit_float(rows: int, columns: int, codes: NDArray[numpy.uint8], levels: NDArray[numpy.float32], scales: NDArray[numpy.uint8], scale_factor: float) -> Matrix: ...

@overload
def four_bit_float(rows: int, columns: int, codes: NDArray[numpy.uint8], levels: NDArray[numpy.float32], scales: NDArray[numpy.uint16], scale_factor: float) -> Matrix: ...

def mxint8(rows: int, columns: int, elements: NDArray[numpy.uint8], scales: NDArray[numpy.uint8]) -> Matrix: ...

class ReadError(Exception):
    pass

class PlaneReader:
    """Reads weights into memory, or what passes multiply by ahead of them."""

    def __init__(self, files: Sequence[tuple[str, NDArray[numpy.uint8]]], stages: Sequence[Sequence[Matrix]], head: Matrix | None, experts: Sequence[Sequence[Matrix]], tables: Sequence[Matrix], made: Sequence[Matrix]) -> None:
        """
        Of files, each a path and all that is mapped of it; of matrices by stages, and of an output head at last (None: it is in memory); of experts by layers; of tables that rows are looked up in; of all that was made.
        """

    @property
    def resident_bytes(self) -> int:
        """Bytes of what is read for good."""

    def measure(self) -> float:
        """Bytes a second that the disk gives. Call it before `start`."""

    @property
    def stage_bytes(self) -> list[int]:
        """
        Bytes that each stage takes, parts of the head after the others, then each layer's experts.
        """

    @property
    def num_stages(self) -> int:
        """Number of stages of a pass, without experts."""

    def start(self, num_kept: int, num_buffers: int) -> None:
        """
        Read for good what is resident and the first stages, other stages through buffers from now on, and other experts when they are chosen. Call it once.
        """

class Norm:
    """
    A norm of the last axis: by the mean square, or by the variance (`is_centered`).
    """

    def __init__(self, weight: NDArray[numpy.float32], bias: NDArray[numpy.float32] | None, eps: float, is_centered: bool) -> None: ...

class Projection:
    """A matrix and perhaps a bias."""

    def __init__(self, matrix: Matrix, bias: NDArray[numpy.float32] | None) -> None: ...

class Part:
    """What a layer adds to its rows."""

class Branch:
    """A part of a layer with its norms."""

    def __init__(self, part: Part, norm: Norm | None, is_parallel: bool, sum_norm: Norm | None, multiplier: float) -> None:
        """
        Adds multiplier * sum_norm(part(norm(x))) to x; a parallel one takes in x as the branch before it did.
        """

class Layer:
    """Branches one after another, then a multiplication."""

    def __init__(self, branches: Sequence[Branch], scalar: float) -> None: ...

class AttentionPattern:
    """
    How many positions a token sees: the last `window` (0: all), and of these the first `sink` and the last `recent` (0: all), and so many `pages` between them (0: none). Chunks begin at the multiples of `window`.
    """

    def __init__(self, window: int, sink: int, recent: int, is_chunked: bool, pages: int) -> None: ...

class HeadRotation:
    """Which of the pass's rotations turns heads; -1: none."""

    def __init__(self, table: int, num_pairs: int, is_interleaved: bool) -> None: ...

class HeadNorms:
    """Norms of queries, keys and values; each may be None. clip 0 is none."""

    def __init__(self, query: Norm | None, key: Norm | None, value: Norm | None, span_rows: bool, are_behind: bool, clip: float) -> None: ...

def attention(*, layer: int, source: int, num_heads: int, num_key_value_heads: int, head_dim: int, query: Projection, key: Projection | None, value: Projection | None, output: Projection, fused: str | None, scale: float, pattern: AttentionPattern, norms: HeadNorms, rotation: HeadRotation, temperature: int, logit_cap: float, is_gated: bool, sinks: NDArray[numpy.float32] | None) -> Part:
    """
    Attention over the cache of layer `source`, into which it writes where that is `layer`. Without `value` values are the keys. temperature -1 is none, as is logit_cap 0. Gated queries have a gate after each. Sinks (num_heads,) are scores that take a share of attention and give nothing.
    """

def latent_attention(*, layer: int, query_down: Projection | None, query_norm: Norm | None, query: Projection, down: Projection, latent_norm: Norm, key_up: NDArray[numpy.float32], value_up: NDArray[numpy.float32], output: Projection, scale: float, pattern: AttentionPattern, rotation: HeadRotation) -> Part:
    """
    Attention over latent vectors, which the cache holds with a rotated key each in the place of keys. key_up is (heads, plain_size, latent_size), value_up (heads, value_size, latent_size).
    """

def mlp(*, activation: str, gate: Projection | None, up: Projection | None, down: Projection, row_gate: Projection | None, is_fused: bool, layer_input: int) -> Part:
    """
    An MLP; without `up` the layer's inputs of that number replace what it would give. The sigmoid of a row gate multiplies the MLP's result of a row.
    """

class Routing:
    """How rows choose their experts."""

    def __init__(self, *, router: Projection, num_chosen: int, score: str, is_normalized: bool, correction: NDArray[numpy.float32] | None, groups: tuple[int, int], multiplier: float, multipliers: NDArray[numpy.float32] | None) -> None: ...

def mixture(*, activation: str, clamped: tuple[float, float] | None, is_interleaved: bool, scales_input: bool, norm: Norm | None, router_norm: Norm | None, is_routed_apart: bool, routing: Routing, experts: Sequence[tuple[Projection, Projection | None, Projection]]) -> Part:
    """
    Experts, each a gate, an up (none: its rows come after the gate's, or between them) and a down. `clamped`, a slope and a limit, replaces the activation. Rows are normed by the mixture, for its router by another norm where that is apart.
    """

class Convolution:
    """A convolution of the layer with a state of that number."""

    def __init__(self, taps: NDArray[numpy.float32], bias: NDArray[numpy.float32] | None, layer: int) -> None: ...

def short_convolution(*, convolution: Convolution, inputs: Projection, output: Projection) -> Part:
    """A convolution between two gates, which `inputs` gives with its input."""

def delta_net(*, convolution: Convolution, num_key_heads: int, memory: tuple[int, int, int], queries_keys_values: Projection, gate: Projection | None, beta: Projection, decay: Projection | None, decay_bias: NDArray[numpy.float32], rate: NDArray[numpy.float32], norm: Norm, eps: float, output: Projection) -> Part:
    """
    Gated DeltaNet of memories (value heads, key_dim, value_dim). Without `gate` and `decay` the others hold them too, key head by key head.
    """

def mamba2(*, convolution: Convolution, num_groups: int, memory: tuple[int, int, int], activation: str, inputs: Projection, step_bias: NDArray[numpy.float32], step_limits: tuple[float, float], rate: NDArray[numpy.float32], skip: NDArray[numpy.float32], norm: Norm, norm_groups: int, output: Projection) -> Part:
    """Mamba-2 of memories (heads, head_dim, state_size)."""

def joined(addends: Sequence[tuple[Part, Norm | None]]) -> Part:
    """
    The sum of what several parts make of the same rows, each after a norm or none.
    """

def pairs(part: Part, norm: Norm | None, layer_input: int) -> Part:
    """
    A part over pairs: an embedding, of the layer's own inputs in the pass, and a row after a norm or none.
    """

class Pages:
    """
    The pages of a sequence by their numbers in slabs (layers, 2, heads, pages, positions of a page, head_dim), keys before values: float32, or uint16 patterns of bf16 or fp16.
    """

    def __init__(self, dtype: str, slabs: Sequence[object], numbers: NDArray[numpy.int32]) -> None: ...

class Walk:
    """States of a sequence, and the way of a pass through them."""

    def __init__(self, *, windows: NDArray[numpy.float32], memories: NDArray[numpy.float32], inputs: tuple[int, NDArray[numpy.float32]], kept: tuple[int, NDArray[numpy.float32]], source: int, first: int, stop: int, length: int, saves: Sequence[tuple[int, int]], branches: Sequence[tuple[int, int]]) -> None:
        """
        From the state of slot `source`, which has seen `first` rows, through rows first .. stop - 1 by the running state of slot 0, whose copies after some numbers of rows are saved, (rows, slot), then through branches, (row, parent). Inputs are those of rows from a number on, (number, (layers, rows, numbers)); those of the new rows, from `length` on, go to `kept`.
        """

class SequenceTokens:
    """The tokens of one sequence in a pass."""

    def __init__(self, pages: Pages, length: int, num_tokens: int, num_logits: int, masks: NDArray[numpy.uint64] | None = None, mask_start: int = 0, stages: Sequence[int] = [], states: NDArray[numpy.float32] | None = None, num_left_out: int = 0, walk: Walk | None = None, key_ranges: NDArray[numpy.float32] | None = None, num_ranges: int = 0) -> None:
        """
        Tokens after `length` positions, where their keys and values are written; the last num_logits of them get logits. With masks, token i sees the positions before mask_start and mask_start + b for each bit b. states (stages, num_tokens, hidden_size) receives x before the layers of those numbers; one more than the last layer's is what they all give, two more that after the norm. num_left_out positions of the text before these are in no place. key_ranges (layers, heads, 2, head_dim, pages) holds the greatest and the least of the keys of the first num_ranges pages, and receives those of pages that the pass fills.
        """

class HeadScreen:
    """Which rows of an output head are read."""

    def __init__(self, projection: Projection | None, scores: Projection, num_candidates: int) -> None: ...

class Draws:
    """Draws at random that are coupled by their noise."""

    def __init__(self, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int) -> None: ...

class Penalties:
    """What is held against tokens; counts are of a text and an answer."""

    def __init__(self, repetition: float, presence: float, frequency: float, logit_bias: Sequence[tuple[int, float]], tokens: NDArray[numpy.int64], in_text: NDArray[numpy.int32], in_answer: NDArray[numpy.int32]) -> None: ...

class TreeLimits:
    """What a draft may propose; see draft_tree.hpp."""

    def __init__(self, most_depth: int, floors: Sequence[float], least_own: float, least_sum: float, sharpness: float, most_siblings: int, most_in_frontier: int, most_rows: int, draws: Draws | None, penalties: Penalties | None) -> None: ...

class DraftTree:
    """A tree of guesses, and its nodes that were evaluated, a row each."""

    @property
    def tokens(self) -> list[int]: ...

    @property
    def parents(self) -> list[int]: ...

    @property
    def own_chances(self) -> list[float]: ...

    @property
    def chances(self) -> list[float]: ...

    @property
    def rows(self) -> list[int]: ...

    @property
    def num_passes(self) -> int: ...

    @property
    def first_of_last(self) -> int: ...

class Features:
    """What a head takes in that goes on with features of its own."""

    def __init__(self, features: NDArray[numpy.float32], of_embedding: Norm, when_taken: Norm | None, of_made: Norm | None, ids: NDArray[numpy.int64]) -> None:
        """
        Features before each token of a chain, (tokens, hidden_size); norms of embeddings, of features before layers add to them, and of what layers make; ids in the embedding of the head's tokens.
        """

class Decoder:
    """A forward pass over matrices and vectors that stay where they are."""

    def __init__(self, engine: Engine, layers: Sequence[Layer], norm: Norm, head: Matrix, logit_multiplier: float, logit_cap: float, cache: tuple[int, int, int], screen: HeadScreen | None) -> None:
        """
        Layers, then a norm and a head, whose logits are multiplied and, where logit_cap is not 0, capped. `cache` is layers, heads and head_dim of its pages.
        """

    def forward(self, x: NDArray[numpy.float32], rotations: Sequence[tuple[NDArray[numpy.float32], NDArray[numpy.float32]]], temperatures: Sequence[NDArray[numpy.float32]], layer_inputs: NDArray[numpy.float32] | None, logits: NDArray[numpy.float32], sequences: list[SequenceTokens]) -> None:
        """
        Evaluate tokens of some sequences, no two of one cache, each after those of the one before in x (tokens, hidden_size), which is overwritten, and in logits (sum of num_logits, vocabulary). Rotations are cosines and sines, (tokens, pairs) each; temperatures are (tokens,); layer_inputs (layers, tokens, size).
        """

    def read_ahead(self, planes: PlaneReader, stages: Sequence[int]) -> None:
        """
        Have each pass read what it multiplies by: planes of the output head, and of layers by their stages.
        """

    def grow(self, token_ids: Sequence[int], embedding: Matrix, multiplier: float, rotations: Sequence[tuple[NDArray[numpy.float32], NDArray[numpy.float32]]], temperatures: Sequence[NDArray[numpy.float32]], sequence: SequenceTokens, vocab_size: int, limits: TreeLimits, features: Features | None = None) -> DraftTree:
        """
        Evaluate a chain of tokens, whose rows of an embedding are multiplied, and below them a tree of the likeliest tokens, a pass a depth. Tables are of the chain's positions and most_depth - 1 further ones. With features rows begin as those, and embeddings are the inputs of the first layer.
        """

def norm(engine: Engine, x: NDArray[numpy.float32], norm: Norm, out: NDArray[numpy.float32]) -> None:
    """A norm of each row of x (rows, n)."""

def activate(engine: Engine, activation: str, x: NDArray[numpy.float32], y: NDArray[numpy.float32] | None, out: NDArray[numpy.float32]) -> None:
    """out = activated(x), times y where there is one, each (n,)."""

def clamped_gates(engine: Engine, x: NDArray[numpy.float32], y: NDArray[numpy.float32], slope: float, limit: float, out: NDArray[numpy.float32]) -> None:
    """
    out = (y + 1) * x * sigmoid(slope * x), each (n,), x at most `limit` and y within it.
    """

def cap(engine: Engine, cap: float, x: NDArray[numpy.float32]) -> None:
    """x (n,) becomes cap * tanh(x / cap)."""

@overload
def attend(engine: Engine, queries: NDArray[numpy.float32], keys: NDArray[numpy.float32], values: NDArray[numpy.float32], runs: NDArray[numpy.int32], positions: NDArray[numpy.int32], cap: float, out: NDArray[numpy.float32], sinks: NDArray[numpy.float32] | None = None, dtype: str = 'fp32') -> None: ...

@overload
def attend(engine: Engine, queries: NDArray[numpy.float32], keys: NDArray[numpy.uint16], values: NDArray[numpy.uint16], runs: NDArray[numpy.int32], positions: NDArray[numpy.int32], cap: float, out: NDArray[numpy.float32], sinks: NDArray[numpy.float32] | None = None, dtype: str = 'fp32') -> None:
    """
    Attention of scaled queries (tokens, heads, head_dim) to keys (n, head_dim): each token's to the first of them, as many as `runs` says, then to its `positions` (tokens, m). A cap other than 0 is put on scores. Sinks (heads,) are scores of no position. Keys and values are float32, or patterns of bf16 or fp16.
    """

def round_for_cache(values: NDArray[numpy.float32], dtype: str, out: NDArray[numpy.uint16]) -> None:
    """The bf16 or fp16 patterns of values (n,), to nearest, ties to even."""

def encode_mxfp4(engine: Engine, weights: NDArray[numpy.uint16], float_format: str, scale_rule: str, codes: NDArray[numpy.uint8], scales: NDArray[numpy.uint8]) -> int:
    """
    Encode rows of 16-bit patterns to codes (T, C, 64) and scales (T, C / 4, 16). Returns -1, or the row-major index of the first weight that is not finite; the output then means nothing.
    """

def encode_bsfp(engine: Engine, weights: NDArray[numpy.uint16], float_format: str, residual_bits: int, starts: NDArray[numpy.uint16], order: NDArray[numpy.uint8], levels: NDArray[numpy.float32], codes: NDArray[numpy.uint8], residual_low: NDArray[numpy.uint8], residual_high: NDArray[numpy.uint8], scales: NDArray[numpy.uint16], escape_counts: NDArray[numpy.uint8], escape_positions: NDArray[numpy.uint8], escape_high: NDArray[numpy.uint8]) -> int:
    """
    Encode rows of 16-bit patterns as BSFP; returns the number of escapes. The lists of escapes need room for every weight and 64 more bytes.
    """

def sum_of_squares(engine: Engine, weights: NDArray[numpy.uint16], float_format: str, out: NDArray[numpy.float64]) -> None:
    """
    Write the folded sum of squares of each row of 16-bit patterns to out (rows), float64.
    """

def row_shifts(engine: Engine, weights: NDArray[numpy.uint16], float_format: str, boundaries: NDArray[numpy.float64], least_shift: int, out: NDArray[numpy.int8]) -> None:
    """Write the row shifts of 16-bit patterns to out (rows), int8."""

def count_patterns(engine: Engine, weights: NDArray[numpy.uint16], slots: NDArray[numpy.int64], counts: NDArray[numpy.int64]) -> None:
    """Add 1 to counts[slots[row], magnitude] for every 16-bit pattern."""

def fit_cuts(engine: Engine, weights: NDArray[numpy.float64], energy: NDArray[numpy.float64], reach: NDArray[numpy.float64], price: float, chosen: NDArray[numpy.int64]) -> float:
    """
    Write the eight cuts of least cost to chosen; returns the relative error that they leave.
    """

def dequantize(engine: Engine, matrix: Matrix, first_row: int, out: NDArray[numpy.float32]) -> None:
    """
    Write the values of rows first_row, first_row + 1, ... of a four_bit_float matrix to out, float32.
    """
