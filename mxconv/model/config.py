"""The architecture of a model, read from its config.json and checked before anything is allocated."""

from dataclasses import dataclass
from pathlib import Path

from mxconv.model.fields import Fields
from mxconv.model.rope_parameters import RopeParameters

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
MOST_LAYERS = 4096  # the deepest published models have a few hundred; sizes in a file are not trusted

DEFAULT_MAX_POSITIONS = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}  # as transformers


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of one decoder. Names follow config.json where it has them."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeParameters
    tie_word_embeddings: bool
    qkv_bias: bool  # on the query, key and value projections
    output_bias: bool  # on the attention's output projection
    mlp_bias: bool
    qk_norm: bool  # RMS norm over each head's query and key, before RoPE
    windows: tuple[int | None, ...]  # a layer: how many positions it sees, itself included; None is all

    @classmethod
    def from_file(cls, path: Path) -> "ModelConfig":
        """Read a config.json.

        Raises:
            CheckpointError: the file is missing, or no JSON object.
            ModelError: a key is missing or ill-typed, or the model is not supported.
        """
        return cls.from_fields(Fields.read(path))

    @classmethod
    def from_dict(cls, values: dict[str, object]) -> "ModelConfig":
        """The same from the parsed content of config.json."""
        return cls.from_fields(Fields(values, "config.json"))

    @classmethod
    def from_fields(cls, fields: Fields) -> "ModelConfig":
        model_type = fields.choice("model_type", MODEL_TYPES)
        fields.choice("hidden_act", ("silu",), default="silu")
        num_heads = fields.size("num_attention_heads")
        max_positions = fields.size("max_position_embeddings", DEFAULT_MAX_POSITIONS[model_type])
        num_layers = fields.size("num_hidden_layers")
        if num_layers > MOST_LAYERS:
            fields.reject("num_hidden_layers", f"at most {MOST_LAYERS} are supported")
        attention_bias = model_type in ("llama", "qwen3") and fields.flag("attention_bias", False)
        return cls(
            model_type=model_type,
            hidden_size=fields.size("hidden_size"),
            intermediate_size=fields.size("intermediate_size"),
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            num_key_value_heads=_num_key_value_heads(fields, num_heads),
            head_dim=_head_dim(fields, model_type, num_heads),
            vocab_size=fields.size("vocab_size"),
            max_position_embeddings=max_positions,
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope=RopeParameters.from_fields(fields, max_positions),
            tie_word_embeddings=fields.flag("tie_word_embeddings", False),
            qkv_bias=attention_bias or model_type == "qwen2",
            output_bias=attention_bias,
            mlp_bias=model_type == "llama" and fields.flag("mlp_bias", False),
            qk_norm=model_type == "qwen3",
            windows=_windows(fields, model_type, num_layers),
        )


def _num_key_value_heads(fields: Fields, num_heads: int) -> int:
    count = fields.size("num_key_value_heads", num_heads)
    if num_heads % count:
        fields.reject("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}, is required")
    return count


def _head_dim(fields: Fields, model_type: str, num_heads: int) -> int:
    hidden_size = fields.size("hidden_size")
    if fields.values.get("head_dim") is None and model_type != "qwen3" and hidden_size % num_heads:
        fields.reject("hidden_size", f"without head_dim, a multiple of num_attention_heads, {num_heads}, is required")
    # transformers gives a qwen3 config without the key 128, whatever the other sizes
    head_dim = fields.size("head_dim", 128 if model_type == "qwen3" else max(hidden_size // num_heads, 1))
    if head_dim % 2:
        name = "head_dim" if fields.values.get("head_dim") is not None else "hidden_size"
        fields.reject(name, f"RoPE rotates pairs, so an even head_dim is required, not {head_dim}")
    return head_dim


def _windows(fields: Fields, model_type: str, num_layers: int) -> tuple[int | None, ...]:
    """How many positions each layer sees: llama all, mistral a window, qwen a window in some layers."""
    if model_type == "llama":
        return (None,) * num_layers
    # transformers gives a config without the key 4096, while an explicit null means no window
    no_window = "sliding_window" in fields.values and fields.values["sliding_window"] is None
    window = None if no_window else fields.size("sliding_window", 4096)
    if model_type == "mistral":
        return (window,) * num_layers
    if not fields.flag("use_sliding_window", False):
        window = None
    if fields.values.get("layer_types") is not None:
        return _layer_windows(fields, num_layers, window)
    first = fields.values.get("max_window_layers", 28)
    if type(first) is not int or first < 0:
        fields.reject("max_window_layers", "an integer from 0 on is required")
    return tuple(window if layer >= first else None for layer in range(num_layers))


def _layer_windows(fields: Fields, num_layers: int, window: int | None) -> tuple[int | None, ...]:
    """The windows that the key layer_types asks for."""
    kinds = fields.values["layer_types"]
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        fields.reject("layer_types", f"a list of num_hidden_layers, {num_layers}, names is required")
    windows = {"full_attention": None, "sliding_attention": window}
    for kind in kinds:
        if not isinstance(kind, str) or kind not in windows:
            fields.reject("layer_types", f"mxconv supports {', '.join(windows)}", "Use a model of such a kind.")
    return tuple(windows[kind] for kind in kinds)
