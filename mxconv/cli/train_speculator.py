"""`mxconv train speculator`: an MLP speculator for a target."""

from pathlib import Path
from typing import Annotated

import typer

STAGE_ONE, STAGE_TWO = 5, 2  # of seven steps, as the paper has them


def speculator(
    texts: Annotated[list[Path], typer.Argument(help="Files of plain text, or .jsonl with `text` or `prompt`.")],
    target: Annotated[Path, typer.Option(help="The model that it will draft for: a folder with 16-bit weights.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder, as the Hub's accelerators are.")],
    generated: Annotated[
        Path | None, typer.Option(help="The target's own text, of `train generate`: the second stage.")
    ] = None,
    heads: Annotated[int, typer.Option(min=1, max=64, help="Tokens that it proposes at most.")] = 3,
    inner_dim: Annotated[int, typer.Option(min=0, help="Length of its states; 0 is the target's.")] = 0,
    tie_weights: Annotated[bool, typer.Option("--tie-weights", help="One set of weights for all heads.")] = False,
    scale_input: Annotated[bool, typer.Option("--scale-input", help="Norm the target's state first.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Of all stages; 5 to 2 where there are two.")] = 21_000,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step, of all processes together.")] = 65_536,
    length: Annotated[
        int | None, typer.Option(min=8, help="Tokens of a window of the first stage; up to 4096.")
    ] = None,
    learning_rate: Annotated[float, typer.Option(min=0.0, help="The highest; of the second stage a tenth.")] = 1e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and order.")] = 0,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between states to go on from.")] = 100,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and train nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the folder; begin again.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Train an MLP speculator.

    It reads the target's last hidden state and the tokens just chosen. A run that was killed goes on with the same
    command; under `torchrun` processes share every batch. Source: arXiv 2404.19124.
    """
    from mxconv.cli.training import Training, sizes_of
    from mxconv.model.readers.speculator_config import SpeculatorConfig
    from mxconv.train.fit import accelerator
    from mxconv.train.frozen_target import FrozenTarget
    from mxconv.train.speculator import SpeculatorTask

    sizes = sizes_of(target)
    training = Training(output, target, texts, seed, save_every, force, json_output)
    stages = training.stages(
        sizes, generated, (STAGE_ONE, STAGE_TWO), steps, batch_tokens, length, learning_rate, heads + 2
    )
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
