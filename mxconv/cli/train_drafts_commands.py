"""`mxconv train speculator`, `spire`, `eagle3`, `draft` and `self-draft`: drafts by gradient descent.

A run that was killed goes on with the same command; under `torchrun` processes share every batch.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mxconv.cli.common_options import Json, Texts, grouped
from mxconv.cli.output import Output, progress_bars

if TYPE_CHECKING:
    from mxconv.arrays import I64
    from mxconv.train.training_loop import StepReport
    from mxconv.train.training_run import TrainingRun
    from mxconv.train.training_task import FrozenTarget, TrainingTask

Target = Annotated[Path, typer.Option(help="The model that it will draft for: a folder with 16-bit weights.")]
OutputFolder = Annotated[Path, typer.Option("--output", "-o", help="The folder that the draft becomes.")]


@dataclass(frozen=True)
class Schedule:
    """The options of one run of training, whatever the kind of draft."""

    generated: Annotated[
        Path | None, typer.Option(help="The target's own text, written by `train generate`, for the second stage.")
    ] = None
    steps: Annotated[int, typer.Option(min=1, help="Steps of all stages, 5 to 2 where there are two.")] = 21_000
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step, of all processes together.")] = 65_536
    length: Annotated[int | None, typer.Option(min=8, help="Tokens of a window of the first stage; up to 4096.")] = None
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Highest learning rate of the first stage.")] = 1e-3
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and order.", rich_help_panel="Training")] = 0
    mixed_precision: Annotated[
        Literal["no", "bf16"],
        typer.Option(help="Multiply in BF16, except in the target's output head; faster where it is native."),
    ] = "no"
    save_every: Annotated[int, typer.Option(min=1, help="Steps between states to go on from.")] = 100
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and train nothing.")] = False
    force: Annotated[bool, typer.Option("--force", help="Replace the folder; begin again.")] = False
    json_output: Json = False


def training_run(
    texts: Sequence[Path], target: Path, output: Path, schedule: Schedule, least_length: int = 8
) -> "TrainingRun":
    """The run that the options describe."""
    from mxconv.train.training_run import TrainingRun

    options = {key: value for key, value in vars(schedule).items() if key not in ("dry_run", "json_output")}
    return TrainingRun(texts, target, output, **options, least_length=least_length, progress=progress_bars)


def train(
    run: "TrainingRun", schedule: Schedule, make_task: "Callable[[FrozenTarget], TrainingTask]", options: str
) -> None:
    """Train, or say what that takes. A run that was killed goes on only with the same options."""
    out, begin = Output(schedule.json_output), time.perf_counter()
    begun = run.begin(make_task)
    plan, is_main = begun.plan(), begun.process.is_main_process
    if is_main:
        out.line(
            f"{plan['num_parameters']:,} parameters, {plan['num_steps']:,} steps over {plan['num_tokens']:,} tokens "
            f"({plan['num_different_tokens']:,} different ones), {plan['flops']:.2g} FLOPs, "
            f"{plan['memory_bytes'] / 1e9:.2g} GB"
        )
    if schedule.dry_run:
        out.json(plan | {"dry_run": True})
        return
    losses: dict[str, float] = {}
    with progress_bars("steps", one_bar=True) as progress:

        def show(report: "StepReport") -> None:
            losses.update(report.parts)
            if is_main:
                heads = " ".join(f"{loss:.2f}" for loss in report.parts.values())
                progress(f"{report.stage}: loss {heads}", report.step + 1, report.num_steps)

        if not begun.train(options, show):
            return
    seconds = time.perf_counter() - begin
    shown = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
    out.line(f"{run.output}: trained in {seconds:.0f} s; last losses: {shown}")
    out.json(plan | {"dry_run": False, "losses": losses, "seconds": seconds})


MOST_KNOWN = 32_000  # tokens of a head by default

DraftVocabSize = Annotated[
    int | None, typer.Option(min=1, help="The texts' most frequent tokens, which it knows; up to 32,000.")
]


@grouped
def speculator(
    texts: Texts,
    *,
    target: Target,
    output: OutputFolder,
    heads: Annotated[int, typer.Option(min=1, max=64, help="Most tokens that it proposes.")] = 3,
    inner_dim: Annotated[int, typer.Option(min=0, help="Length of its states; 0 is the target's.")] = 0,
    tie_weights: Annotated[bool, typer.Option("--tie-weights", help="One set of weights for all heads.")] = False,
    scale_input: Annotated[bool, typer.Option("--scale-input", help="Norm the target's state first.")] = False,
    schedule: Schedule,
) -> None:
    """Train an MLP speculator.

    It reads the target's last hidden state and the tokens just chosen. A run that was killed goes on with the same
    command. Source: arXiv 2404.19124.
    """
    from mxconv.drafts.speculator import SpeculatorConfig
    from mxconv.train.speculator_training import SpeculatorTask

    training = training_run(texts, target, output, schedule, least_length=heads + 2)
    model = training.config
    config = SpeculatorConfig(
        vocab_size=model.vocab_size,
        emb_dim=model.hidden_size,
        inner_dim=inner_dim or model.hidden_size,
        n_predict=heads,
        top_k_tokens_per_head=tuple(max(5 - head, 2) for head in range(heads)),
        n_candidates=5,
        tie_weights=tie_weights,
        scale_input=scale_input,
    )
    train(training, schedule, lambda frozen: SpeculatorTask(config, frozen, training.dtype), repr(config))


@grouped
def spire(
    texts: Texts,
    *,
    target: Target,
    output: OutputFolder,
    layers: Annotated[int, typer.Option(min=1, help="Last layers of the target that it begins with.")] = 2,
    block: Annotated[int, typer.Option(min=1, help="Tokens of a proposal, k.")] = 4,
    sink: Annotated[int, typer.Option(min=0, help="First positions that a token sees.")] = 1,
    window: Annotated[int, typer.Option(min=1, help="Last positions that a token sees, itself included.")] = 64,
    loss: Annotated[
        Literal["mixed", "distillation", "text"],
        typer.Option(help="Half distillation and half acceptance, or one alone."),
    ] = "mixed",
    past_memory: Annotated[
        Literal["target", "embeddings"], typer.Option(help="Memory of the tokens that the target evaluated.")
    ] = "target",
    random_start: Annotated[bool, typer.Option("--random-start", help="Begin with no layer of the target.")] = False,
    no_feedback: Annotated[bool, typer.Option("--no-feedback", help="Forget what it drafts itself.")] = False,
    schedule: Schedule,
) -> None:
    """Train a SPIRe draft of the target's last layers.

    It learns after every k-th prefix of a text. A run that was killed goes on with the same command. Source: arXiv
    2504.06419.
    """
    from mxconv.checkpoint.regular_file import read_json_object
    from mxconv.drafts.spire import config_for
    from mxconv.errors import MxconvError
    from mxconv.train.spire_training import SpireTask

    training = training_run(texts, target, output, schedule, least_length=block + 1)
    num_layers = training.config.num_hidden_layers
    if layers > num_layers:
        raise MxconvError(f"--layers {layers}: the target has {num_layers}; at most so many are required.")
    last = range(num_layers - layers, num_layers)
    values = config_for(read_json_object(target / "config.json", unique_keys=False), last, sink, window, past_memory)
    choices = loss, not random_start, not no_feedback
    train(
        training,
        schedule,
        lambda frozen: SpireTask(values, frozen, block, training.dtype, *choices),
        f"{block} {choices} {values}",
    )


@grouped
def eagle3(
    texts: Texts,
    *,
    target: Target,
    output: OutputFolder,
    block: Annotated[int, typer.Option(min=1, max=64, help="Tokens that it drafts after every prefix.")] = 4,
    draft_vocab_size: DraftVocabSize = None,
    schedule: Schedule,
) -> None:
    """Train an EAGLE-3 head.

    It reads three of the target's states, then what it gave itself, in training as at run time. A run that was killed
    goes on with the same command. Source: arXiv 2503.01840.
    """
    from mxconv.checkpoint.regular_file import read_json_object
    from mxconv.drafts.eagle3 import config_for, layers_for
    from mxconv.train.eagle3_training import Eagle3Task

    training = training_run(texts, target, output, schedule, least_length=block + 1)
    known = _known_tokens(training, draft_vocab_size)
    layers = layers_for(training.config.num_hidden_layers)
    values = config_for(read_json_object(target / "config.json", unique_keys=False), layers, len(known), block)
    train(
        training, schedule, lambda frozen: Eagle3Task(values, frozen, known, block, training.dtype), f"{block} {values}"
    )


def _known_tokens(training: "TrainingRun", count: int | None) -> "I64":
    """The texts' most frequent tokens, so many or as many as a head knows by default."""
    from mxconv.errors import MxconvError
    from mxconv.train.windows import frequent_tokens

    vocab_size = training.config.vocab_size
    count = count or min(vocab_size, MOST_KNOWN)
    if count > vocab_size:
        raise MxconvError(
            f"--draft-vocab-size {count}: the target has {vocab_size} tokens; at most so many are required."
        )
    return frequent_tokens((stage.windows for stage in training.stages), count, vocab_size)


