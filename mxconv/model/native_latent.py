"""Latent attention as the native decoder takes it."""

from mxconv.kernels import _native
from mxconv.model.latent_mixer import WeightedLatentAttention
from mxconv.model.native_vectors import native_norm, native_projection, native_vector


def native_latent(
    attention: WeightedLatentAttention, slot: int, sight: _native.Sight, rotation: _native.HeadRotation
) -> _native.Part:
    """Attention over latent vectors; the matrices of heads' keys and values stay float32, as NumPy has them.

    Args:
        attention: with its tensors.
        slot: which it is among the layers that a cache has keys of.
        sight: what a token sees.
        rotation: of the parts of queries and keys that say where they are.
    """
    latent_norm = native_norm(attention.latent_norm)
    assert latent_norm is not None
    down = attention.query_down
    return _native.latent_attention(
        layer=slot,
        query_down=None if down is None else native_projection(down),
        query_norm=native_norm(attention.query_norm),
        query=native_projection(attention.query),
        down=native_projection(attention.down),
        latent_norm=latent_norm,
        key_up=native_vector(attention.key_up),
        value_up=native_vector(attention.value_up),
        output=native_projection(attention.output),
        scale=attention.parts.scale,
        sight=sight,
        rotation=rotation,
    )
