"""Latent attention as the native decoder takes it."""

from mxconv.engine.latent_mixer import WeightedLatentAttention
from mxconv.engine.native_vectors import native_norm, native_projection, native_vector
from mxconv.kernels import _native


def native_latent(
    attention: WeightedLatentAttention, sight: _native.Sight, rotation: _native.HeadRotation, slot: int
) -> _native.Part:
    """Attention over the latent vectors in a slot of a cache.

    The matrices of heads' keys and values stay float32, as NumPy has them.
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
