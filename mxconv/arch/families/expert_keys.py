"""The keys about experts that many families' config.json share, and the parts that follow from them."""

from dataclasses import replace
from typing import Any

from mxconv.arch.elements import Activation, Experts, Linear, Mixture, Mlp, Routing
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields


def routing(
    fields: Fields,
    name: str,
    chosen_key: str = "num_experts_per_tok",
    experts_keys: tuple[str, ...] = ("num_experts",),
    **changes: Any,
) -> Routing:
    """How rows choose: as many experts as `chosen_key` says, of those that there are.

    Args:
        name: of the router.
        experts_keys: what transformers calls the number of experts in this family, an alias first, since that wins.

    Raises:
        ModelError: a key is missing or ill-typed, or more would be chosen than there are.
    """
    experts_key = next((key for key in experts_keys if fields.values.get(key) is not None), experts_keys[-1])
    num_experts, num_chosen = fields.size(experts_key), fields.size(chosen_key)
    if num_chosen > num_experts:
        fields.reject(chosen_key, f"at most the number of experts, {num_experts}, is required")
    return replace(Routing(num_experts, num_chosen, Linear(name)), **changes)


def grouped_routing(fields: Fields) -> Routing:
    """DeepSeek's: sigmoids, of which a learned correction decides with them and does not count, and groups."""
    made = routing(fields, "mlp.gate", experts_keys=("num_local_experts", "n_routed_experts"))
    num_groups, chosen_groups = fields.size("n_group", 1), fields.size("topk_group", 1)
    group = made.num_experts // num_groups
    if made.num_experts % num_groups or (num_groups > 1 and group < 2):
        fields.reject("n_group", f"groups of two or more of the {made.num_experts} experts are required")
    if not made.num_chosen <= chosen_groups * group <= made.num_experts:
        fields.reject("topk_group", f"1 to n_group, with {made.num_chosen} experts or more among them, is required")
    return replace(
        made,
        score="sigmoid",
        is_normalized=fields.flag("norm_topk_prob", True),
        correction="mlp.gate.e_score_correction_bias",
        num_groups=num_groups,
        num_chosen_groups=chosen_groups,
        multiplier=fields.number("routed_scaling_factor", 1.0),
    )


def experts(
    size: int,
    activation: Activation,
    prefix: str = "mlp.experts",
    names: tuple[str, str, str] | None = ("gate_proj", "up_proj", "down_proj"),
    **changes: Any,
) -> Experts:
    """Experts of a size with Qwen's names, unless others are given; names are None where they are always stacked."""
    gate, up, down = (f"{prefix}.{{}}.{name}" for name in names or ("", "", ""))
    stacked = f"{prefix}.gate_up_proj", f"{prefix}.down_proj"
    return replace(Experts(size, activation, (gate, up, down) if names else None, stacked), **changes)


def shared_mlp(size: int, activation: Activation, prefix: str) -> Mlp:
    """An MLP for every row, beside the experts."""
    gate, up, down = (Linear(f"{prefix}.{name}") for name in ("gate_proj", "up_proj", "down_proj"))
    return Mlp(size, activation, up=up, down=down, gate=gate)


def gated_experts(fields: Fields, activation: Activation, is_normalized: bool = True, shared: int = 512) -> Mixture:
    """Qwen's experts beside one for all rows, of `shared` numbers where the file does not say, which a gate weighs."""
    shared_size = fields.size("shared_expert_intermediate_size", shared)
    return Mixture(
        routing(fields, "mlp.gate", is_normalized=is_normalized),
        experts(fields.size("moe_intermediate_size"), activation),
        shared=shared_mlp(shared_size, activation, "mlp.shared_expert"),
        shared_gate=Linear("mlp.shared_expert_gate"),
    )


def routed_and_shared(fields: Fields, routes: Routing, activation: Activation) -> Mixture:
    """DeepSeek's experts: those of `moe_intermediate_size`, and `n_shared_experts` of them in one for all rows."""
    size, num_shared = fields.size("moe_intermediate_size"), fields.values.get("n_shared_experts", 1)
    if num_shared not in (0, None):
        num_shared = fields.size("n_shared_experts", 1)
    shared = shared_mlp(size * num_shared, activation, "mlp.shared_experts") if num_shared else None
    return Mixture(routes, experts(size, activation), shared=shared)


def sparse_layers(keys: Keys) -> list[bool]:
    """Whether each layer has experts: every `decoder_sparse_step`-th, but not those of `mlp_only_layers`."""
    fields = keys.fields
    step, dense = fields.size("decoder_sparse_step", 1), fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        fields.reject("mlp_only_layers", "a list of layer numbers is required")
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(keys.num_hidden_layers)]


def first_dense(keys: Keys, default: int) -> list[bool]:
    """Whether each layer has experts: all but the first `first_k_dense_replace`."""
    count = keys.fields.values.get("first_k_dense_replace", default)
    if type(count) is not int or count < 0:
        keys.fields.reject("first_k_dense_replace", "a number of layers is required")
    return [layer >= count for layer in range(keys.num_hidden_layers)]


def mlps(sparse: list[bool], mixture: Mixture, keys: Keys, activation: Activation) -> list[Mlp | Mixture]:
    """Each layer's experts, or an MLP of `intermediate_size` where it has none."""
    return [mixture if has_experts else keys.gated_mlp(activation) for has_experts in sparse]
