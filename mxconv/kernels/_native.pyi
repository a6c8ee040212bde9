"""What the extension module offers; its sources are in mxconv/kernels/native/."""

from typing import overload

from mxconv.arrays import F32, F64, I8, I32, I64, U8, U16, U64

def available() -> list[str]: ...
def compiler() -> str: ...

class Engine:
    def __init__(self, name: str, num_threads: int) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    def read(self, bytes: U8) -> int: ...
    def multiply_adds(self, form: str, iterations: int) -> int: ...

class Matrix:
    @property
    def shape(self) -> tuple[int, int]: ...
    def multiply(self, engine: Engine, x: F32, out: F32) -> None: ...
    def patterns(self, engine: Engine, first_row: int, out: U16) -> None: ...

def dense(patterns: U16, float_format: str) -> Matrix: ...
def bsfp(
    rows: int,
    columns: int,
    float_format: str,
    codes: U8,
    residual_low: U8,
    residual_high: U8,
    starts: U16,
    escape_counts: U8,
    escape_offsets: I64,
    escape_positions: U8,
    escape_high: U8,
) -> Matrix: ...
@overload
def four_bit_int8(rows: int, columns: int, codes: U8, levels: I8, scales: U8, scale_factor: float) -> Matrix: ...
@overload
def four_bit_int8(rows: int, columns: int, codes: U8, levels: I8, scales: U16, scale_factor: float) -> Matrix: ...
@overload
def four_bit_float(rows: int, columns: int, codes: U8, levels: F32, scales: U8, scale_factor: float) -> Matrix: ...
@overload
def four_bit_float(rows: int, columns: int, codes: U8, levels: F32, scales: U16, scale_factor: float) -> Matrix: ...
def mxint8(rows: int, columns: int, elements: U8, scales: U8) -> Matrix: ...

class Norm:
    def __init__(self, weight: F32, bias: F32 | None, eps: float, is_centered: bool) -> None: ...

class Projection:
    def __init__(self, matrix: Matrix, bias: F32 | None) -> None: ...

class Sight:
    def __init__(self, window: int, sink: int, recent: int, is_chunked: bool) -> None: ...

class HeadRotation:
    def __init__(self, table: int, num_pairs: int, is_interleaved: bool) -> None: ...

class HeadNorms:
    def __init__(
        self,
        query: Norm | None,
        key: Norm | None,
        value: Norm | None,
        span_rows: bool,
        are_behind: bool,
        clip: float,
    ) -> None: ...

class Part: ...

class Routing:
    def __init__(
        self,
        *,
        router: Projection,
        num_chosen: int,
        score: str,
        is_normalized: bool,
        correction: F32 | None,
        groups: tuple[int, int],
        multiplier: float,
        multipliers: F32 | None,
    ) -> None: ...

def attention(
    *,
    layer: int,
    source: int,
    num_heads: int,
    num_key_value_heads: int,
    head_dim: int,
    query: Projection,
    key: Projection | None,
    value: Projection | None,
    output: Projection,
    fused: str | None,
    scale: float,
    sight: Sight,
    norms: HeadNorms,
    rotation: HeadRotation,
    temperature: int,
    logit_cap: float,
    is_gated: bool,
    sinks: F32 | None,
) -> Part: ...
def latent_attention(
    *,
    layer: int,
    query_down: Projection | None,
    query_norm: Norm | None,
    query: Projection,
    down: Projection,
    latent_norm: Norm,
    key_up: F32,
    value_up: F32,
    output: Projection,
    scale: float,
    sight: Sight,
    rotation: HeadRotation,
) -> Part: ...
def mixture(
    *,
    activation: str,
    clamped: tuple[float, float] | None,
    is_interleaved: bool,
    scales_input: bool,
    norm: Norm | None,
    router_norm: Norm | None,
    is_routed_apart: bool,
    routing: Routing,
    experts: list[tuple[Projection, Projection | None, Projection]],
) -> Part: ...
def joined(addends: list[tuple[Part, Norm | None]]) -> Part: ...
def mlp(
    *,
    activation: str,
    gate: Projection | None,
    up: Projection | None,
    down: Projection,
    row_gate: Projection | None,
    is_fused: bool,
    layer_input: int,
) -> Part: ...

class Convolution:
    def __init__(self, taps: F32, bias: F32 | None, layer: int, only_follows: bool) -> None: ...

