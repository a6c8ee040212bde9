"""`mxconv generate --batch`: prompts side by side, and the same without drafts."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mxconv.progress import Progress
    from mxconv.serving.batch import BatchAnswer
    from mxconv.speculation.text_model import Options, TextModel
    from mxconv.text.messages import Prompt


@dataclass(frozen=True)
class Together:
    """All prompts, and how long they took by a clock on the wall."""

    answers: "list[BatchAnswer]"
    seconds: float

    @property
    def is_whole(self) -> bool:
        """Whether no interrupt came before the end."""
        return all(answer.generation.ending != "interrupted" for answer in self.answers)


def decode_together(
    model: "TextModel",
    prompts: "Sequence[Prompt]",
    options: "Options",
    batch: int,
    kv_bytes: int | None,
    records_trees: bool,
    progress: "Progress",
) -> Together:
    """Prompts side by side, as far as they come before an interrupt."""
    from mxconv.serving.batch import Batch

    begin = time.perf_counter()
    decoded = Batch(model, prompts, options, batch, kv_bytes, records_trees)
    with suppress(KeyboardInterrupt):
        decoded.run(lambda num_done: progress("generate", num_done, len(prompts)))
    return Together(decoded.answers, time.perf_counter() - begin)
