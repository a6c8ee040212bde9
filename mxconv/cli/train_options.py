"""Options that every command shares that trains a draft."""

from pathlib import Path
from typing import Annotated

import typer

Texts = Annotated[list[Path], typer.Argument(help="Files of plain text, or .jsonl with `text` or `prompt`.")]
Target = Annotated[Path, typer.Option(help="The model that it will draft for: a folder with 16-bit weights.")]
Generated = Annotated[Path | None, typer.Option(help="The target's own text, of `train generate`: the second stage.")]
Steps = Annotated[int, typer.Option(min=1, help="Of all stages; 5 to 2 where there are two.")]
BatchTokens = Annotated[int, typer.Option(min=1, help="Tokens of a step, of all processes together.")]
Length = Annotated[int | None, typer.Option(min=8, help="Tokens of a window of the first stage; up to 4096.")]
LearningRate = Annotated[float, typer.Option(min=0.0, help="The highest; of the second stage a tenth.")]
Seed = Annotated[int, typer.Option(min=0, help="Of weights and order.")]
SaveEvery = Annotated[int, typer.Option(min=1, help="Steps between states to go on from.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and train nothing.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the folder; begin again.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")]
