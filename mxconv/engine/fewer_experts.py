"""A draft of a mixture's own weights that sends each row to fewer experts than the model was trained with."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.mixture import Mixture
from mxconv.engine.experts import WeightedMixture
from mxconv.engine.mlp import WeightedMlp
from mxconv.errors import ModelError


def with_fewer(mlp: WeightedMlp | WeightedMixture | None, num_experts: int) -> WeightedMlp | WeightedMixture | None:
    """The same weights; an MLP without experts is as it was."""
    return mlp.with_fewer(num_experts) if isinstance(mlp, WeightedMixture) else mlp


def check_fewer(config: ModelConfig, num_experts: int, name: str) -> None:
    """Raises ModelError where no layer of a model sends rows to more experts than these."""
    chosen = [layer.mlp.routing.num_chosen for layer in config.layers if isinstance(layer.mlp, Mixture)]
    if not chosen:
        raise ModelError(
            f"{name}: {num_experts} experts of {config.model_type}, whose layers have none; a mixture of experts is "
            "required. Use another kind of draft."
        )
    if num_experts >= max(chosen):
        raise ModelError(
            f"{name}: {num_experts} experts of each layer; 0 to {max(chosen) - 1}, fewer than the {max(chosen)} that "
            "the model was trained with, are required."
        )
