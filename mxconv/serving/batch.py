"""Many prompts of `generate`: texts in, texts out, some at a time."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mxconv.decode import Answer, Options, TextModel
from mxconv.errors import ModelError
from mxconv.serving.llm_engine import Engine
from mxconv.serving.sequence import Sequence as Running
from mxconv.text.messages import Prompt


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
        self.answers: list[Answer] = []
        hierarchy, fixed = model.hierarchy(options), model.request([], options)
        self._engine = Engine(hierarchy, max_sequences, kv_bytes)
        self._running: dict[Running, Answer] = {}
        for prompt in prompts:
            request = replace(fixed, prompt=model.encode(prompt))
            stream = model.text_stream(request, options)
            try:
                sequence = self._engine.submit(request)
            except ModelError as error:  # of this prompt: empty, or too long
                self.answers.append(Answer(prompt, hierarchy.begin(), stream, error=error))
                self.answers[-1].generation.ending = "error"
                continue
            sequence.generation.trace.records_trees = records_trees
            self.answers.append(Answer(prompt, sequence.generation, stream))
            self._running[sequence] = self.answers[-1]

    def run(self, on_done: Callable[[int], None]) -> None:
        """Decode all; `on_done` is called with the number of prompts done after each step that ended some.

        An interrupt may come at any moment, and what there is by then is whole.
        """
        while not self._engine.is_idle:
            for each in self._engine.step():
                answer = self._running[each.sequence]
                if not answer.stopped:
                    answer.take(each.token)
                    if answer.stopped:
                        self._engine.cancel(each.sequence)
            done = [sequence for sequence in self._running if sequence.is_done]
            for sequence in done:
                answer = self._running.pop(sequence)
                answer.error = sequence.error
                answer.finish()
            if done:
                on_done(len(self.answers) - len(self._running))
