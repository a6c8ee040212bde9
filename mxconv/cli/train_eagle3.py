"""`mxconv train eagle3`: an EAGLE-3 head for a target."""

from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli import train_options as options

MOST_KNOWN = 32_000  # tokens, where nobody asks for another number


def eagle3(
    texts: options.Texts,
    target: options.Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder, as formats/eagle3.md has it.")],
    generated: options.Generated = None,
    block: Annotated[int, typer.Option(min=1, max=64, help="Tokens that it drafts behind every prefix.")] = 4,
    draft_vocab_size: Annotated[
        int | None, typer.Option(min=1, help="The texts' most frequent tokens, which it knows; up to 32,000.")
    ] = None,
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
    """Train an EAGLE-3 head.

    It reads three of the target's states, then what it gave itself, in training as at run time. A run that was killed
    goes on with the same command; under `torchrun` processes share every batch. Source: arXiv 2503.01840.
    """
    from mxconv.arch.families.table import describe_file
    from mxconv.checkpoint.json_file import read_json_object
    from mxconv.cli.training import Training, sizes_of
    from mxconv.drafts.readers.eagle3_config import config_for, layers_for
    from mxconv.errors import MxconvError
    from mxconv.train.eagle3 import Eagle3Task
    from mxconv.train.fit import accelerator
    from mxconv.train.frequent_tokens import frequent_tokens
    from mxconv.train.frozen_target import FrozenTarget

    sizes = sizes_of(target)
    num_known = draft_vocab_size or min(sizes.vocab_size, MOST_KNOWN)
    if num_known > sizes.vocab_size:
        raise MxconvError(
            f"--draft-vocab-size {num_known}: the target has {sizes.vocab_size} tokens; at most so many are required."
        )
    training = Training(output, target, texts, seed, save_every, force, json_output)
    stages = training.stages(sizes, generated, steps, batch_tokens, length, learning_rate, block + 1)
    known = frequent_tokens((stage.windows for stage in stages), num_known, sizes.vocab_size)
    path = target / "config.json"
    layers = layers_for(describe_file(path).num_hidden_layers)
    values = config_for(read_json_object(path, unique_keys=False), layers, num_known, block)
    process = accelerator()
    task = Eagle3Task(values, FrozenTarget(target, process.device), known, block, sizes.dtype)
    training.run(task, stages, process, f"{block} {values}", dry_run)
