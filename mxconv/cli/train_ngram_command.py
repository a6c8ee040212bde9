"""`mxconv train ngram`: count a look-up table from text."""

import time
from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.common_options import Force, Json
from mxconv.cli.output import Output, check_outputs, progress_bars
from mxconv.cli.training import Texts
from mxconv.report.tables import format_bytes


def ngram(
    texts: Texts,
    tokenizer: Annotated[Path, typer.Option(help="The target: a model folder or a package with tokenizer.json.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The table, a safetensors file.")],
    min_count: Annotated[int, typer.Option(min=1, help="Drop contexts whose best next token came less often.")] = 2,
    max_entries: Annotated[int, typer.Option(min=1, help="Most contexts to keep; memory grows with it.")] = 1_000_000,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Count which token follows which: a draft by look-up.

    It serves any model with that tokenizer.
    """
    from mxconv.package.ngram_table import write_ngram_table
    from mxconv.system.replacement import write_output
    from mxconv.train.ngram_trainer import train_ngram

    check_outputs(force, [], [output])
    begin = time.perf_counter()
    with progress_bars() as progress:
        table = train_ngram(texts, tokenizer, min_count, max_entries, progress)
    write_output(output, lambda partial: write_ngram_table(table, partial))
    result = {
        "table": str(output),
        "num_tokens": table.num_tokens,
        "vocab_size": table.vocab_size,
        "tokenizer_sha256": table.tokenizer_sha256,
        "num_bigrams": len(table.bigrams.contexts),
        "num_trigrams": len(table.trigrams.contexts),
        "min_count": table.min_count,
        "num_pruned": table.num_pruned,
        "num_bytes": output.stat().st_size,
        "seconds": time.perf_counter() - begin,
    }
    out = Output(json_output)
    out.line(
        f"{output}: {result['num_bigrams']:,} bigrams and {result['num_trigrams']:,} trigrams from "
        f"{table.num_tokens:,} tokens, {format_bytes(output.stat().st_size)}"
    )
    if table.num_pruned:
        out.line(f"{table.num_pruned:,} rare n-grams were dropped while counting; more --max-entries keep more of them")
    out.json(result)
