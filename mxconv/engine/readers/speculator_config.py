"""The sizes of an MLP speculator, read from the config.json that the Hub's accelerators have."""

from dataclasses import dataclass
from pathlib import Path

from mxconv.arch.fields import Fields

MOST_STAGES = 64  # tokens that a proposal may have
MOST_CANDIDATES = 64


@dataclass(frozen=True)
class SpeculatorConfig:
    """Names follow config.json.

    Args:
        vocab_size: tokens that every stage chooses from.
        emb_dim: hidden size of the target whose last normed state it reads.
        inner_dim: length of its own states.
        n_predict: stages, a token each.
        top_k_tokens_per_head: how many tokens each stage proposes behind each of the one before, in its candidate tree.
        n_candidates: paths of that tree that are kept.
        tie_weights: whether all stages have one embedding, one norm and one head, and all but the first one projection.
        scale_input: whether the target's state is normed and divided by the square root of 2 first.
    """

    vocab_size: int
    emb_dim: int
    inner_dim: int
    n_predict: int
    top_k_tokens_per_head: tuple[int, ...]
    n_candidates: int
    tie_weights: bool
    scale_input: bool

    @classmethod
    def from_file(cls, path: Path) -> "SpeculatorConfig":
        """Read a config.json.

        Raises:
            CheckpointError: the file is missing, or no JSON object.
            ModelError: it is no MLP speculator, or a key is missing or ill-typed.
        """
        fields = Fields.read(path)
        fields.choice("model_type", ("mlp_speculator",))
        emb_dim, n_predict = fields.size("emb_dim"), fields.size("n_predict")
        if n_predict > MOST_STAGES:
            fields.reject("n_predict", f"at most {MOST_STAGES} stages are supported")
        return cls(
            vocab_size=fields.size("vocab_size"),
            emb_dim=emb_dim,
            # 0 stands for emb_dim
            inner_dim=emb_dim if fields.values.get("inner_dim") == 0 else fields.size("inner_dim", emb_dim),
            n_predict=n_predict,
            top_k_tokens_per_head=_top_k(fields, n_predict),
            n_candidates=min(fields.size("n_candidates", 5), MOST_CANDIDATES),
            tie_weights=fields.flag("tie_weights", False),
            scale_input=fields.flag("scale_input", False),
        )

    @property
    def hidden_size(self) -> int:
        """Of the target."""
        return self.emb_dim

    @property
    def least_layers(self) -> int:
        return 1

    def to_dict(self) -> dict[str, object]:
        """What config.json holds."""
        return {
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "model_type": "mlp_speculator",
            **{key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()},
        }


def _top_k(fields: Fields, n_predict: int) -> tuple[int, ...]:
    """A number a stage; without the key 5, 4, 3 and then 2."""
    counts = fields.values.get("top_k_tokens_per_head")
    if counts is None:
        return tuple(max(5 - stage, 2) for stage in range(n_predict))
    if (
        not isinstance(counts, list)
        or len(counts) != n_predict
        or not all(type(count) is int and 1 <= count <= MOST_CANDIDATES for count in counts)
    ):
        fields.reject(
            "top_k_tokens_per_head",
            f"a list of n_predict, {n_predict}, numbers from 1 to {MOST_CANDIDATES} is required",
        )
    return tuple(counts)