@grouped
def draft(
    texts: Texts,
    *,
    target: Target,
    output: OutputFolder,
    start: Annotated[Path | None, typer.Option(help="A Llama with the same tokens to begin with.")] = None,
    hidden_size: Annotated[int, typer.Option(min=2, help="Hidden size of a new model.")] = 256,
    intermediate_size: Annotated[int | None, typer.Option(min=1, help="MLP size of a new model.")] = None,
    layers: Annotated[int, typer.Option(min=1, help="Layers of a new model.")] = 4,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads of a new model.")] = 4,
    loss: Annotated[
        Literal["kl", "tvd++", "text"], typer.Option(help="Distance to the target, or cross-entropy.")
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
    from mxconv.train.training_run import weights_of

    training = training_run(texts, target, output, schedule)
    model = training.config
    from transformers import AutoConfig, LlamaConfig

    if start is not None:
        if (found := describe_file(start / "config.json")).vocab_size != model.vocab_size:
            raise ModelError(
                f"--start {start}: a vocabulary of {found.vocab_size}, and the target's has {model.vocab_size}; the "
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
            vocab_size=model.vocab_size,
            hidden_size=hidden_size,
            intermediate_size=intermediate_size or 3 * hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=model.max_position_embeddings,
            tie_word_embeddings=True,
            **{key: theirs[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in theirs},
        )
    begun = weights_of(start) if start else "at random"
    train(
        training,
        schedule,
        lambda frozen: DistillationTask(config, frozen, target, loss, training.dtype, start),
        f"{loss} {config.to_json_string()} {begun}",
    )


@dataclass(frozen=True)
class SelfDraftSchedule(Schedule):
    """Options of a training with few steps, which begins near its end."""

    steps: Annotated[int, typer.Option(min=1, help="Steps of all stages, 5 to 2 where there are two.")] = 300
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step, of all processes together.")] = 1024
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Highest rate, in units of a block's scale.")] = 3e-3


@grouped
def self_draft(
    texts: Annotated[list[Path] | None, typer.Argument(help="Text, or .jsonl with `text` or `prompt`.")] = None,
    *,
    target: Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="The draft file, .safetensors.")],
    start: Annotated[
        Path | None, typer.Option("--from", help="A draft file or package to begin with; else the direct cast.")
    ] = None,
    schedule: SelfDraftSchedule,
) -> None:
    """Distil the MXFP4 copy of a model.

    It learns best from text of its own: --generated alone, from `train generate`. The file is for `mxconv quantize
    --draft-weights`. It goes on where it was killed. Under `torchrun` the processes
    share every batch.
    """
    from mxconv.checkpoint.regular_file import sha256_file
    from mxconv.errors import ModelError
    from mxconv.package.manifest import FILE_NAME
    from mxconv.train.self_draft import SelfDraftTask

    if output.suffix != ".safetensors":
        raise ModelError(f"{output}: a name that ends in .safetensors is required. Choose one.")
    training = training_run(texts or [], target, output, schedule)
    files = [*(texts or []), *([schedule.generated] if schedule.generated else [])]
    begun = sha256_file(start / FILE_NAME if start.is_dir() else start) if start else "direct cast, scale rule mse"
    record = {
        "rule": "distilled: KL(target || draft), straight-through rounding, fixed scales",
        "start": begun,
        "texts": [sha256_file(path) for path in files],
        "num_tokens": sum(stage.num_tokens for stage in training.stages),
        **{key: asdict(schedule)[key] for key in ("steps", "batch_tokens", "learning_rate", "seed")},
    }
    train(training, schedule, lambda frozen: SelfDraftTask(target, frozen, start, record), f"self-draft {record}")
