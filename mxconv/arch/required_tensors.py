"""The tensors that a described model requires, by the decoder's own names, with their shapes.

    required_tensors(describe_file(folder / "config.json"), names)["model.norm.weight"]    # (hidden_size,)

Decoders take the same tensors by the same shapes; a test compares the two for every family.
"""

from collections.abc import Container, Iterator

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LatentAttention, LayerParts, Mixer
from mxconv.arch.elements import Convolution, GatedDeltaNet, Linear, Mamba2, Mixture, Mlp, Norm, ShortConvolution

Shape = tuple[int, ...]
Shapes = Iterator[tuple[str, Shape]]


def required_tensors(config: ModelConfig, names: Container[str]) -> dict[str, Shape]:
    """Return the shape of every tensor that the model requires, by name.

    Args:
        config: the description.
        names: the decoder's own names of the tensors that there are. They decide where a checkpoint may have one
            tensor or another: experts that are stacked or apart, in 16 bits or as MXFP4.

    Returns:
        Shapes as decoders read them: matrices (out_features, in_features), or exchanged where the description says
        so; stacks of experts (experts, out_features, in_features), whichever axes a checkpoint has.
    """
    hidden = config.hidden_size
    found: dict[str, Shape] = {config.embedding: (config.vocab_size, hidden)}
    if not config.tie_word_embeddings:
        found[f"{config.head}.weight"] = (config.vocab_size, hidden)
    if config.positions is not None:
        found[config.positions] = (config.max_position_embeddings, hidden)
    if (inputs := config.layer_inputs) is not None:
        width = config.num_hidden_layers * inputs.size
        found[inputs.table] = (config.vocab_size, width)
        found |= dict(_linear(inputs.projection, width, hidden)) | dict(_norm(inputs.norm, inputs.size))
    for index, layer in enumerate(config.layers):
        prefix = f"{config.layer_prefix}.{index}."
        found |= {prefix + name: shape for name, shape in _layer(layer, hidden, prefix, names)}
    return found | dict(_norm(config.final_norm, hidden))


def _layer(layer: LayerParts, hidden: int, prefix: str, names: Container[str]) -> Shapes:
    yield from mixer_tensors(layer.mixer, hidden)
    if isinstance(layer.mlp, Mixture):
        yield from _mixture(layer.mlp, hidden, prefix, names)
    elif layer.mlp is not None:
        yield from _mlp(layer.mlp, hidden)
    for norm in (layer.before_mixer, layer.after_mixer, layer.before_mlp, layer.after_mlp):
        yield from _norm(norm, hidden)
    if (own := layer.layer_input) is not None:
        yield from _linear(own.gate, own.size, hidden)
        yield from _linear(own.projection, hidden, own.size)
        yield from _norm(own.norm, hidden)
    yield from _vector(layer.scalar, 1)


def mixer_tensors(mixer: Mixer, hidden: int) -> Shapes:
    """Yield the tensors of what mixes the tokens of a layer, by their names in the layer."""
    match mixer:
        case Attention():
            yield from _attention(mixer, hidden)
        case LatentAttention():
            yield from _latent_attention(mixer, hidden)
        case ShortConvolution():
            yield from _linear(mixer.inputs, 3 * mixer.size, hidden)
            yield from _convolution(mixer.convolution, mixer.size)
            yield from _linear(mixer.output, hidden, mixer.size)
        case GatedDeltaNet():
            yield from _delta_net(mixer, hidden)
        case Mamba2():
            yield from _linear(mixer.inputs, mixer.size + mixer.state.input_size, hidden)
            yield from _convolution(mixer.convolution, mixer.state.num_channels)
            for name in (mixer.step_bias, mixer.decay_log, mixer.skip):
                yield from _vector(name, mixer.num_heads)
            yield from _norm(mixer.norm, mixer.size)
            yield from _linear(mixer.output, hidden, mixer.size)


def _attention(mixer: Attention, hidden: int) -> Shapes:
    queries, keys = mixer.num_heads * mixer.head_dim, mixer.num_key_value_heads * mixer.head_dim
    spans = (queries, keys) if mixer.norm_span == "row" else (mixer.head_dim, mixer.head_dim)
    has_keys = mixer.source is None
    if mixer.fused:
        yield from _linear(mixer.query, queries + 2 * keys, hidden)
    else:
        yield from _linear(mixer.query, 2 * queries if mixer.is_gated else queries, hidden)
        if has_keys:
            yield from _linear(mixer.key, keys, hidden)
        if has_keys and not mixer.keys_are_values:
            yield from _linear(mixer.value, keys, hidden)
    yield from _linear(mixer.output, hidden, queries)
    yield from _norm(mixer.query_norm, spans[0])
    if has_keys:
        yield from _norm(mixer.key_norm, spans[1])
        yield from _norm(mixer.value_norm, mixer.head_dim)
    yield from _vector(mixer.sinks, mixer.num_heads)


