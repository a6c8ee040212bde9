"""`mxconv quantize --dry-run`: what would become of each tensor, and what that takes."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from mxconv.cli.output import Output
from mxconv.report.tables import format_bytes

if TYPE_CHECKING:
    from mxconv.conversion.preparation import Preparation

TABLE = {
    "tensor": ("name",),
    "dtype": ("dtype",),
    "shape": (lambda tensor: " x ".join(map(str, tensor["shape"])),),
    "codec": ("codec",),
    "why": ("reason",),
    "source": ("num_bytes_source", "bytes"),
    "quantized": (lambda tensor: tensor["num_bytes_quantized"] or None, "bytes"),
}


def plan_of(preparation: "Preparation", package: str, num_workers: int, seconds: float) -> dict[str, Any]:
    """The plan of a conversion to `package` as a JSON object; it took `seconds` to make."""
    from mxconv.conversion.describe import levels_of
    from mxconv.conversion.survey import quantized_arrays

    tensors: list[dict[str, Any]] = []
    rounded_from = Counter(s.plan.tensor.source_type for s in preparation.surveys if s.plan.is_cast)
    for survey in preparation.surveys:
        plan = survey.plan
        stored = sum(array.num_bytes for array in quantized_arrays(survey))
        tensors.append(
            {
                "name": plan.name,
                "dtype": plan.dtype,
                "shape": list(plan.tensor.shape),
                "codec": plan.codec,
                "reason": plan.reason,
                "num_bytes_source": plan.tensor.num_bytes_stored,
                "num_bytes_quantized": stored,
                "num_escapes": survey.num_escapes,
            }
        )
    written = sum(shard.num_bytes for shard in preparation.layout.shards)
    linked = sum(preparation.source_sizes.values()) if preparation.links_target else 0
    return {
        "package": package,
        "codec": preparation.options.codec,
        "num_tensors": len(tensors),
        "num_quantized": len(preparation.quantized),
        "num_bytes_source": preparation.num_bytes_source,
        "num_bytes_package": linked + written,
        "bits_per_weight": preparation.bits_per_weight,
        "lossless": preparation.is_lossless,
        "rounded_from": dict(rounded_from.most_common()),
        "seconds": seconds,
        "num_workers": num_workers,
        "worker_bytes": preparation.worker_bytes,
        "levels": [level.model_dump() for level in levels_of(preparation)],
        "tensors": tensors,
    }


def print_plan(result: dict[str, Any], out: Output) -> None:
    """Print a plan as a table."""
    out.table(TABLE, result["tensors"])
    out.line(
        f"{format_bytes(result['num_bytes_source'])} would become {format_bytes(result['num_bytes_package'])}. "
        "Nothing was written."
    )
    print_exactness(result, out)
    out.line(f"{result['num_workers']} workers would each need {format_bytes(result['worker_bytes'])} of memory.")


def print_exactness(result: dict[str, Any], out: Output) -> None:
    """Print what of a package is exact, and what its draft is: a line each, of a plan or of a package."""
    rounded = ", ".join(result["rounded_from"])
    weights = "the source's weights" + (f", rounded from {rounded} to 16 bits," if rounded else "")
    quantized = f"{result['num_quantized']} of {result['num_tensors']} tensors"
    if result["codec"] == "bsfp":
        exact = f"exact, {weights} rebuilt bit for bit" if result["lossless"] else "not exact, outliers were rescaled"
        target = f"{exact}; {result['bits_per_weight']:.2f} bits a weight of {quantized}, the others in 16"
        draft = "4 of these bits (BSFP), which take no bytes of their own"
    else:
        kept = "" if rounded else " as they are"
        where = kept if result["lossless"] else ", which stay there and are no part of the package"
        target = f"exact, {weights.rstrip(',')}{where}"
        draft = (
            f"{quantized} in 4 bits (MXFP4), {result['bits_per_weight']:.2f} a weight with scales and the output head"
        )
    out.line(f"target: {target}\ndraft: {draft}")
