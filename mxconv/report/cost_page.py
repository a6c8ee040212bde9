"""A cost report as one HTML page that needs nothing else: no network, dark mode, phones, charts with sliders."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxconv.cost.report import Question
from mxconv.report.cost_page_data import page_data
from mxconv.report.cost_tables import heading, report_tables
from mxconv.report.template import render
from mxconv.report.text import printable

if TYPE_CHECKING:  # of a package only; importing them takes longer than a cost report
    from mxconv.package.manifest import Manifest
    from mxconv.report.inspection import Inspection

LONGEST_LENGTH = 16  # of the sliders, unless more is asked for


def write_cost_page(
    question: Question,
    report: dict[str, Any],
    path: Path,
    manifest: "Manifest | None" = None,
    inspection: "Inspection | None" = None,
) -> None:
    """Write the page; an existing file is overwritten."""
    path.write_text(render_cost_page(question, report, manifest, inspection), encoding="utf-8")


def render_cost_page(
    question: Question,
    report: dict[str, Any],
    manifest: "Manifest | None" = None,
    inspection: "Inspection | None" = None,
) -> str:
    """The page's text. Every name from a file is escaped, by the template engine.

    Args:
        question: what was asked; the page's sliders start from it.
        report: what `cost_report` answered.
        manifest: of the package, with its certificate; None where there is only a config.json.
        inspection: of the package's weights.
    """
    data = page_data(question, report)
    machine, workload = heading(report)
    tables = list(report_tables(report))
    return render(
        "cost_page.html.j2",
        title=f"{printable(question.architecture.model_type)} on {printable(question.hardware.name)}",
        machine=machine,
        workload=workload,
        advice=next(table for name, table in tables if name == "advice"),
        tables=[table for name, table in tables if name not in ("advice", "predictions")],
        predictions=next((table for name, table in tables if name == "predictions"), None),
        advised=printable(
            next((row["strategy"] for row in report["advice"]["choices"] if row["num_draft_tokens"]), "")
        ),
        models=[entry["model"] for entry in report["models"]],
        data=data,
        longest=max(LONGEST_LENGTH, *data["lengths"]),
        batch_place=data["batches"].index(question.workload.batch),
        context_place=data["contexts"].index(question.workload.context),
        package=None if manifest is None else _package(manifest),
        certificate=None if manifest is None else _certificate(manifest),
        levels=[] if manifest is None else _levels(manifest),
        histogram=_histogram(inspection),
    )


def _package(manifest: "Manifest") -> dict[str, str]:
    source = manifest.source
    return {
        "source": printable(source.id + (f" at {source.commit}" if source.commit else "")),
        "dtype of the source": source.dtype + (", rounded from F32" if source.cast else ""),
        "codec": manifest.options.codec,
        "bits a weight": f"{manifest.bits_per_weight:.2f}",
        "lossless": "yes" if manifest.lossless else "no",
        "tensors": f"{len(manifest.tensors):,}",
        "files": f"{len(manifest.files):,}",
        "GB": f"{sum(file.num_bytes for file in manifest.files) / 1e9:.4g}",
        "made by": printable(manifest.created_by),
    }


def _levels(manifest: "Manifest") -> list[list[str]]:
    return [
        [printable(level.name), level.kind, level.codec or "-", ", ".join(level.shares) or "-", level.location]
        for level in manifest.levels
    ]


def _certificate(manifest: "Manifest") -> dict[str, str] | None:
    found = manifest.certificate
    if found is None:
        return None
    facts = {
        "bit-exact tensors": f"{found.num_bit_exact:,} of {found.num_tensors:,}",
        "compared with": "the source" if found.source_compared else "the recorded hashes",
        "lossless": "yes" if found.lossless else "no",
        "made by": printable(found.created_by),
    }
    if found.decode is not None:
        facts["level decoded"] = printable(manifest.decoded_level or "")
        facts["decoded with and without drafts"] = (
            f"{found.decode.num_tokens:,} tokens, {found.decode.num_prompts:,} prompts"
        )
        facts["token mismatches"] = f"{found.decode.num_token_mismatches:,}"
        facts["logit mismatches"] = f"{found.decode.num_logit_mismatches:,}"
    return facts


def _histogram(inspection: "Inspection | None") -> dict[str, Any] | None:
    if inspection is None:
        return None
    from mxconv.report.histogram import histogram

    return histogram(inspection.total.exponents)
