"""The tables of batch_maps.py in Markdown."""

from collections.abc import Iterator, Sequence

from batch_results import CellResult, MethodResult


def tables(results: Sequence[CellResult]) -> Iterator[str]:
    """Line by line: plain decoding, each method with its best length, and latencies as in arXiv 2404.19124, Table 1."""
    yield "Plain decoding, tokens a second of all sequences together\n"
    yield from _map(results, [f"{each.plain_tokens_per_second:.1f}" for each in results])
    for place, method in enumerate(results[0].methods):
        yield f"\n{method.method}: best k, its speed over plain decoding, (and as predicted)\n"
        yield from _map(results, [_best(each.methods[place]) for each in results])
    for place, method in enumerate(results[0].methods):
        if any(outcome.candidates > 1 for outcome in method.outcomes):
            yield f"\n{method.method}: milliseconds a token by stages x candidates; 0 is plain decoding\n"
            yield from _latencies(results, place)


def _best(method: MethodResult) -> str:
    """Measured, and in parentheses predicted."""
    found, predicted = method.fastest, method.outcomes[method.predicted_best]
    return f"{_choice(found.label, found.over_plain)} ({_choice(predicted.label, predicted.predicted_over_plain)})"


def _choice(label: str, over_plain: float) -> str:
    """Plain decoding is better than the best of the drafts where that brings less."""
    return f"{label}: {over_plain:.2f}" if over_plain > 1 else f"none, {over_plain:.2f}"


def _map(results: Sequence[CellResult], texts: Sequence[str]) -> Iterator[str]:
    contexts = sorted({each.context for each in results})
    found = {(each.batch, each.context): text for each, text in zip(results, texts, strict=True)}
    rows = [
        [str(batch), *(found.get((batch, context), "") for context in contexts)]
        for batch in sorted({each.batch for each in results})
    ]
    yield from table(["batch, context", *(f"{context:,}" for context in contexts)], rows)


def _latencies(results: Sequence[CellResult], place: int) -> Iterator[str]:
    """A sequence waits for a round and gets its tokens."""
    outcomes = results[0].methods[place].outcomes
    rows = []
    for cell in results:
        milliseconds = [1e3 * cell.batch / each.tokens_per_second for each in cell.methods[place].outcomes]
        figures = [f"{each:.1f}" for each in (1e3 * cell.plain_seconds, *milliseconds)]
        rows.append([str(cell.batch), f"{cell.context:,}", *figures])
    rows.append(["tokens a step", "", "1", *(f"{each.tokens_a_round:.2f}" for each in outcomes)])
    yield from table(["batch", "context", "0", *(each.label for each in outcomes)], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows):
        yield f"| {' | '.join(row)} |"
