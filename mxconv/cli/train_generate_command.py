"""`mxconv train generate`: text of the target's own, for drafts to learn from."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.common_options import Force, Json
from mxconv.cli.output import Output, check_outputs, progress_bars
from mxconv.cli.training import Texts


def generate(
    texts: Texts,
    target: Annotated[Path, typer.Option(help="The model that writes: a 16-bit folder or a package.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .jsonl file, a text a line.")],
    num_texts: Annotated[int, typer.Option(min=1, help="Texts to write.")] = 1024,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each that are taken from the files.")] = 64,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each that the target writes.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of its draws; 0 takes the likeliest token.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws and of the places that are taken.")] = 0,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Let the target continue pieces of text.

    It is what a draft is to predict. Source: arXiv 2404.19124, section 3.2, second stage: 256 tokens of the model's
    own. That 64 tokens of a text come before them follows from section 4: four written tokens for each one of a text.
    """
    import numpy as np

    from mxconv.report.output_file import write_output
    from mxconv.text.distribution import Sampling
    from mxconv.text.tokenizer import Tokenizer
    from mxconv.train.windows import text_windows
    from mxconv.train.written import continuations, target_decoder

    check_outputs(force, [], [output])
    begin = time.perf_counter()
    tokenizer = Tokenizer.from_folder(target)
    sampling = Sampling(temperature) if temperature else None
    with progress_bars() as progress:
        found = text_windows(texts, tokenizer, prompt_tokens, progress).token_ids
    random = np.random.Generator(np.random.Philox(key=seed))
    prompts = found[random.permutation(len(found))[np.arange(num_texts) % len(found)]]

    def write(path: Path) -> None:
        done = 0
        with (
            target_decoder(target) as decoder,
            progress_bars("texts") as progress,
            path.open("w", encoding="utf-8") as file,
        ):
            for rows in continuations(decoder, prompts, new_tokens, sampling, seed):
                for row in rows.tolist():
                    line = {"num_prompt_tokens": prompt_tokens, "token_ids": row, "text": tokenizer.decode(row)}
                    file.write(json.dumps(line) + "\n")
                done += len(rows)
                progress("write texts", done, num_texts)

    write_output(output, write)
    seconds = time.perf_counter() - begin
    num_tokens, out = num_texts * new_tokens, Output(json_output)
    out.line(f"{output}: {num_texts:,} texts, {num_tokens:,} tokens written in {seconds:.0f} s")
    out.json({"file": str(output), "num_texts": num_texts, "num_tokens": num_tokens, "seconds": seconds})
