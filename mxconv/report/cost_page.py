"""A cost report as one HTML page: tables and pictures of every model, and the package of the question."""

from typing import TYPE_CHECKING, Any

from mxconv.cost.answers import Question
from mxconv.report.cost_picture import draw_figure
from mxconv.report.cost_tables import heading, report_tables
from mxconv.report.html_page import PageSection, render_page
from mxconv.report.picture import picture_uri
from mxconv.report.tables import NOTHING, TextTable, printable

if TYPE_CHECKING:  # for a package only; importing them takes longer than a cost report
    from mxconv.package.manifest import Manifest
    from mxconv.report.inspection import Inspection


def render_cost_page(
    question: Question,
    report: dict[str, Any],
    manifest: "Manifest | None" = None,
    inspection: "Inspection | None" = None,
) -> str:
    """The text of the page.

    Args:
        question: that the report answers.
        report: the answer, of `cost_report`.
        manifest: of the package, with its certificate; None where there is only a config.json.
        inspection: of the package's weights.
    """
    tables = dict[str, list[TextTable]]()
    for name, table in report_tables(report):
        tables.setdefault(name, []).append(table)
    titles = {
        "speedup": "Speed-up",
        "predictions": "Predicted and measured",
        "throughput": "Throughput",
        "accelerator": "Accelerator",
        "roofline": "Roofline",
        "counts": "Counts",
        "sweep": "Sweep",
    }
    sections = [
        PageSection(title, pictures=_pictures(name, question), tables=tables[name])
        for name, title in titles.items()
        if name in tables
    ]
    if manifest is None:
        line = "The question came from a config.json: there are no weights, so no manifest and no certificate."
        sections.append(PageSection("Package", [line]))
    else:
        sections += [
            PageSection("Package", facts=_package(manifest), tables=[_levels(manifest)]),
            _certificate(manifest),
        ]
    if inspection is not None:
        from mxconv.report.inspection_page import exponents_section

        sections.append(exponents_section(inspection))
    title = f"{printable(question.architecture.model_type)} on {printable(question.hardware.name)}: cost"
    return render_page(title, heading(report), (), sections)


def _pictures(name: str, question: Question) -> list[tuple[str, str]]:
    """The pictures of a model, as far as the question has levels for them."""
    depths = {len(levels) for levels in question.strategies.values()}
    figures = {
        "speedup": [figure for depth, figure in ((2, "draft"), (3, "two-drafts")) if depth in depths],
        "throughput": [] if question.architecture.num_experts else ["throughput-maps"],
        "roofline": ["roofline"],
    }
    descriptions = {
        "draft": "Speed-up over the accepted share and the length of a draft",
        "two-drafts": "Speed-up over the accepted shares of two drafts",
        "throughput-maps": "Throughput over batch and context, by draft",
        "roofline": "Multiply-adds a second over multiply-adds a byte",
    }
    return [
        (descriptions[figure], picture_uri(lambda drawn, figure=figure: draw_figure(drawn, figure, question)))  # type: ignore[misc]
        for figure in figures.get(name, [])
    ]


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


def _levels(manifest: "Manifest") -> TextTable:
    table = TextTable("Levels", ["level", "kind", "codec", "shares", "weights in"])
    for level in manifest.levels:
        shared = ", ".join(level.shares) or NOTHING
        table.rows.append([printable(level.name), level.kind, level.codec or NOTHING, shared, level.location])
    return table


def _certificate(manifest: "Manifest") -> PageSection:
    found = manifest.certificate
    if found is None:
        return PageSection("Certificate", ["This package has none yet: `mxconv verify PACKAGE --write` makes one."])
    facts = {
        "bit-exact tensors": f"{found.num_bit_exact:,} of {found.num_tensors:,}",
        "compared with": "the source" if found.source_compared else "the recorded hashes",
        "lossless": "yes" if found.lossless else "no",
        "made by": printable(found.created_by),
    }
    if (decode := found.decode) is not None:
        facts |= {
            "level decoded": printable(manifest.decoded_level or ""),
            "decoded with and without drafts": f"{decode.num_tokens:,} tokens, {decode.num_prompts:,} prompts",
            "token mismatches": f"{decode.num_token_mismatches:,}",
            "logit mismatches": f"{decode.num_logit_mismatches:,}",
        }
    return PageSection("Certificate", facts=facts)
