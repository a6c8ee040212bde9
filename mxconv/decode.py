"""The Python face: text in, text out.

model = mxconv.load("package")
answer = model.generate("Once upon a time", max_new_tokens=64)
print(answer.text, answer.generation.trace.statistics)

for piece in model.stream("Once upon a time", temperature=0.8, seed=1):
    print(piece, end="", flush=True)
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from mxconv.arrays import F32
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.kv_pool import KvDtype
from mxconv.engine.placement import MemoryLimit
from mxconv.errors import ModelError, MxconvError
from mxconv.kernels.weight_pages import WeightPlace
from mxconv.package.package_folder import find_package
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.selection import (
    GREEDY_DEFAULTS,
    Accept,
    GenerationConfig,
    Request,
    RequestedSampling,
    SamplingInUse,
)
from mxconv.speculation.statistics import Generation
from mxconv.text.messages import Prompt
from mxconv.text.text_stream import TextStream

if TYPE_CHECKING:
    from mxconv.text.constraint import Constraint, ConstraintVocabulary


class Options(RequestedSampling, total=False):
    """How a prompt is decoded, each option with its default.

    How tokens are chosen, see `RequestedSampling`, is by default as the model's generation_config.json recommends;
    where that says nothing the most likely token is taken always.
    """

    max_new_tokens: int  # at least one; 64
    drafts: Sequence[str] | None  # names of levels that draft, outermost first; all. Empty decodes plainly
    num_draft_tokens: Sequence[int] | Literal["auto"] | None  # for all or each; as specs say, or auto
    confidence: Sequence[float] | None  # likewise; a draft stops when it is less sure
    tree: int | Literal["auto", "chain"]  # the most nodes of a tree, "chain" for none; "auto" for what pays
    seed: int  # of random draws; 0
    accept: Accept  # how drafts are verified when tokens are drawn at random; "coupled"
    constraint: "Constraint | None"  # what the answer must look like; none
    stop_strings: Sequence[str]  # texts that end the answer, beside those of generation_config.json


class Answer:
    """What a prompt becomes: its text and tokens so far, which are always whole.

    Iterating over one of `TextModel.stream` decodes it and yields pieces of text; others are given tokens.
    """

    def __init__(
        self,
        prompt: Prompt,
        generation: Generation,
        stream: TextStream,
        tokens: Iterable[tuple[int, F32]] = (),
        error: MxconvError | None = None,
    ) -> None:
        self.prompt, self.generation, self.error = prompt, generation, error
        self.text = ""
        self._stream, self._tokens, self._num_taken = stream, tokens, 0

    @property
    def token_ids(self) -> list[int]:
        """New ones, those of a stop token or stop string included."""
        return self.generation.token_ids

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended it."""
        return self._stream.stopped

    def take(self, token: int) -> str:
        """The text that becomes certain with the next token; what the generation has after a stop string is dropped."""
        piece = self._stream.feed(token)
        self.text += piece
        self._num_taken += 1
        if self._stream.stopped:
            del self.generation.token_ids[self._num_taken :]
            self.generation.ending = "stop"
        return piece

    def finish(self) -> str:
        """The rest of the text, after the last token."""
        piece = self._stream.finish()
        self.text += piece
        return piece

    def __iter__(self) -> Iterator[str]:
        for token in map(itemgetter(0), self._tokens):  # logits of a round go before the next one
            if piece := self.take(token):
                yield piece
            if self.stopped:
                return
        if piece := self.finish():
            yield piece


