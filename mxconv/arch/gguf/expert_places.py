"""Where routers and experts stand in a GGUF file: one tensor a layer for each of an expert's matrices."""

from collections.abc import Iterator

from mxconv.arch.gguf.place import Place, Ranges
from mxconv.arch.mixture import Experts, Mixture
from mxconv.checkpoint.carried import ENDINGS

PARTS = ("gate", "up", "down")


def expert_places(mixture: Mixture) -> Iterator[tuple[str, Place]]:
    """Of all but what is shared: experts that the checkpoint has one by one, stacked, or as MXFP4."""
    routing, experts = mixture.routing, mixture.experts
    yield f"{routing.router.name}.weight", Place("ffn_gate_inp.weight", is_vector=True)
    if routing.router.has_bias:
        yield f"{routing.router.name}.bias", Place("ffn_gate_inp.bias")
    if routing.correction is not None:
        yield routing.correction, Place("exp_probs_b.bias")
    for name, part in zip(experts.apart or (), PARTS, strict=False):
        for expert in range(routing.num_experts):
            yield f"{name.format(expert)}.weight", Place(f"ffn_{part}_exps.weight", expert=expert)
    for part, stack, rows in zip(PARTS, (experts.stacked[0], *experts.stacked), _rows(experts), strict=True):
        for name in (stack, stack + ENDINGS["codes"]):
            yield name, Place(f"ffn_{part}_exps.weight", rows=rows)
        if experts.has_bias:
            yield f"{stack}_bias", Place(f"ffn_{part}_exps.bias", columns=rows, is_vector=True)
    if mixture.shared_gate is not None:
        yield f"{mixture.shared_gate.name}.weight", Place("ffn_gate_inp_shexp.weight", is_vector=True)


def _rows(experts: Experts) -> tuple[Ranges | None, ...]:
    """Of gates, ups and downs in their stacks."""
    size = experts.size
    if experts.is_interleaved:
        return (range(0, 2 * size, 2),), (range(1, 2 * size, 2),), None
    return (range(size),), (range(size, 2 * size),), None