def short_convolution(*, convolution: Convolution, inputs: Projection, output: Projection) -> Part: ...
def delta_net(
    *,
    convolution: Convolution,
    num_key_heads: int,
    memory: tuple[int, int, int],
    queries_keys_values: Projection,
    gate: Projection | None,
    beta: Projection,
    decay: Projection | None,
    decay_bias: F32,
    rate: F32,
    norm: Norm,
    eps: float,
    output: Projection,
) -> Part: ...
def mamba2(
    *,
    convolution: Convolution,
    num_groups: int,
    memory: tuple[int, int, int],
    activation: str,
    inputs: Projection,
    step_bias: F32,
    step_limits: tuple[float, float],
    rate: F32,
    skip: F32,
    norm: Norm,
    norm_groups: int,
    output: Projection,
) -> Part: ...

class Branch:
    def __init__(
        self, part: Part, norm: Norm | None, is_parallel: bool, sum_norm: Norm | None, multiplier: float
    ) -> None: ...

class Layer:
    def __init__(self, branches: list[Branch], scalar: float) -> None: ...

class Decoder:
    def __init__(
        self,
        engine: Engine,
        layers: list[Layer],
        norm: Norm,
        head: Matrix,
        logit_multiplier: float,
        logit_cap: float,
        cache: tuple[int, int, int],
    ) -> None: ...
    def forward(
        self,
        x: F32,
        rotations: list[tuple[F32, F32]],
        temperatures: list[F32],
        layer_inputs: F32 | None,
        logits: F32,
        sequences: list[SequenceTokens],
    ) -> None: ...

class Pages:
    def __init__(self, dtype: str, slabs: list[F32 | U16], numbers: I32) -> None: ...

class SequenceTokens:
    def __init__(
        self,
        pages: Pages,
        length: int,
        num_tokens: int,
        num_logits: int,
        masks: U64 | None = None,
        mask_start: int = 0,
        stages: list[int] = ...,
        states: F32 | None = None,
        num_left_out: int = 0,
        walk: Walk | None = None,
    ) -> None: ...

class Walk:
    def __init__(
        self,
        *,
        windows: F32,
        memories: F32,
        inputs: tuple[int, F32],
        kept: tuple[int, F32],
        source: int,
        first: int,
        stop: int,
        length: int,
        saves: list[tuple[int, int]],
        branches: list[tuple[int, int]],
    ) -> None: ...

@overload
def encode_mxfp4(engine: Engine, weights: U16, float_format: str, scale_rule: str, codes: U8, scales: U8) -> int: ...
@overload
def encode_mxfp4(engine: Engine, weights: F32, scale_rule: str, codes: U8, scales: U8) -> int: ...
def encode_bsfp(
    engine: Engine,
    weights: U16,
    float_format: str,
    residual_bits: int,
    starts: U16,
    order: U8,
    levels: F32,
    codes: U8,
    residual_low: U8,
    residual_high: U8,
    scales: U16,
    escape_counts: U8,
    escape_positions: U8,
    escape_high: U8,
) -> int: ...
def sum_of_squares(engine: Engine, weights: U16, float_format: str, out: F64) -> None: ...
def row_shifts(engine: Engine, weights: U16, float_format: str, boundaries: F64, least_shift: int, out: I8) -> None: ...
def count_patterns(engine: Engine, weights: U16, slots: I64, counts: I64) -> None: ...
def fit_cuts(engine: Engine, weights: F64, energy: F64, reach: F64, price: float, chosen: I64) -> float: ...
def has_sha256() -> bool: ...

class Sha256:
    def __init__(self) -> None: ...
    def hexdigest(self) -> str: ...

def sha256_update(streams: list[Sha256], pieces: list[U8]) -> None: ...
def dequantize(engine: Engine, matrix: Matrix, first_row: int, out: F32) -> None: ...
def rms_norm(engine: Engine, x: F32, weight: F32, eps: float, out: F32) -> None: ...
def layer_norm(engine: Engine, x: F32, weight: F32, bias: F32, eps: float, out: F32) -> None: ...
def activate(engine: Engine, activation: str, x: F32, y: F32 | None, out: F32) -> None: ...
def clamped_gates(engine: Engine, x: F32, y: F32, slope: float, limit: float, out: F32) -> None: ...
def cap(engine: Engine, cap: float, x: F32) -> None: ...
@overload
def attend(
    engine: Engine,
    queries: F32,
    keys: F32,
    values: F32,
    runs: I32,
    positions: I32,
    cap: float,
    out: F32,
    sinks: F32 | None = None,
) -> None: ...
@overload
def attend(
    engine: Engine,
    queries: F32,
    keys: U16,
    values: U16,
    runs: I32,
    positions: I32,
    cap: float,
    out: F32,
    sinks: F32 | None = None,
    *,
    dtype: str,
) -> None: ...
def round_for_cache(values: F32, dtype: str, out: U16) -> None: ...
