"""`mxconv verify`: proof that a package is whole, exact, and decodes as its target does."""

import os
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.common_options import WORKERS, Json, MaxNewTokens, Package, executors, grouped
from mxconv.cli.converted import find_or_build
from mxconv.cli.decode_options import Batch, Chat, Drafting, Runtime, SamplingOptions, System, check_system
from mxconv.cli.output import Output, progress_bars
from mxconv.cli.sharing_commands import AttestationOptions

if TYPE_CHECKING:
    from mxconv.verify import Verification


@grouped
def verify(
    package: Package,
    *,
    source: Annotated[str | None, typer.Option(help="The checkpoint to compare it with, bit for bit.")] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Convert the source again, and compare every byte; nothing is kept.")
    ] = False,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a Hub source; without --source, of a Hub package.")
    ] = None,
    decode: Annotated[
        Path | None,
        typer.Option(help="A .jsonl file of prompts (`prompt`, `messages`) to decode with and without drafts."),
    ] = None,
    max_new_tokens: MaxNewTokens = 64,
    chat: Chat = False,
    system: System = None,
    drafting: Drafting,
    sampling: SamplingOptions,
    batch: Batch = None,
    runtime: Runtime,
    workers: WORKERS = "threads",
    attested: AttestationOptions,
    write: Annotated[bool, typer.Option("--write", help="Store the result in the manifest.")] = False,
    json_output: Json = False,
) -> None:
    """Prove hashes, tensors and codes against the source.

    Prompts are decoded with and without drafts (--decode), and tokens and logits compared.
    """
    from contextlib import ExitStack
    from dataclasses import replace

    from mxconv.drafts.kinds import parse_draft
    from mxconv.kernels.engine import usable_processors
    from mxconv.open_source import open_source
    from mxconv.package.package_folder import check_writable
    from mxconv.speculation.selection import GREEDY_DEFAULTS, GenerationConfig, SamplingInUse
    from mxconv.text.messages import read_prompts
    from mxconv.verification.decode_proof import DecodeSettings, decode_by, verify_decoding
    from mxconv.verify import verify as verify_package
    from mxconv.verify import write_certificate

    check_system(system, chat)
    if chat and decode is None:
        raise typer.BadParameter("--chat needs --decode")
    if write and attested.attestation:
        raise typer.BadParameter("--write changes the manifest, which the attestation is about.")
    prompts = read_prompts(decode, chat, system) if decode else []
    # greedy by default, whatever the model recommends: strategies are compared
    selection = SamplingInUse.of(sampling.given, GenerationConfig(), GREEDY_DEFAULTS).selection(sampling.seed)
    if write:
        check_writable(package, "the certificate")
    with progress_bars() as progress:
        folder = find_or_build(package, None if source else revision, progress)
    attestation = attested.check(folder)
    with ExitStack() as stack:
        checkpoint = stack.enter_context(open_source(source, revision=revision)) if source else None
        executor = stack.enter_context(
            executors(workers, usable_processors() if runtime.threads is None else runtime.threads)
        )
        with progress_bars() as progress:
            verification = verify_package(folder, checkpoint, progress, executor=executor())
        if rebuild and verification.ok:
            from mxconv.rebuild import check_rebuild  # all of a conversion

            with progress_bars() as progress:
                check_rebuild(folder, source, progress, executor)
        if prompts and verification.ok:
            settings = DecodeSettings(
                folder.resolve(),
                drafting.names,
                [parse_draft(text) for text in drafting.draft or ()],
                drafting.lengths,
                drafting.thresholds,
                drafting.tree_size,
                max_new_tokens,
                selection,
                batch,
                runtime.kernel,
                runtime.threads,
                runtime.kv_dtype,
                runtime.weights,
                runtime.memory,
            )
            with progress_bars("prompts") as progress:
                if workers == "threads":  # all processors for one text after another
                    loaded, hierarchy = settings.open()
                    stack.callback(loaded.close)
                    record = verify_decoding(loaded, hierarchy, prompts, max_new_tokens, selection, progress, batch)
                else:
                    named = runtime.kernel or os.environ.get("MXCONV_KERNEL")  # which nodes may not have
                    record = decode_by(executor(), replace(settings, kernel=named, num_threads=1), prompts, progress)
            verification = replace(verification, decode=record.model_copy(update={"system": system}))
    if write and verification.ok:
        write_certificate(folder, verification)
    out = Output(json_output)
    if rebuild and verification.ok:
        num_files = len(verification.manifest.files) + 1
        out.line(f"{source or verification.manifest.source.id}: gives every byte of the {num_files} files")
    _print(verification, package, out, rebuild and verification.ok)
    if attestation is not None and verification.ok:
        out.line(f"signed by {', '.join(attestation.signers)}: {attestation.path}")
    out.json(
        _members(verification)
        | {"rebuilt": rebuild and verification.ok, "attestation": attestation and attestation.to_json()}
    )
    if not verification.ok:
        raise typer.Exit(1)


def _members(verification: "Verification") -> dict[str, Any]:
    tensors = [asdict(tensor) for tensor in verification.tensors]
    for tensor in tensors:  # JSON has no infinity: where a weight turned into one, `status` says so
        if tensor["max_abs_error"] is not None and not isfinite(tensor["max_abs_error"]):
            tensor["max_abs_error"] = None
    return {
        "ok": verification.ok,
        "lossless": verification.lossless,
        "num_tensors": len(tensors),
        "num_bit_exact": verification.num_bit_exact,
        "num_rebuilt": verification.num_rebuilt,
        "num_derived": verification.num_derived,
        "num_kept": verification.num_kept,
        "damaged_files": verification.damaged_files,
        "source_compared": verification.source_compared,
        "num_draft_tensors_given": len(given.tensors) if (given := verification.manifest.draft_weights) else 0,
        "rounded_from": verification.manifest.rounded_from,
        "tensors": tensors,
        "decode": verification.decode.model_dump() if verification.decode else None,
    }


def _print(verification: "Verification", package: str, out: Output, is_rebuilt: bool) -> None:
    for name in verification.damaged_files:
        out.line(f"damaged file {name}: its SHA-256 is not the recorded one", "red")
    for tensor in verification.tensors:
        if tensor.status in ("mismatch", "missing") or (tensor.status == "lossy" and tensor.sha256_reconstructed):
            error = "" if tensor.max_abs_error is None else f", largest error {tensor.max_abs_error:.3g}"
            detail = f": {tensor.detail}" if tensor.detail else ""
            out.line(f"{tensor.status} {tensor.name}{error}{detail}", "yellow")
    if not (is_rebuilt and verification.has_nothing_to_compare):
        out.line(verification.proof)
    if verification.decode is not None:
        d = verification.decode
        some = "" if d.num_chat_prompts == d.num_prompts else f"{d.num_chat_prompts} of them "
        chats = f" ({some}in the chat template)" if d.num_chat_prompts else ""
        batch = f", {d.batch} at a time with them" if d.batch else ""
        out.line(
            f"{d.num_tokens} tokens of {d.num_prompts} prompts{chats} decoded by {d.target}, with drafts and without"
            f"{batch}: {d.num_token_mismatches} token mismatches, {d.num_logit_mismatches} logit mismatches"
        )
    for note in (verification.given_note, verification.manifest.quantizer_note):
        if note is not None:
            out.line(note)
    verdict = "ok" if verification.ok else "not ok"
    out.line(
        f"{package}: {verdict}{', lossless' if verification.lossless else ''}", "green" if verification.ok else "red"
    )
