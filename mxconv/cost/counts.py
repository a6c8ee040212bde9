"""Parameters, bytes and multiply-adds of a forward pass, from an architecture alone: no weights are needed.

A pass over n tokens reads each multiplied matrix once, whatever n is, and of a mixture of experts those experts that
the tokens choose. The embedding is looked up, not read. One multiply-add is one product and one sum (two FLOPs).
"""

from dataclasses import dataclass

from mxconv.arch.model_sizes import ModelSizes
from mxconv.errors import MxconvError

# bits a weight, scales included: OCP MX v1.0 (32 weights an 8-bit scale); formats/bsfp.md (128 weights a 16-bit scale)
SCALE_BITS = {"mxfp4": 8 / 32, "bsfp-draft": 16 / 128}
BITS = {"bf16": 16.0, "fp16": 16.0, "int8": 8.0, "bsfp": 12.7, "mxfp4": 4.25, "bsfp-draft": 4.125}
STATE_BYTES = 4  # of a number of a recurrent state: float32
KV_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True)
class Parameters:
    """How many numbers a model has, by part."""

    embedding: int
    attention: int
    feed_forward: int  # of layers without experts
    experts: int
    router: int
    norms: int
    head: int  # 0 where the embedding is the head too

    @property
    def total(self) -> int:
        return sum(
            (self.embedding, self.attention, self.feed_forward, self.experts, self.router, self.norms, self.head)
        )


@dataclass(frozen=True)
class PassCount:
    """One forward pass of one sequence or of a batch of them.

    `weight_bytes` counts codes alone, `scale_bytes` their scales; `kv_bytes` what attention reads of the cache, and
    `state_bytes` what is read and written of recurrent states.
    """

    num_tokens: float  # new ones, a sequence; may be a mean
    batch: int
    context: int  # positions in the cache
    weight_bytes: float
    scale_bytes: float
    kv_bytes: float
    matrix_multiply_adds: float
    attention_multiply_adds: float
    state_bytes: float = 0.0

    @property
    def num_bytes(self) -> float:
        return self.weight_bytes + self.scale_bytes + self.kv_bytes + self.state_bytes

    @property
    def multiply_adds(self) -> float:
        return self.matrix_multiply_adds + self.attention_multiply_adds


def count_parameters(a: ModelSizes) -> Parameters:
    """Every stored number, biases and norms included. Agrees with transformers' own models."""
    ups = 2 if a.has_gate else 1
    dense = [
        (ups + 1) * a.hidden_size * size + (ups * size + a.hidden_size) * a.mlp_bias for size in a.dense_sizes if size
    ]
    own = a.layer_inputs // (3 * a.hidden_size)  # size of a layer's own embedding, and of the one norm of them all
    norms = sum(a.norms) + a.hidden_size * (1 + a.final_norm_bias) + own
    return Parameters(
        embedding=a.vocab_size * a.hidden_size + a.num_looked_up,
        attention=sum(each.weights + each.vectors for each in a.mixers),
        feed_forward=sum(dense) + _shared(a) + a.num_layers * a.layer_inputs,
        experts=a.num_expert_layers * a.num_experts * _expert(a) if a.num_experts else 0,
        router=a.num_expert_layers * (a.num_experts * (a.hidden_size + a.expert_bias) + a.router_vectors)
        if a.num_experts
        else 0,
        norms=norms,
        head=0 if a.tie_word_embeddings else a.vocab_size * a.hidden_size,
    )


def active_parameters(a: ModelSizes) -> int:
    """Parameters that one token multiplies with or adds: of the experts those it is sent to, and of embedding and head
    the head. Some model cards count the embedding as active too: add `Parameters.embedding`."""
    p = count_parameters(a)
    used = a.num_expert_layers * a.num_experts_per_token * _expert(a) if a.num_experts else 0
    return p.attention + p.feed_forward + used + p.router + p.norms + a.vocab_size * a.hidden_size


