"""Granite with experts, which are always stacked; a row's shares are the softmax of the experts that it chose."""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import Activation, Mlp
from mxconv.arch.families.expert_keys import experts, routing
from mxconv.arch.families.granite import granite
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields
from mxconv.arch.mixture import Mixture

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
