"""Many prompts of `generate`: texts in, texts out, some at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mxconv.decode import Options, TextModel, selection_of
from mxconv.errors import ModelError, MxconvError
from mxconv.serving.llm_engine import Engine
from mxconv.serving.sequence import Request
from mxconv.serving.sequence import Sequence as Running
from mxconv.speculation.statistics import Generation
from mxconv.text.messages import Prompt
from mxconv.text.text_stream import TextStream


@dataclass
class BatchAnswer:
    """The answer to one of several prompts; `text` grows while all are decoded. One that fails ends alone."""

    prompt: Prompt
    generation: Generation
    text: str = ""
    error: MxconvError | None = None  # why there is no more of it

    @property
    def token_ids(self) -> list[int]:
        """New tokens, those of a stop token or stop string included."""
        return self.generation.token_ids


class Batch:
    """Prompts, texts or messages, that are decoded side by side; `kv_bytes` limits their caches, None does not."""

    def __init__(
        self,
        model: TextModel,
        prompts: Sequence[Prompt],
        options: Options,
        max_sequences: int,
        kv_bytes: int | None = None,
        records_trees: bool = False,
    ) -> None:
        tokenizer = model.loaded.tokenizer
        stop_strings = [*model.recommended.stop_strings, *options.get("stop_strings", ())]
        self.answers: list[BatchAnswer] = []
        hierarchy, selection = model.hierarchy(options), selection_of(model, options, model.sampling(options))
        self._engine = Engine(hierarchy, max_sequences, kv_bytes)
        self._streams: dict[Running, tuple[BatchAnswer, TextStream]] = {}
        for prompt in prompts:
            ids = model.encode(prompt)
            request = Request(ids, options.get("max_new_tokens", 64), tokenizer.eos_token_ids, selection)
            try:
                sequence = self._engine.submit(request)
            except ModelError as error:  # of this prompt: empty, or too long
                self.answers.append(BatchAnswer(prompt, hierarchy.begin(), error=error))
                self.answers[-1].generation.ending = "error"
                continue
            sequence.generation.trace.records_trees = records_trees
            self.answers.append(BatchAnswer(prompt, sequence.generation))
            self._streams[sequence] = self.answers[-1], TextStream(tokenizer, stop_strings, ids)

    def run(self, on_done: Callable[[int], None]) -> None:
        """Decode all; `on_done` is called with the number of prompts done after each step that ended some.

        An interrupt may come at any moment, and what there is by then is whole.
        """
        num_fed = dict.fromkeys(self._streams, 0)
        while not self._engine.is_idle:
            for each in self._engine.step():
                answer, stream = self._streams[each.sequence]
                if stream.stopped:
                    continue
                answer.text += stream.feed(each.token)
                num_fed[each.sequence] += 1
                if stream.stopped:
                    self._engine.cancel(each.sequence)
                    del answer.generation.token_ids[num_fed[each.sequence] :]
                    answer.generation.ending = "stop"
            done = [sequence for sequence in self._streams if sequence.is_done]
            for sequence in done:
                answer, stream = self._streams.pop(sequence)
                answer.error = sequence.error
                answer.text += stream.finish()
            if done:
                on_done(len(self.answers) - len(self._streams))