def multiplied_weights(a: ModelSizes, num_tokens: float = 1) -> float:
    """Weights of the matrices that a pass over so many tokens reads. Routing is taken as uniform and independent.

    A token picks k of E experts, so n tokens together miss an expert with probability (1 - k/E)^n.
    """
    weights = sum(each.weights for each in a.mixers) + a.vocab_size * a.hidden_size
    weights += a.num_layers * a.layer_inputs
    weights += (3 if a.has_gate else 2) * a.hidden_size * sum(a.dense_sizes)
    if not a.num_experts:
        return float(weights)
    chosen = a.num_experts * (1 - (1 - a.num_experts_per_token / a.num_experts) ** num_tokens)
    weights_of_experts = 3 * a.expert_size * chosen + a.num_experts  # and of the router
    return float(weights + a.num_expert_layers * a.hidden_size * weights_of_experts + _shared(a))


def kv_bytes(a: ModelSizes, context: float, kv_dtype: str = "bf16") -> float:
    """Bytes of keys and values that one new token of one sequence reads. Layers with a state have none."""
    if kv_dtype not in KV_BYTES:
        raise MxconvError(f"KV dtype {kv_dtype!r}: unknown; one of {', '.join(KV_BYTES)} is required. Choose one.")
    return KV_BYTES[kv_dtype] * sum(each.kv_values * each.positions(context) for each in a.mixers)


def state_bytes(a: ModelSizes) -> int:
    """Bytes of the states of one sequence, float32: what each copy of them takes. A pass reads and writes them."""
    return STATE_BYTES * sum(each.state_values for each in a.mixers)


def attention_multiply_adds(a: ModelSizes, context: float) -> float:
    """Multiply-adds of one new token: queries by keys and probabilities by values, or updates of a state."""
    return sum(each.multiply_adds * each.positions(context) + each.state_multiply_adds for each in a.mixers)


def count_pass(
    a: ModelSizes,
    codec: str,
    num_tokens: float = 1,
    batch: int = 1,
    context: int = 0,
    kv_dtype: str = "bf16",
    bits_per_weight: float | None = None,
) -> PassCount:
    """Bytes and multiply-adds of one pass.

    Args:
        codec: how the matrices are stored, one of `BITS`.
        num_tokens: new tokens of each sequence; may be a mean.
        batch: sequences, of the same context.
        context: positions in each cache.
        kv_dtype: of keys and values, one of `KV_BYTES`.
        bits_per_weight: instead of the codec's typical figure, scales included: a package knows its own.

    Raises:
        MxconvError: an unknown codec or KV dtype.
    """
    if codec not in BITS:
        raise MxconvError(f"codec {codec!r}: unknown; one of {', '.join(BITS)} is required. Choose one.")
    weights = multiplied_weights(a, num_tokens * batch)
    scale_bits = SCALE_BITS.get(codec, 0.0)
    bits = BITS[codec] if bits_per_weight is None else bits_per_weight
    return PassCount(
        num_tokens=num_tokens,
        batch=batch,
        context=context,
        weight_bytes=weights * (bits - scale_bits) / 8,
        scale_bytes=weights * scale_bits / 8,
        kv_bytes=batch * kv_bytes(a, context, kv_dtype),
        matrix_multiply_adds=multiplied_weights(a, 1) * num_tokens * batch,
        attention_multiply_adds=batch * num_tokens * attention_multiply_adds(a, context),
        state_bytes=2 * batch * state_bytes(a),
    )


def _expert(a: ModelSizes) -> int:
    """Parameters of one expert."""
    return 3 * a.hidden_size * a.expert_size + (2 * a.expert_size + a.hidden_size) * a.expert_bias


def _shared(a: ModelSizes) -> int:
    """Parameters of what all rows go through in layers with experts."""
    return 3 * a.hidden_size * sum(a.shared_sizes) + a.num_expert_layers * a.hidden_size * a.has_shared_gate
