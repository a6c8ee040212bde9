"""`mxconv train speculator`: an MLP speculator for a target."""

from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli import train_options as options


def speculator(
    texts: options.Texts,
    target: options.Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder, as the Hub's accelerators are.")],
    generated: options.Generated = None,
    heads: Annotated[int, typer.Option(min=1, max=64, help="Tokens that it proposes at most.")] = 3,
    inner_dim: Annotated[int, typer.Option(min=0, help="Length of its states; 0 is the target's.")] = 0,
    tie_weights: Annotated[bool, typer.Option("--tie-weights", help="One set of weights for all heads.")] = False,
    scale_input: Annotated[bool, typer.Option("--scale-input", help="Norm the target's state first.")] = False,
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
    """Train an MLP speculator.

    It reads the target's last hidden state and the tokens just chosen. A run that was killed goes on with the same
    command; under `torchrun` processes share every batch. Source: arXiv 2404.19124.
    """
    from mxconv.cli.training import Training, sizes_of
    from mxconv.drafts.readers.mlp_speculator import SpeculatorConfig
    from mxconv.train.fit import accelerator
    from mxconv.train.frozen_target import FrozenTarget
    from mxconv.train.speculator import SpeculatorTask

    sizes = sizes_of(target)
    training = Training(output, target, texts, seed, save_every, force, json_output)
    stages = training.stages(sizes, generated, steps, batch_tokens, length, learning_rate, heads + 2)
    config = SpeculatorConfig(
        vocab_size=sizes.vocab_size,
        emb_dim=sizes.hidden_size,
        inner_dim=inner_dim or sizes.hidden_size,
        n_predict=heads,
        top_k_tokens_per_head=tuple(max(5 - head, 2) for head in range(heads)),
        n_candidates=5,
        tie_weights=tie_weights,
        scale_input=scale_input,
    )
    process = accelerator()
    frozen = FrozenTarget(target, process.device)
    training.run(SpeculatorTask(config, frozen, sizes.dtype), stages, process, repr(config), dry_run)
