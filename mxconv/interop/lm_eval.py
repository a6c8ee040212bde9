"""A level of a package as a model of lm-evaluation-harness (`pip install lm-eval`).

    python -m mxconv.interop.lm_eval --model mxconv --model_args package=PACKAGE,level=mxfp4 --tasks hellaswag

The harness looks for models in itself alone; this module adds one, and then is its command.
"""

from collections.abc import Sequence
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from mxconv.decode import load
from mxconv.engine.forest import SequenceRows
from mxconv.errors import ModelError
from mxconv.text.chat import ChatTemplate
from mxconv.verification.divergence import log_softmax

BATCH = 8  # texts that are evaluated in one pass
OPTIONS = ("temperature", "top_k", "top_p", "min_p", "seed")  # of a generation, as the harness calls them

Pair = tuple[Any, list[int], list[int]]
"""What the harness knows a request by, and the tokens of its context and its continuation."""


@register_model("mxconv")
class HarnessModel(TemplateLM):  # type: ignore[misc]  # linted where the harness is not installed
    """The target of a package, whose drafts help to generate; or one level alone.

    Args:
        package: a folder, a Hub id or a URL.
        level: name of the level; empty for the target.
        kernel: that computes; empty for the best one.
        threads: of native kernels; 0 for all processors.
    """

    def __init__(self, package: str, level: str = "", kernel: str = "", threads: int = 0, **further: Any) -> None:
        super().__init__()
        known = {"batch_size", "max_batch_size", "device"}  # which the harness always passes on
        if unknown := sorted(further.keys() - known):
            raise ModelError(
                f"--model_args: {', '.join(unknown)}; package, level, kernel and threads are known. Leave it out."
            )
        self._model = load(package, (), kernel or None, threads or None, [level] if level else None)
        self._tokenizer = self._model.loaded.tokenizer
        self._decoder = self._model.loaded.target

    @property
    def eot_token_id(self) -> int:
        """A token that ends a text."""
        return min(self._tokenizer.eos_token_ids, default=0)

    @property
    def prefix_token_id(self) -> int:
        """What comes before a text without a context."""
        first = self._tokenizer.bos_token_id
        return self.eot_token_id if first is None else first

    @property
    def tokenizer_name(self) -> str:
        """What the harness keeps rendered requests under."""
        return self._tokenizer.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template's source."""
        return ChatTemplate.from_folder(self._model.loaded.folder).source if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a conversation."""
        return ChatTemplate.from_folder(self._model.loaded.folder).render(chat_history, add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **ignored: Any) -> list[int]:
        """Token ids; a text that begins with the name of <s>, as rendered chats do, gets no second one."""
        before = self._tokenizer.prefix if add_special_tokens is None or add_special_tokens else []
        found = self._tokenizer.encode(string, add_special_tokens=False)
        return found if found[: len(before)] == before else before + found

    def _loglikelihood_tokens(self, requests: Sequence[Pair], **ignored: Any) -> list[tuple[float, bool]]:
        """The log-probability of each continuation, and whether it is the greedy one.

        Longer texts lose their beginnings. What begins alike is evaluated anew in each.
        """
        found: list[tuple[float, bool]] = []
        most = self._decoder.config.max_position_embeddings
        for first in range(0, len(requests), BATCH):
            group = requests[first : first + BATCH]
            texts = [(context + continuation)[:-1][-most:] for _, context, continuation in group]
            sequences = [
                SequenceRows(text, self._decoder.new_cache(len(text)), num_logits=min(len(pair[2]), len(text)))
                for text, pair in zip(texts, group, strict=True)
            ]
            for logits, (request, _, continuation) in zip(self._decoder.forward_forest(sequences), group, strict=True):
                tokens = continuation[-len(logits) :]
                chosen = log_softmax(logits)[range(len(tokens)), tokens]
                found.append((float(chosen.sum()), logits.argmax(axis=-1).tolist() == tokens))
                if request is not None:
                    self.cache_hook.add_partial("loglikelihood", request, found[-1])
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each text in the harness's windows, each token counted once.

        Where the tokenizer puts a token before texts, it counts too, as with the harness's `hf`.
        """
        found = []
        most = self._decoder.config.max_position_embeddings
        for (text,) in (request.args for request in requests):
            tokens = self.tok_encode(text)
            windows = map(make_disjoint_window, get_rolling_token_windows(tokens, self.prefix_token_id, most, 1))
            scores = self._loglikelihood_tokens([(None, context, continuation) for context, continuation in windows])
            found.append(sum(score for score, _ in scores))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), found[-1])
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text of each answer, up to the first of the texts that end it."""
        found = []
        begin = "".join(map(self._tokenizer.name_of, self._tokenizer.prefix))
        for context, settings in (request.args for request in requests):
            given = normalize_gen_kwargs(settings)
            if unknown := sorted(given.keys() - {"until", "do_sample", "max_gen_toks", *OPTIONS}):
                known = ", ".join(OPTIONS)
                raise ModelError(f"generation_kwargs: {', '.join(unknown)}; {known} are known. Leave it out.")
            options: Any = {"temperature": 0.0} | {name: given[name] for name in OPTIONS if name in given}
            text = context.removeprefix(begin) if begin else context  # which the tokenizer puts there
            answer = self._model.generate(
                text, max_new_tokens=given["max_gen_toks"], stop_strings=[s for s in given["until"] if s], **options
            )
            found.append(answer.text)
            self.cache_hook.add_partial("generate_until", (context, settings), answer.text)
        return found


if __name__ == "__main__":
    cli_evaluate()
