"""`mxconv train draft`: a small Llama by distillation."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mxconv.cli.common_options import grouped
from mxconv.cli.training import OutputFolder, Schedule, Target, Texts, Training, weights_of


@grouped
def draft(
    texts: Texts,
    *,
    target: Target,
    output: OutputFolder,
    start: Annotated[Path | None, typer.Option(help="A Llama of the same tokens to begin with.")] = None,
    hidden_size: Annotated[int, typer.Option(min=2, help="Of a new one.")] = 256,
    intermediate_size: Annotated[int | None, typer.Option(min=1, help="Three times the hidden size.")] = None,
    layers: Annotated[int, typer.Option(min=1, help="Of a new one.")] = 4,
    heads: Annotated[int, typer.Option(min=1, help="Of a new one; each has a key and value head.")] = 4,
    loss: Annotated[
        Literal["kl", "tvd++", "text"], typer.Option(help="Distance to the target; text: cross-entropy.")
    ] = "kl",
    schedule: Schedule,
) -> None:
    """Train a small Llama by distillation.

    It goes on where it was killed. Under `torchrun` the processes share every batch.
    """
    from mxconv.arch.families.registry import describe_file
    from mxconv.checkpoint.regular_file import read_json_object
    from mxconv.errors import ModelError
    from mxconv.train.distillation import DistillationTask
    from mxconv.train.training_loop import accelerator
    from mxconv.train.training_task import FrozenTarget

    training = Training(texts, target, output, schedule)
    sizes = training.sizes
    stages = training.stages(8)
    from transformers import AutoConfig, LlamaConfig

    if start is not None:
        if (found := describe_file(start / "config.json")).vocab_size != sizes.vocab_size:
            raise ModelError(
                f"--start {start}: a vocabulary of {found.vocab_size}, and the target's has {sizes.vocab_size}; the "
                "same tokens are required. Choose another one, or leave it out."
            )
        config = AutoConfig.from_pretrained(start)
    else:
        if hidden_size % heads or hidden_size // heads % 2:
            raise ModelError(
                f"--hidden-size {hidden_size}: {heads} heads; an even number of numbers for each is required."
            )
        theirs = read_json_object(target / "config.json", unique_keys=False)
        config = LlamaConfig(
            vocab_size=sizes.vocab_size,
            hidden_size=hidden_size,
            intermediate_size=intermediate_size or 3 * hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=sizes.num_positions,
            tie_word_embeddings=True,
            **{key: theirs[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in theirs},
        )
    process = accelerator()
    frozen = FrozenTarget(target, process.device)
    task = DistillationTask(config, frozen, target, loss, sizes.dtype, start)
    begun = weights_of(start) if start else "at random"
    training.run(task, stages, process, f"{loss} {config.to_json_string()} {begun}")
