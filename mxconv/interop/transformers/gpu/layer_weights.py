"""Which weight of a package belongs to which linear layer of a torch model: that of its name, and of its shape."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn

from mxconv.errors import ModelError

if TYPE_CHECKING:
    from mxconv.kernels.triton.weight import Weight


def weights_of_layers(
    model: nn.Module, weights: "Mapping[str, Weight]", origin: str
) -> "dict[str, tuple[nn.Linear, Weight]]":
    """The linear layers for which there is a weight, by name. A head that is tied to the embeddings has theirs.

    Args:
        model: any torch model.
        weights: by the names of their tensors.
        origin: where they are from, for messages.

    Raises:
        ModelError: a weight has another shape than its layer, or no layer has one.
    """
    embeddings = {id(each.weight): name for name, each in model.named_modules() if isinstance(each, nn.Embedding)}
    found = {}
    for name, linear in model.named_modules():
        if type(linear) is not nn.Linear:
            continue
        tied = embeddings.get(id(linear.weight), name)
        weight = weights.get(f"{name}.weight", weights.get(f"{tied}.weight"))
        if weight is None:
            continue
        if (weight.rows, weight.columns) != tuple(linear.weight.shape):
            raise ModelError(
                f"{origin}: {name}.weight is {weight.rows} x {weight.columns}; {type(model).__name__} requires "
                f"{' x '.join(map(str, linear.weight.shape))}. Convert this model."
            )
        found[name] = (linear, weight)
    if not found:
        raise ModelError(
            f"{origin}: none of its matrices is a linear layer of {type(model).__name__}; one of the same name is "
            "required. Convert this model."
        )
    return found


def put_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of another."""
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, module)
