"""`mxconv train self-draft`: the 4-bit copy of a model, distilled from it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.common_options import grouped
from mxconv.cli.training import Schedule, Target, Training


@dataclass(frozen=True)
class SelfDraftSchedule(Schedule):
    """Options of a training with few steps, which begins near its end."""

    steps: Annotated[int, typer.Option(min=1, help="Of all stages; 5 to 2 where there are two.")] = 300
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step, of all processes together.")] = 1024
    learning_rate: Annotated[float, typer.Option(min=0.0, help="The highest, in units of a block's scale.")] = 3e-3


@grouped
def self_draft(
    texts: Annotated[list[Path] | None, typer.Argument(help="Plain text, or .jsonl with `text` or `prompt`.")] = None,
    *,
    target: Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="The draft file, .safetensors.")],
    start: Annotated[
        Path | None, typer.Option("--from", help="A draft file or package to begin with; else the direct cast.")
    ] = None,
    schedule: SelfDraftSchedule,
) -> None:
    """Distil the MXFP4 copy of a model.

    Best on text of its own: --generated alone, from `train generate`. The file is for `mxconv quantize
    --draft-weights`. It goes on where it was killed. Under `torchrun` the processes share every batch.
    """
    from mxconv.checkpoint.hashing import sha256_file
    from mxconv.errors import ModelError
    from mxconv.package.manifest import FILE_NAME
    from mxconv.train.self_draft import SelfDraftTask
    from mxconv.train.training_loop import accelerator
    from mxconv.train.training_task import FrozenTarget

    if output.suffix != ".safetensors":
        raise ModelError(f"{output}: a name that ends in .safetensors is required. Choose one.")
    training = Training(texts or [], target, output, schedule)
    stages = training.stages(8)
    files = [*(texts or []), *([schedule.generated] if schedule.generated else [])]
    begun = sha256_file(start / FILE_NAME if start.is_dir() else start) if start else "direct cast, scale rule mse"
    record = {
        "rule": "distilled: KL(target || draft), straight-through rounding, fixed scales",
        "start": begun,
        "texts": [sha256_file(path) for path in files],
        "num_tokens": sum(stage.num_tokens for stage in stages),
        **{key: asdict(schedule)[key] for key in ("steps", "batch_tokens", "learning_rate", "seed")},
    }
    process = accelerator()
    task = SelfDraftTask(target, FrozenTarget(target, process.device), start, record)
    training.run(task, stages, process, f"self-draft {record}")
