"""`mxconv train speculator`, `spire` and `eagle3`: drafts that read what the target computed."""

from typing import Annotated, Literal

import typer

from mxconv.cli.common_options import grouped
from mxconv.cli.training import OutputFolder, Schedule, Target, Texts, Training

MOST_KNOWN = 32_000  # tokens of an EAGLE-3 head by default


@grouped
def speculator(
    texts: Texts,
    *,
    target: Target,
    output: OutputFolder,
    heads: Annotated[int, typer.Option(min=1, max=64, help="Tokens that it proposes at most.")] = 3,
    inner_dim: Annotated[int, typer.Option(min=0, help="Length of its states; 0 is the target's.")] = 0,
    tie_weights: Annotated[bool, typer.Option("--tie-weights", help="One set of weights for all heads.")] = False,
    scale_input: Annotated[bool, typer.Option("--scale-input", help="Norm the target's state first.")] = False,
    schedule: Schedule,
) -> None:
    """Train an MLP speculator.

    It reads the target's last hidden state and the tokens just chosen. A run that was killed goes on with the same
    command; under `torchrun` processes share every batch. Source: arXiv 2404.19124.
    """
    from mxconv.drafts.readers.mlp_speculator import SpeculatorConfig
    from mxconv.train.speculator_training import SpeculatorTask
    from mxconv.train.training_loop import accelerator
    from mxconv.train.training_task import FrozenTarget

    training = Training(texts, target, output, schedule)
    sizes = training.sizes
    stages = training.stages(heads + 2)
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
    training.run(SpeculatorTask(config, frozen, sizes.dtype), stages, process, repr(config))


@grouped
def spire(
    texts: Texts,
    *,
    target: Target,
    output: OutputFolder,
    layers: Annotated[int, typer.Option(min=1, help="Of the target, the last ones, that it begins with.")] = 2,
    block: Annotated[int, typer.Option(min=1, help="Tokens of a proposal, k.")] = 4,
    sink: Annotated[int, typer.Option(min=0, help="First positions that a token sees.")] = 1,
    window: Annotated[int, typer.Option(min=1, help="Last positions that a token sees, itself included.")] = 64,
    loss: Annotated[
        Literal["mixed", "distillation", "text"], typer.Option(help="Half distillation, half acceptance; or one alone.")
    ] = "mixed",
    past_memory: Annotated[
        Literal["target", "embeddings"], typer.Option(help="What represents tokens that the target evaluated.")
    ] = "target",
    random_start: Annotated[bool, typer.Option("--random-start", help="Begin with no layer of the target.")] = False,
    no_feedback: Annotated[bool, typer.Option("--no-feedback", help="No memory of what it drafts itself.")] = False,
    schedule: Schedule,
) -> None:
    """Train a SPIRe draft of the target's last layers.

    It learns after every k-th prefix of a text. A run that was killed goes on with the same command; under `torchrun`
    processes share every batch. Source: arXiv 2504.06419.
    """
    from mxconv.arch.families.registry import describe_file
    from mxconv.checkpoint.regular_file import read_json_object
    from mxconv.drafts.readers.spire_layers import config_for
    from mxconv.errors import MxconvError
    from mxconv.train.spire_training import SpireTask
    from mxconv.train.training_loop import accelerator
    from mxconv.train.training_task import FrozenTarget

    training = Training(texts, target, output, schedule)
    sizes = training.sizes
    path = target / "config.json"
    num_layers = describe_file(path).num_hidden_layers
    if layers > num_layers:
        raise MxconvError(f"--layers {layers}: the target has {num_layers}; at most so many are required.")
    stages = training.stages(block + 1)
    last = range(num_layers - layers, num_layers)
    values = config_for(read_json_object(path, unique_keys=False), last, sink, window, past_memory)
    choices = loss, not random_start, not no_feedback
    process = accelerator()
    task = SpireTask(values, FrozenTarget(target, process.device), block, sizes.dtype, *choices)
    training.run(task, stages, process, f"{block} {choices} {values}")


@grouped
def eagle3(
    texts: Texts,
    *,
    target: Target,
    output: OutputFolder,
    block: Annotated[int, typer.Option(min=1, max=64, help="Tokens that it drafts after every prefix.")] = 4,
    draft_vocab_size: Annotated[
        int | None, typer.Option(min=1, help="The texts' most frequent tokens, which it knows; up to 32,000.")
    ] = None,
    schedule: Schedule,
) -> None:
    """Train an EAGLE-3 head.

    It reads three of the target's states, then what it gave itself, in training as at run time. A run that was killed
    goes on with the same command; under `torchrun` processes share every batch. Source: arXiv 2503.01840.
    """
    from mxconv.arch.families.registry import describe_file
    from mxconv.checkpoint.regular_file import read_json_object
    from mxconv.drafts.readers.eagle3_config import config_for, layers_for
    from mxconv.errors import MxconvError
    from mxconv.train.eagle3_training import Eagle3Task
    from mxconv.train.training_loop import accelerator
    from mxconv.train.training_task import FrozenTarget
    from mxconv.train.windows import frequent_tokens

    training = Training(texts, target, output, schedule)
    sizes = training.sizes
    num_known = draft_vocab_size or min(sizes.vocab_size, MOST_KNOWN)
    if num_known > sizes.vocab_size:
        raise MxconvError(
            f"--draft-vocab-size {num_known}: the target has {sizes.vocab_size} tokens; at most so many are required."
        )
    stages = training.stages(block + 1)
    known = frequent_tokens((stage.windows for stage in stages), num_known, sizes.vocab_size)
    path = target / "config.json"
    layers = layers_for(describe_file(path).num_hidden_layers)
    values = config_for(read_json_object(path, unique_keys=False), layers, num_known, block)
    process = accelerator()
    task = Eagle3Task(values, FrozenTarget(target, process.device), known, block, sizes.dtype)
    training.run(task, stages, process, f"{block} {values}")