class TextModel:
    """A package with its tokenizer. A context manager: closing unmaps the files."""

    def __init__(self, loaded: LoadedPackage) -> None:
        self.loaded = loaded
        self.recommended = GenerationConfig.from_folder(loaded.folder)
        self.template_variables: Mapping[str, Any] = {}  # of the chat template, beside messages
        self._hierarchies: dict[object, Hierarchy] = {}

    def __enter__(self) -> "TextModel":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.loaded.close()

    @cached_property
    def vocabulary(self) -> "ConstraintVocabulary":
        """What constraints are compiled for."""
        from mxconv.text.constraint import ConstraintVocabulary

        return ConstraintVocabulary(self.loaded.tokenizer, self.loaded.target.config.vocab_size)

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Answer:
        """Decode a prompt to the end; an interrupt (Ctrl-C) ends it early, with what there is by then.

        Args:
            prompt: a text, or messages for the model's chat template.
            options: see `Options`.

        Raises:
            MxconvError: a level that is not there, a value out of range, a prompt that is empty or too long.
        """
        answer = self.stream(prompt, **options)
        with suppress(KeyboardInterrupt):
            for _ in answer:
                pass
        return answer

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Answer:
        """An answer that is decoded while it is iterated, piece by piece; otherwise as `generate`."""
        request, hierarchy = self.request(self.encode(prompt), options), self.hierarchy(options)
        generation = hierarchy.begin()
        stream = self.text_stream(request, options)
        return Answer(prompt, generation, stream, hierarchy.stream(request, generation))

    def request(self, prompt: list[int], options: Options, defaults: Mapping[str, Any] = GREEDY_DEFAULTS) -> Request:
        """What is to be decoded after the tokens of a prompt; `defaults` as `sampling` takes them."""
        selection = self.sampling(options, defaults).selection(options.get("seed", 0), options.get("accept", "coupled"))
        if (constraint := options.get("constraint")) is not None:
            selection = replace(selection, constraint=self.vocabulary.compile(constraint))
        return Request(prompt, options.get("max_new_tokens", 64), self.loaded.tokenizer.eos_token_ids, selection)

    def text_stream(self, request: Request, options: Options, shown: Collection[int] = ()) -> TextStream:
        """From the tokens of an answer to its text, up to a stop string; names of `shown` special tokens are part."""
        stop_strings = [*self.recommended.stop_strings, *options.get("stop_strings", ())]
        return TextStream(self.loaded.tokenizer, stop_strings, request.prompt, shown)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a text, or of messages as the model's chat template puts them."""
        if isinstance(prompt, str):
            return self.loaded.tokenizer.encode(prompt)
        from mxconv.text.chat import encode_prompts

        return encode_prompts(self.loaded.tokenizer, self.loaded.folder, [prompt], self.template_variables)[0]

    def sampling(self, options: RequestedSampling, defaults: Mapping[str, Any] = GREEDY_DEFAULTS) -> SamplingInUse:
        """How tokens are chosen, and why so. `defaults` are for what neither options nor the model say anything of."""
        return SamplingInUse.of(options, self.recommended, defaults)

    def hierarchy(self, options: Options) -> Hierarchy:
        """The levels that take part, linked; the same object for the same levels, so that it keeps what it learns."""
        names = options.get("drafts")
        lengths, confidence = options.get("num_draft_tokens"), options.get("confidence")
        if lengths is None and not (self.loaded.lengths_are_given and names is None):
            lengths = "auto"
        tree = options.get("tree", "auto")
        key = repr((names, lengths, confidence, tree))
        if key not in self._hierarchies:
            levels = self.loaded.auto_levels if lengths == "auto" else self.loaded.levels
            named = levels if names is None else self._levels(names)
            self._hierarchies[key] = Hierarchy(named, lengths, confidence, tree)
        return self._hierarchies[key]

    def _levels(self, drafts: Sequence[str]) -> list[LoadedLevel]:
        by_name = {level.name: level for level in self.loaded.auto_levels[1:]}
        if unknown := [name for name in drafts if name not in by_name]:
            raise ModelError(
                f"{self.loaded.package.root}: drafts {', '.join(unknown)}; names out of "
                f"{', '.join(by_name) or 'none'} are required."
            )
        return [self.loaded.levels[0], *(by_name[name] for name in drafts)]


def load(
    package: str | Path,
    drafts: Sequence[str] = (),
    kernel: str | None = None,
    num_threads: int | None = None,
    levels: Sequence[str] | None = None,
    kv_dtype: KvDtype = "fp32",
    weights: WeightPlace = "auto",
    memory: MemoryLimit | None = None,
) -> TextModel:
    """Open a package for generation.

    Args:
        package: a folder that `mxconv quantize` wrote, or the Hub id or URL of one.
        drafts: further levels that are not in the package, as `--draft` takes them: "prompt-lookup", "ngram:TABLE".
        kernel: "numpy" or a native implementation; None takes the best.
        num_threads: of native kernels; None takes every processor that this process may use.
        levels: names of the package's levels to load; the first, any model of them, is what is decoded. None for all.
        kv_dtype: of keys and values in caches: "fp32", or rounded to "bf16" or "fp16".
        weights: "map" leaves them in their files, "copy" copies them into large pages of memory, which is faster;
            "auto" copies them where half of the memory that is available has room for them.
        memory: bytes that the process may take, or "auto" for what is available: what drafts read is then copied, and
            the rest of the target is read from the disk in each pass, as far as it does not fit. None is no limit.

    Raises:
        MxconvError: the package is damaged, or a draft cannot be one.
    """
    specs = [parse_draft(text) for text in drafts]
    wanted = None if levels is None else list(levels)
    folder = find_package(str(package))
    loaded = LoadedPackage(
        folder, wanted, kernel, num_threads, specs, kv_dtype=kv_dtype, weights=weights, memory=memory
    )
    return TextModel(loaded)
