"""The tables of spire_report.py in Markdown, beside what arXiv 2504.06419 published."""

from collections.abc import Iterator, Mapping, Sequence

from spire_throughput import (
    BLOCK,
    CURVE_BATCH,
    DENSE,
    DRAFTS,
    FORM,
    HARDWARE,
    MAGICDEC,
    NARROW,
    SPIRE,
    Report,
    intensity,
)

PUBLISHED = {  # Table 1
    256: {NARROW: 2.637, MAGICDEC: 4.005, SPIRE: 3.427},
    512: {NARROW: 2.647, MAGICDEC: 3.891, SPIRE: 3.401},
    960: {NARROW: 2.644, MAGICDEC: 3.793, SPIRE: 3.382},
}
PUBLISHED_MULTIPLIERS = {NARROW: 1.36, MAGICDEC: 2.05, SPIRE: 2.78}  # Fig. 4: batch 64, context 512
HIGHLIGHTED = f"67 M, batch {CURVE_BATCH}, context 512"


def tables(report: Report, modelled: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Line by line.

    Args:
        report: what was measured.
        modelled: throughput multipliers by place and draft.
    """
    body = report.bodies["target"]
    yield f"Target: {body.num_layers} layers, {body.num_parameters:,} weights in them,"
    yield f"{report.target_loss:.3f} nats a token of the held-out text\n"
    yield f"Tokens a round, k = {BLOCK}, {report.num_prompts} prompts, 95% confidence (bootstrap over prompts)\n"
    rows = [[f"{context:,}", *(str(rates[name]) for name in DRAFTS)] for context, rates in report.rates.items()]
    rows += [
        [f"{context:,}, published", *published(PUBLISHED[context], 3)]
        for context in report.rates
        if context in PUBLISHED
    ]
    yield from table(["context", *DRAFTS], rows)
    yield f"\nSPIRe without its parts, context {report.middle:,}; throughput at the sizes of the paper's target\n"
    rows = [
        [name + " (tokens assumed)" * (name == DENSE), str(rate), f"{modelled[HIGHLIGHTED][name]:.2f}"]
        for name, rate in report.ablations.items()
    ]
    yield from table(["", "tokens a round", HIGHLIGHTED.removeprefix("67 M, ")], rows)
    yield f"\nThroughput over plain decoding, modelled: {HARDWARE}, {FORM}, {intensity():.0f} FLOPs a byte\n"
    rows = [[where, *(f"{found[name]:.2f}" for name in DRAFTS)] for where, found in modelled.items()]
    rows.append([f"{HIGHLIGHTED}, published", *published(PUBLISHED_MULTIPLIERS, 2)])
    yield from table(["", *DRAFTS], rows)


def published(figures: Mapping[str, float], digits: int) -> list[str]:
    """A cell a draft, empty where the paper has none."""
    return [f"{figures[name]:.{digits}f}" if name in figures else "" for name in DRAFTS]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows):
        yield f"| {' | '.join(row)} |"
