"""What the mixer of one layer stores, reads and computes: attention, or a recurrence with a state."""

from dataclasses import dataclass

from mxconv.arch.description import Attention, LayerParts, Linear, Norm
from mxconv.arch.latent import LatentAttention
from mxconv.arch.state_mixers import GatedDeltaNet, Recurrent, ShortConvolution


@dataclass(frozen=True)
class MixerCount:
    """Numbers of one layer.

    Args:
        weights: of its matrices.
        vectors: of its biases, sinks and norms of its own, and of what a recurrence has beside matrices.
        kv_values: that one new token reads of a cached position; of latent vectors, which are keys and values at once.
        multiply_adds: of one new token with one cached position.
        window: positions that it sees, None is all.
        state_values: float32 numbers of the state of one sequence, which a pass reads and writes.
        row_values: float32 numbers that are kept of a row, so that its state can be had again when others fall.
        state_multiply_adds: of one new token with the state, whatever stands before it.
    """

    weights: int
    vectors: int
    kv_values: int
    multiply_adds: int
    window: int | None = None
    state_values: int = 0
    row_values: int = 0
    state_multiply_adds: int = 0

    def positions(self, context: float) -> float:
        """Cached ones that a new token attends to."""
        return context if self.window is None else min(context, self.window)

    @classmethod
    def of(cls, layer: LayerParts, hidden_size: int) -> "MixerCount":
        """Of a layer as its description has it."""
        if isinstance(layer.mixer, LatentAttention):
            return _latent(layer.mixer, hidden_size)
        if isinstance(layer.mixer, Attention):
            return _grouped(layer.mixer, hidden_size)
        return _recurrent(layer.mixer, hidden_size)


def _grouped(mixer: Attention, hidden_size: int) -> MixerCount:
    """Of attention over heads; layers that read another's keys and values store none, and read as much."""
    queries, keys = mixer.num_heads * mixer.head_dim, mixer.num_key_value_heads * mixer.head_dim
    outputs: list[tuple[Linear, int]] = [(mixer.query, queries * (2 if mixer.is_gated else 1))]
    if mixer.source is None:
        outputs.append((mixer.key, keys))
    if mixer.source is None and not mixer.keys_are_values:
        outputs.append((mixer.value, keys))
    return MixerCount(
        weights=hidden_size * (sum(length for _, length in outputs) + queries),
        vectors=sum(length * linear.has_bias for linear, length in outputs)
        + hidden_size * mixer.output.has_bias
        + mixer.num_heads * (mixer.sinks is not None),
        kv_values=2 * keys,
        multiply_adds=2 * queries,
        window=mixer.window,
    )


def _latent(mixer: LatentAttention, hidden_size: int) -> MixerCount:
    down = mixer.query_down
    queries = mixer.query_rank * mixer.num_heads * (mixer.plain_size + mixer.rotated_size)
    ups = mixer.latent_size * mixer.num_heads * (mixer.plain_size + mixer.value_size)
    return MixerCount(
        weights=(0 if down is None else hidden_size * mixer.query_rank)
        + queries
        + hidden_size * mixer.head_dim
        + ups
        + mixer.num_heads * mixer.value_size * hidden_size,
        vectors=(mixer.query_rank if down is not None and down.has_bias else 0)
        + mixer.head_dim * mixer.down.has_bias
        + hidden_size * mixer.output.has_bias,
        kv_values=mixer.head_dim,
        multiply_adds=mixer.num_heads * (mixer.head_dim + mixer.latent_size),
    )


def _recurrent(mixer: Recurrent, hidden_size: int) -> MixerCount:
    """Of a mixer with a state. Its memory is scaled, read and added to: three products a number of it or four."""
    sizes = mixer.state
    heads, rows, columns = sizes.memory
    memory = heads * rows * columns
    if isinstance(mixer, ShortConvolution):
        linears, norm, parameters, products = [(mixer.inputs, 3 * mixer.size)], 0, 0, 2 * mixer.size
        inner = mixer.size
    elif isinstance(mixer, GatedDeltaNet):
        num_values = mixer.num_values
        linears = [
            (mixer.queries_keys_values, 2 * mixer.num_keys + num_values),
            (mixer.gate, num_values),
            (mixer.beta, mixer.num_value_heads),
            (mixer.decay, mixer.num_value_heads),
        ]
        norm, parameters = norm_numbers(mixer.norm, mixer.value_dim), 2 * mixer.num_value_heads
        products, inner = 4 * memory, num_values
    else:
        linears = [(mixer.inputs, mixer.size + sizes.num_channels + mixer.num_heads)]
        norm, parameters = norm_numbers(mixer.norm, mixer.size), 3 * mixer.num_heads
        products, inner = 3 * memory, mixer.size
    convolution = sizes.num_channels * sizes.kernel_size
    biases = sum(length * linear.has_bias for linear, length in linears) + hidden_size * mixer.output.has_bias
    return MixerCount(
        weights=hidden_size * (sum(length for _, length in linears) + inner),
        vectors=biases + convolution + sizes.num_channels * mixer.convolution.has_bias + norm + parameters,
        kv_values=0,
        multiply_adds=0,
        state_values=(sizes.kernel_size - 1) * sizes.num_channels + memory,
        row_values=sizes.input_size,
        state_multiply_adds=convolution + products,
    )


def norm_numbers(norm: Norm | None, length: int) -> int:
    """That a norm over so many numbers stores."""
    return 0 if norm is None else length * (norm.has_weight + norm.has_bias)
