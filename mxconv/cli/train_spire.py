"""`mxconv train spire`: a SPIRe draft, the target's last layers over the target's own activations."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mxconv.cli import train_options as options


def spire(
    texts: options.Texts,
    target: options.Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder, as formats/spire.md has it.")],
    generated: options.Generated = None,
    layers: Annotated[int, typer.Option(min=1, help="Of the target, the last ones, that it begins with.")] = 2,
    block: Annotated[int, typer.Option(min=1, help="Tokens of a proposal, k.")] = 4,
    sink: Annotated[int, typer.Option(min=0, help="First positions that a token sees.")] = 1,
    window: Annotated[int, typer.Option(min=1, help="Last positions that a token sees, itself included.")] = 64,
    loss: Annotated[
        Literal["mixed", "distillation", "text"], typer.Option(help="Half distillation, half acceptance; or one alone.")
    ] = "mixed",
    past_memory: Annotated[
        Literal["target", "embeddings"], typer.Option(help="What stands for tokens that the target evaluated.")
    ] = "target",
    random_start: Annotated[bool, typer.Option("--random-start", help="Begin with no layer of the target.")] = False,
    no_feedback: Annotated[bool, typer.Option("--no-feedback", help="No memory of what it drafts itself.")] = False,
    steps: options.Steps = 21_000,
    batch_tokens: options.BatchTokens = 65_536,
    length: options.Length = None,
    learning_rate: options.LearningRate = 1e-3,
    seed: options.Seed = 0,
    save_every: options.SaveEvery = 100,
    dry_run: options.DryRun = False,
    force: options.Force = False,
    json_output: options.Json = False,
) -> None:
    """Train a SPIRe draft of the target's last layers.

    It learns behind every k-th prefix of a text. A run that was killed goes on with the same command; under `torchrun`
    processes share every batch. Source: arXiv 2504.06419.
    """
    from mxconv.arch.families.table import describe_file
    from mxconv.checkpoint.json_file import read_json_object
    from mxconv.cli.training import Training, sizes_of
    from mxconv.drafts.readers.spire_layers import config_for
    from mxconv.errors import MxconvError
    from mxconv.train.fit import accelerator
    from mxconv.train.frozen_target import FrozenTarget
    from mxconv.train.spire import SpireChoices, SpireTask

    sizes = sizes_of(target)
    path = target / "config.json"
    num_layers = describe_file(path).num_hidden_layers
    if layers > num_layers:
        raise MxconvError(f"--layers {layers}: the target has {num_layers}; at most so many are required.")
    training = Training(output, target, texts, seed, save_every, force, json_output)
    stages = training.stages(sizes, generated, steps, batch_tokens, length, learning_rate, block + 1)
    last = range(num_layers - layers, num_layers)
    values = config_for(read_json_object(path, unique_keys=False), last, sink, window, past_memory)
    choices = SpireChoices(loss, not random_start, not no_feedback)
    process = accelerator()
    task = SpireTask(values, FrozenTarget(target, process.device), block, sizes.dtype, choices)
    training.run(task, stages, process, f"{block} {choices} {values}", dry_run)
