"""`generate` without drafts, its passes recorded as CUDA graphs."""

from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from mxconv.interop.transformers.arguments import check_arguments
from mxconv.interop.transformers.decoding import Decoding
from mxconv.interop.transformers.graphs.passes import RecordedPasses
from mxconv.interop.transformers.graphs.replayed_target import ReplayedTarget
from mxconv.interop.transformers.run import Run

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel
    from transformers.generation import LogitsProcessorList, StoppingCriteriaList
    from transformers.generation.streamers import BaseStreamer


class Graphed:
    """A callable for `generate(custom_generate=...)`: the model's own tokens, one a pass.

    A context manager: closing it frees the KV cache that recorded passes read. `last` is what the last run did.
    """

    def __init__(self, *, streamer: "BaseStreamer | None" = None) -> None:
        """Nothing is recorded before a text asks for it.

        Args:
            streamer: gets the tokens as they come; transformers does not hand on its own argument.
        """
        self.streamer = streamer
        self.last: Run | None = None
        self._passes = RecordedPasses()

    def close(self) -> None:
        self._passes.close()

    def __enter__(self) -> "Graphed":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(
        self,
        model: "PreTrainedModel",
        input_ids: torch.Tensor,
        logits_processor: "LogitsProcessorList",
        stopping_criteria: "StoppingCriteriaList",
        generation_config: "GenerationConfig",
        streamer: "BaseStreamer | None" = None,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        """What `generate` calls; see there.

        Raises:
            ModelError: a batch, beams, or inputs that are no text.
        """
        check_arguments(generation_config)
        target = ReplayedTarget(model, input_ids, model_kwargs, self._passes, generation_config.max_length)
        decoding = Decoding(target, logits_processor, stopping_criteria, generation_config, input_ids)
        decoding.stream_to(streamer, self.streamer)
        decoding.run(None)
        num_tokens = decoding.sequence.shape[1] - input_ids.shape[1]
        self.last = Run(decoding.choices, num_tokens, decoding.num_rounds, [], num_replays=target.num_replays)
        return decoding.output()


def graphed(*, streamer: "BaseStreamer | None" = None) -> Graphed:
    """Plain decoding on a GPU without launches from Python, for `model.generate(**inputs, custom_generate=graphed())`.

    Greedy or drawn as `generate` would, token by token, for any model whose passes can be recorded; others are
    launched as ever. Keep it for more than one text: what was recorded is used again.

    Args:
        streamer: gets the tokens as they come. Give it here: transformers does not hand on its own argument.

    Returns:
        The callable; its `last` is what the last run did.
    """
    return Graphed(streamer=streamer)