def _latent_attention(mixer: LatentAttention, hidden: int) -> Shapes:
    heads = mixer.num_heads
    if mixer.query_down is not None:
        yield from _linear(mixer.query_down, mixer.query_rank, hidden)
        yield from _norm(mixer.query_norm, mixer.query_rank)
    yield from _linear(mixer.query, heads * (mixer.plain_size + mixer.rotated_size), mixer.query_rank)
    yield from _linear(mixer.down, mixer.head_dim, hidden)
    yield from _norm(mixer.latent_norm, mixer.latent_size)
    yield from _linear(mixer.up, heads * (mixer.plain_size + mixer.value_size), mixer.latent_size)
    yield from _linear(mixer.output, hidden, heads * mixer.value_size)


def _delta_net(mixer: GatedDeltaNet, hidden: int) -> Shapes:
    heads, mixed = mixer.num_value_heads, 2 * mixer.num_keys + mixer.num_values
    yield from _linear(mixer.queries_keys_values, mixed + (mixer.num_values if mixer.fused else 0), hidden)
    yield from _linear(mixer.beta, 2 * heads if mixer.fused else heads, hidden)
    if not mixer.fused:
        yield from _linear(mixer.gate, mixer.num_values, hidden)
        yield from _linear(mixer.decay, heads, hidden)
    yield from _convolution(mixer.convolution, mixed)
    yield from _vector(mixer.decay_bias, heads)
    yield from _vector(mixer.decay_log, heads)
    yield from _norm(mixer.norm, mixer.value_dim)
    yield from _linear(mixer.output, hidden, mixer.num_values)


def _mlp(mlp: Mlp, hidden: int) -> Shapes:
    if mlp.gate is not None:
        yield from _linear(mlp.gate, 2 * mlp.size if mlp.fused else mlp.size, hidden)
    if not mlp.fused:
        yield from _linear(mlp.up, mlp.size, hidden)
    yield from _linear(mlp.down, hidden, mlp.size)


def _mixture(mixture: Mixture, hidden: int, prefix: str, names: Container[str]) -> Shapes:
    from mxconv.checkpoint.stacked import BLOCK_BYTES, ENDINGS  # here: a cost, which asks for mixers, needs no NumPy

    routing, experts, count = mixture.routing, mixture.experts, mixture.routing.num_experts
    yield from _linear(routing.router, count, hidden)
    yield from _vector(routing.correction, count)
    yield from _vector(routing.multipliers, count)
    yield from _vector(routing.input_weights, hidden)
    yield from _norm(routing.norm, hidden)
    shapes = (2 * experts.size, hidden), (hidden, experts.size)
    stack = prefix + experts.stacked[0]
    if experts.apart is not None and stack not in names and stack + ENDINGS["codes"] not in names:
        for name, shape in zip(experts.apart, (shapes[1][::-1], shapes[1][::-1], shapes[1]), strict=True):
            yield from ((f"{name.format(expert)}.weight", shape) for expert in range(count))
    else:
        for name, (rows, columns) in zip(experts.stacked, shapes, strict=True):
            if prefix + name + ENDINGS["codes"] in names:
                blocks = count, rows, columns // (2 * BLOCK_BYTES)
                yield name + ENDINGS["codes"], (*blocks, BLOCK_BYTES)
                yield name + ENDINGS["scales"], blocks
            else:
                yield name, (count, rows, columns)
            if experts.has_bias:
                yield f"{name}_bias", (count, rows)
    if mixture.shared is not None:
        yield from _mlp(mixture.shared, hidden)
    if mixture.shared_gate is not None:
        yield from _linear(mixture.shared_gate, 1, hidden)
    for norm in (mixture.before_experts, mixture.after_experts, mixture.before_shared, mixture.after_shared):
        yield from _norm(norm, hidden)


def _linear(linear: Linear, out_features: int, in_features: int) -> Shapes:
    yield f"{linear.name}.weight", (in_features, out_features) if linear.is_transposed else (out_features, in_features)
    if linear.has_bias:
        yield f"{linear.name}.bias", (out_features,)


def _norm(norm: Norm | None, length: int) -> Shapes:
    if norm is not None:
        parameters = {"weight": norm.has_weight, "bias": norm.has_bias}
        yield from ((f"{norm.name}.{name}", (length,)) for name, is_there in parameters.items() if is_there)


def _convolution(convolution: Convolution, num_channels: int) -> Shapes:
    yield f"{convolution.name}.weight", (num_channels, 1, convolution.kernel_size)
    if convolution.has_bias:
        yield f"{convolution.name}.bias", (num_channels,)


def _vector(name: str | None, length: int) -> Shapes:
    if name is not None:
        yield name, (length,)
