"""`mxconv quantize`: a checkpoint becomes a package."""

import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.common_options import MEMORY, WORKERS, Json, Revision, choice, executors, offered_drafts, size_option
from mxconv.cli.converted import package_name
from mxconv.cli.output import CommandPage, Output, progress_bars
from mxconv.report.tables import format_bytes

if TYPE_CHECKING:
    from mxconv.conversion.preparation import Preparation
    from mxconv.package.manifest import Manifest
    from mxconv.progress import Progress


TABLE = {
    "tensor": ("name",),
    "dtype": ("dtype",),
    "shape": (lambda tensor: " x ".join(map(str, tensor["shape"])),),
    "codec": ("codec",),
    "why": ("reason",),
    "source": ("num_bytes_source", "bytes"),
    "quantized": (lambda tensor: tensor["num_bytes_quantized"] or None, "bytes"),
}


class QuantizeCommand(CommandPage):
    """`--calibrate` without a file, before another option or at the end, takes the prompts that come with mxconv.

    Typer knows no option whose value may be left out.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list[str]()
        for word, following in zip(args, [*args[1:], "-"], strict=False):
            given.append(word)
            if word == "--calibrate" and following.startswith("-"):
                from mxconv.conversion.calibration_texts import OWN_PROMPTS

                given.append(str(OWN_PROMPTS))
        return super().parse_args(ctx, given)


def quantize(
    source: Annotated[str, typer.Argument(help="Checkpoint folder, .safetensors or .gguf file, Hub model id, or URL.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="The package: a new folder, or s3://BUCKET/FOLDER; ./NAME-CODEC by default.",
        ),
    ] = None,
    codec: Annotated[str, choice("How matrices are stored", "mxfp4", "bsfp")] = "mxfp4",
    scale_rule: Annotated[
        str | None,
        choice("MXFP4 block scales; ocp by default, mse with --calibrate", "ocp", "even", "ceil", "ggml", "mse"),
    ] = None,
    lm_head: Annotated[
        str | None,
        choice(
            "Output head of the draft: 8 bits (MXFP4's default), all of BSFP's bits, 4 bits (BSFP's default) or 16",
            *("int8", "exact", "quantize", "keep"),
        ),
    ] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Names of tensors to leave in 16 bits. Repeatable.")] = None,
    outliers: Annotated[str, choice("BSFP outliers: exact, or SPEQ's Algorithm 1", "exact", "rescale")] = "exact",
    segments: Annotated[str, choice("BSFP segment table: fitted, or SPEQ's", "fitted", "paper")] = "fitted",
    residual_bits: Annotated[str, choice("BSFP residual width", "auto", "8", "9", "10", "11", "12")] = "auto",
    on_nonfinite: Annotated[str, choice("What a tensor with NaN or infinity becomes", "error", "keep")] = "error",
    dtype: Annotated[str | None, choice("Round F32 weights, or a quantized GGUF, to this type", "bf16", "fp16")] = None,
    target: Annotated[
        str | None, choice("MXFP4: include the 16-bit weights, as local ones by default", "include", "reference")
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="A further level, outermost first: checkpoint:PATH, package:PATH, "
            "streaming, retrieval, fewer-experts:NUMBER, speculator:PATH, medusa:PATH, "
            "spire:PATH, eagle3:PATH, dflash:PATH, gemma4-assistant:PATH, mtp, "
            "prompt-lookup, ngram:TABLE, each [,num_draft_tokens=N,confidence=P]. "
            "Repeatable.",
            autocompletion=offered_drafts,
        ),
    ] = None,
    draft_weights: Annotated[
        Path | None,
        typer.Option(
            help="Codes and scales of matrices that another program chose, such as `mxconv train self-draft`: "
            "a draft file, see formats/package.md."
        ),
    ] = None,
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="[FILE]",
            help="Choose the draft's codes by texts like those that it will draft: a text file, or JSONL with "
            "`text`, or with `prompt` or `messages`, which the target answers. Without a file, prompts that come with "
            "mxconv. Takes minutes; the target stays as it is. Repeatable.",
        ),
    ] = None,
    calibration_tokens: Annotated[int, typer.Option(help="Most tokens of these texts and answers.")] = 16_384,
    head_screen: Annotated[
        bool | None,
        typer.Option(
            "--head-screen/--no-head-screen",
            help="Let a small matrix choose which rows of a large output head the draft reads; made by --calibrate, or "
            "alone, in minutes.",
        ),
    ] = None,
    revision: Revision = None,
    max_shard_bytes: Annotated[int, size_option("Size of the largest file to write.")] = 5_000_000_000,
    threads: Annotated[int | None, typer.Option(help="Tensors at a time; all processors by default.")] = None,
    workers: WORKERS = "threads",
    memory: MEMORY = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would become of each tensor.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing package.")] = False,
    json_output: Json = False,
) -> None:
    """Convert a 16-bit checkpoint to MXFP4 or BSFP."""
    from mxconv.checkpoint.object_store import Store
    from mxconv.conversion.options import QuantizeOptions
    from mxconv.conversion.preparation import prepare
    from mxconv.convert import convert
    from mxconv.errors import MxconvError
    from mxconv.open_source import open_source
    from mxconv.package.staging import check_target, parse_target
    from mxconv.system.processor import usable_processors

    if residual_bits != "auto" and not residual_bits.isdecimal():
        raise typer.BadParameter(f"--residual-bits: {residual_bits!r}; auto or a number from 8 to 12 is required.")
    rule = scale_rule or ("mse" if calibrate and codec == "mxfp4" else "ocp")
    choices: dict[str, Any] = {"codec": codec, "scale_rule": rule, "lm_head": lm_head, "outliers": outliers}
    choices |= {"segments": segments, "on_nonfinite": on_nonfinite, "dtype": dtype, "target": target}
    try:
        options = QuantizeOptions(
            **choices,  # it checks them
            skip=tuple(skip or ()),
            residual_bits=None if residual_bits == "auto" else int(residual_bits),
            drafts=tuple(draft or ()),
            calibrate=tuple(map(str, calibrate or ())),
            calibration_tokens=calibration_tokens,
            head_screen=head_screen is not False,
            fits_screen=head_screen is True and not calibrate,
            draft_weights=None if draft_weights is None else str(draft_weights),
            max_shard_bytes=max_shard_bytes,
            num_threads=usable_processors() if threads is None else threads,
            memory_bytes=memory,
            force=force,
        )
    except MxconvError as error:
        raise typer.BadParameter(str(error)) from error
    if output is None:
        output = f"./{package_name(source, codec)}"
        print(f"No --output was given: the package is {output}", file=sys.stderr)
    package = parse_target(output)
    check_target(package, force)
    begin = time.perf_counter()
    with (
        open_source(source, revision=revision) as checkpoint,
        progress_bars() as progress,
        executors(workers, options.num_threads, memory) as executor,
    ):
        if dry_run:
            work = executor()
            preparation = prepare(checkpoint, options, progress, work, to_store=isinstance(package, Store))
            result = _plan_of(preparation, str(package), work.num_workers, time.perf_counter() - begin)
        else:
            shown = _with_estimate(progress) if calibrate else progress
            manifest = convert(checkpoint, package, options, shown, executor)
            num_bytes_source = sum(tensor.num_bytes_stored for tensor in checkpoint.tensors.values())
            result = _result(manifest, str(package), num_bytes_source, time.perf_counter() - begin)
    out = Output(json_output)
    if checkpoint.note is not None:
        out.line(f"note: {checkpoint.note}")
    if dry_run:
        _print_plan(result, out)
    else:
        _print_result(result, manifest.quantizer_note, out)
        if manifest.draft_weights is not None and "agreement" in manifest.draft_weights.description:
            found = manifest.draft_weights.description["agreement"]
            shares = (f"{found[name]:.2f}".removeprefix("0") for name in ("cast", "calibrated"))
            out.line(f"agreement {' -> '.join(shares)} ({found['num_tokens']} tokens that were held out)")
            if "kept" in manifest.draft_weights.description:
                out.line("These texts did not help: the draft has the codes of the direct cast.")
        else:
            out.line(manifest.draft_quality)  # and the command that shows or mends it
        if head_screen and not any(level.screen for level in manifest.levels):
            out.line("No head screen: the vocabulary is small, or it would miss one likeliest token in a hundred.")
    out.json(result)


def _with_estimate(progress: "Progress") -> "Progress":
    """Return a progress that says, after the first layer of a calibration, how long the others take."""
    from mxconv.progress import CALIBRATED_LAYERS

    begins = list[float]()

    def show(stage: str, done: int, total: int) -> None:
        progress(stage, done, total)
        if stage == CALIBRATED_LAYERS and done <= 1:
            begins.append(time.perf_counter())
            if done == 1 < total:
                seconds = begins[1] - begins[0]
                rest = seconds * (total - 1)
                left = f"{rest / 60:.0f} minutes" if rest >= 90 else f"{rest:.0f} s"
                print(
                    f"calibration: layer 1 of {total} took {seconds:.1f} s, the others take about {left}",
                    file=sys.stderr,
                )

    return show


def _result(manifest: "Manifest", package: str, num_bytes_source: int, seconds: float) -> dict[str, Any]:
    from mxconv.system.processor import peak_rss_bytes

    own = {record.path: record.num_bytes for record in manifest.files}
    target, draft = (set(level.files or ()) for level in manifest.levels[:2])
    return {
        "package": package,
        "codec": manifest.options.codec,
        "num_tensors": len(manifest.tensors),
        "num_quantized": sum(record.is_quantized for record in manifest.tensors),
        "num_bytes_source": num_bytes_source,
        "num_bytes_package": sum(record.num_bytes for record in manifest.files),
        "num_bytes_target": sum(own.get(name, 0) for name in target),
        "num_bytes_draft": sum(own.get(name, 0) for name in draft - target),
        "bits_per_weight": manifest.bits_per_weight,
        "lossless": manifest.lossless,
        "rounded_from": manifest.rounded_from,
        "seconds": seconds,
        "input_gigabytes_per_second": num_bytes_source / seconds / 1e9,
        "peak_rss_bytes": peak_rss_bytes(),
        "levels": [level.model_dump() for level in manifest.levels],
    }


def _print_result(result: dict[str, Any], note: str | None, out: Output) -> None:
    own = result["num_bytes_target"], result["num_bytes_draft"]
    parts = f", {' of the target and '.join(map(format_bytes, own))} of its draft," if all(own) else ""
    out.line(
        f"{result['package']}: {format_bytes(result['num_bytes_source'])} became "
        f"{format_bytes(result['num_bytes_package'])}{parts} in {result['seconds']:.1f} s "
        f"({result['input_gigabytes_per_second']:.2f} GB/s of input, peak memory "
        f"{format_bytes(result['peak_rss_bytes'])})"
    )
    _print_exactness(result, out)
    if len(result["levels"]) > 2:
        out.line("levels: " + " <- ".join(level["name"] for level in result["levels"]))
    if note is not None:
        out.line(note)


def _plan_of(preparation: "Preparation", package: str, num_workers: int, seconds: float) -> dict[str, Any]:
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


def _print_plan(result: dict[str, Any], out: Output) -> None:
    """Print a plan as a table."""
    out.table(TABLE, result["tensors"])
    out.line(
        f"{format_bytes(result['num_bytes_source'])} would become {format_bytes(result['num_bytes_package'])}. "
        "Nothing was written."
    )
    _print_exactness(result, out)
    out.line(f"{result['num_workers']} workers would each need {format_bytes(result['worker_bytes'])} of memory.")


def _print_exactness(result: dict[str, Any], out: Output) -> None:
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
