"""Granite with experts, which are always stacked; a row's shares are the softmax of the experts that it chose."""

from dataclasses import replace

from mxconv.model.config import ModelConfig
from mxconv.model.description import Activation, Mlp
from mxconv.model.families.expert_keys import experts, routing
from mxconv.model.families.granite import granite
from mxconv.model.families.keys import Keys
from mxconv.model.fields import Fields
from mxconv.model.mixture import Mixture

RENAMED = (  # as transformers 5 has them in memory
    (".experts.gate_up_proj", ".input_linear.weight"),
    (".experts.down_proj", ".output_linear.weight"),
    (".block_sparse_moe.router.weight", ".block_sparse_moe.router.layer.weight"),
)


def granitemoe(fields: Fields) -> ModelConfig:
    """`model_type` granitemoe."""
    dense = granite(Keys.ignoring(fields, "mlp_bias"))
    activation = Keys.read(fields, max_positions=2048).activation("hidden_act", "silu")
    mixture = granite_experts(fields, activation)
    return replace(dense, layers=tuple(replace(layer, mlp=mixture) for layer in dense.layers), renamed=RENAMED)


def granite_experts(fields: Fields, activation: Activation, shared: Mlp | None = None) -> Mixture:
    """Granite's, and those of Granite 4, which have an MLP for all rows beside them."""
    stacked = "block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"
    return Mixture(
        routing(
            fields, "block_sparse_moe.router.layer", experts_keys=("num_local_experts",), score="softmax_of_chosen"
        ),
        experts(fields.size("intermediate_size"), activation, names=None, stacked=stacked),
        shared=shared,
    )
