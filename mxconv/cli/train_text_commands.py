"""`mxconv train ngram` and `generate`: a look-up table, and text of the target's own."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.common_options import Force, Json, Texts
from mxconv.cli.output import Output, check_outputs, progress_bars
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
    from mxconv.system.disk import write_output
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


def generate(
    texts: Texts,
    target: Annotated[Path, typer.Option(help="The model that writes: a 16-bit folder or a package.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .jsonl file with a text in each line.")],
    num_texts: Annotated[int, typer.Option(min=1, help="Texts to write.")] = 1024,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each text that are taken from the files.")] = 64,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each text that the target writes.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="Randomness; 0 always takes the likeliest token.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws and of the places that are taken.")] = 0,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="Put each prompt of the files whole into the model's chat template, to be answered."
        ),
    ] = False,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Let the target continue pieces of text.

    It is what a draft is to predict. Source: arXiv 2404.19124, section 3.2, second stage: 256 tokens of the model's
    own. That 64 tokens of a text come before them follows from section 4: four written tokens for each one of a text.

    An answer to --chat ends where the model ends it, --new-tokens are the most, and the file is one of texts: give it
    to the trainings in the place of texts. More texts than prompts answer these again, with other draws.
    """
    from mxconv.speculation.continuations import continuations
    from mxconv.system.disk import write_output
    from mxconv.text.distribution import Sampling
    from mxconv.text.tokenizer import Tokenizer
    from mxconv.train.written import chat_prompts, target_decoder, text_beginnings

    check_outputs(force, [], [output])
    begin = time.perf_counter()
    tokenizer = Tokenizer.from_folder(target)
    sampling = Sampling(temperature) if temperature else None
    if chat:
        prompts = chat_prompts(texts, target, tokenizer, num_texts)
    else:
        with progress_bars() as progress:
            prompts = text_beginnings(texts, tokenizer, prompt_tokens, num_texts, seed, progress)
    ends = tokenizer.eos_token_ids if chat else frozenset()
    num_tokens = 0

    def write(path: Path) -> None:
        nonlocal num_tokens
        with (
            target_decoder(target) as decoder,
            progress_bars("texts") as progress,
            path.open("w", encoding="utf-8") as file,
        ):
            written = continuations(decoder, prompts, new_tokens, sampling, seed, ends)
            for done, (prompt, row) in enumerate(zip(prompts, written, strict=True), 1):
                text = tokenizer.decode(row, skip_special_tokens=not chat)
                file.write(json.dumps({"num_prompt_tokens": len(prompt), "token_ids": row, "text": text}) + "\n")
                num_tokens += len(row) - len(prompt)
                progress("write texts", done, num_texts)

    write_output(output, write)
    seconds = time.perf_counter() - begin
    out = Output(json_output)
    out.line(f"{output}: {num_texts:,} texts, {num_tokens:,} tokens written in {seconds:.0f} s")
    out.json({"file": str(output), "num_texts": num_texts, "num_tokens": num_tokens, "seconds": seconds})
