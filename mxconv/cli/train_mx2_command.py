"""`mxconv train mx2`: the target in two bits, rounded by what its matrices multiply in given texts."""

import time
from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.common_options import Force, Json, Threads
from mxconv.cli.output import Output, check_outputs, progress_bars
from mxconv.cli.training import Texts
from mxconv.report.tables import format_bytes


def mx2(
    texts: Texts,
    package: Annotated[Path, typer.Option(help="The package of the target, whose layers become 2 bits a weight.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The draft file, .safetensors.")],
    tokens: Annotated[int, typer.Option(min=256, help="Most tokens of the texts and the target's answers.")] = 16_384,
    threads: Threads = None,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Round the layers of a target to 2 bits, for --draft mx2:FILE.

    Codes are chosen by error compensation (GPTQ) over texts like those that it will draft: files of text, or .jsonl
    with `text`, or with `prompt`, which the target answers. The output head and the embedding stay the package's. It
    takes as long as `mxconv quantize --calibrate`.
    """
    from mxconv.calibrate import calibrate
    from mxconv.system.processor import usable_processors

    check_outputs(force, [], [output])
    begin = time.perf_counter()
    with progress_bars() as progress:
        calibrate(package, texts, output, tokens, threads or usable_processors(), progress, codec="mx2")
    num_bytes, seconds = output.stat().st_size, time.perf_counter() - begin
    out = Output(json_output)
    out.line(f"{output}: {format_bytes(num_bytes)}, for --draft mx2:{output}")
    out.json({"draft": str(output), "num_bytes": num_bytes, "seconds": seconds})
