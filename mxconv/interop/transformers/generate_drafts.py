"""Speculative decoding inside `model.generate`: the target is the user's torch model, the drafts run on our kernels.

`generate` passes its prepared arguments to `custom_generate` when that is a callable. A round queries the draft chain,
evaluates all proposed tokens in one forward pass of the target, and goes through the logits as `generate` itself would:
logits processors, choice, stopping criteria, token by token, until a choice differs from the proposal. So each token is
the target's own. Sampled tokens are drawn one by one from the target's distribution, in the order and with the random
numbers of plain decoding, and a proposed token is accepted where it equals the draw.

What remains is torch: its logits may round differently when several tokens are evaluated at once. `check=True` decodes
once more without drafts and reports the first token that this changed.
"""

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import ModelError
from mxconv.gpu.device import checked_device
from mxconv.interop.transformers.custom_generate import GenerateLoop, GenerateRun, Proposer, first_difference
from mxconv.interop.transformers.torch_target import TorchTarget
from mxconv.package.manifest import read_manifest
from mxconv.package.package_folder import find_package
from mxconv.speculation.acceptance import GreedyAcceptance
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.pace import PLAIN, Outcome
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.round import MOST_NODES

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel
    from transformers.generation import LogitsProcessorList, StoppingCriteriaList
    from transformers.generation.streamers import BaseStreamer

    from mxconv.interop.transformers.graphed_target import PassGraphs


def drafting_hierarchy(
    levels: Sequence[LoadedLevel],
    num_draft_tokens: Sequence[int] | Literal["auto"] | None = None,
    confidence: Sequence[float] | None = None,
    tree: int | Literal["auto", "chain"] = "auto",
) -> Hierarchy:
    """The hierarchy of a package's target and some drafts, in which torch is the target: it gets chains, since it
    evaluates no trees, and its KV cache is shared by no draft. Raises ModelError where it is not one number a draft."""
    levels = [levels[0], *map(_with_a_cache_of_its_own, levels[1:])]
    hierarchy = Hierarchy(levels, num_draft_tokens, confidence, tree)
    hierarchy.paces[0] = Hierarchy(levels, num_draft_tokens, confidence, "chain").paces[0]
    return hierarchy


class DraftChain:
    """Drafts for one growing text, with fresh caches; what they learn outlasts it. `statistics` has their counts."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        statistics = hierarchy.begin().trace.statistics
        # drafts propose their most likely tokens, also where the target samples
        self._target = hierarchy.link(statistics, GreedyAcceptance())
        self.statistics = statistics[1:]
        self._choice, self._begin, self._end = PLAIN, 0.0, 0.0

    def propose(self, context: Sequence[int], max_tokens: int) -> list[int]:
        """At most `max_tokens` tokens that may follow; fewer, or none, where confidence is low."""
        target = self._target
        self._begin = time.perf_counter()
        self._choice = target.pace.choose(max_tokens) if max_tokens > 0 else PLAIN
        tokens: list[int] = []
        if self._choice.num_tokens:
            proposal = target.propose(context, self._choice, MOST_NODES)
            tokens = proposal.tokens
        self._end = time.perf_counter()
        return tokens

    def learn(self, context: Sequence[int], proposed: Sequence[int], num_accepted: int, logits: torch.Tensor) -> None:
        """Tell the drafts how the target verified the last proposal.

        Args:
            context: all tokens before the proposed ones, at least one.
            proposed: tokens that the target evaluated after them.
            num_accepted: number of accepted ones.
            logits: (len(proposed) + 1, vocab_size) float32, the target's.
        """
        target, choice, num_proposed = self._target, self._choice, len(proposed)
        if choice.num_tokens:
            target.drafts[choice.draft].statistics.count(choice.num_tokens, num_proposed, num_accepted)
        if self._end:  # a pace learns from plain rounds too, but not from the prompt, which nothing was proposed for
            seconds = self._end - self._begin, time.perf_counter() - self._end
            outcome = Outcome(num_proposed, num_accepted, num_proposed + 1, *seconds)
            target.pace.learn(choice, outcome)
        seen = logits.cpu().numpy()[:, : target.vocab_size]
        for draft in target.drafts:
            draft.observe(context, Proposal(list(proposed)), seen)


def _with_a_cache_of_its_own(level: LoadedLevel) -> LoadedLevel:
    """The level without a share in the target's KV cache, which is torch's."""
    shares = [part for part in level.record.shares if part != "kv_cache"]
    return replace(level, record=level.record.model_copy(update={"shares": shares}))


class Drafts:
    """Drafts from a package: a callable for `generate(custom_generate=...)`, also under the name `drafts`.

    A context manager: closing it unmaps the package. `last` is a record of the last run.

    Source:
        Multi-level drafts for `generate`, as in ML-SpecQD (arXiv 2503.13565).
    """

    def __init__(
        self,
        package: str | Path,
        levels: Sequence[str] | None = None,
        *,
        num_draft_tokens: Sequence[int] | Literal["auto"] | None = None,
        confidence: Sequence[float] | None = None,
        tree: int | Literal["auto", "chain"] = "auto",
        check: bool = False,
        streamer: "BaseStreamer | None" = None,
        kernel: str | None = None,
        num_threads: int | None = None,
        device: str | torch.device | None = None,
        graphs: bool = False,
    ) -> None:
        """Load the draft levels.

        Args:
            package: the package's folder, or its Hub id. Its target is not used; the model that generates is, whatever
                its weights are: 16 bits, or the 4-bit ones as `mxconv export --level draft` writes them.
            levels: names of its drafts, the outermost first; None for all.
            num_draft_tokens: tokens that each draft proposes a round; None for the manifest's, "auto" for what pays.
            confidence: below which each draft stops; None for the manifest's.
            tree: most nodes that a look-up may propose to a model draft, "chain" for none, "auto" for what pays; the
                torch model itself gets chains.
            check: decode greedily without drafts too, and warn (RuntimeWarning) of the first token that differs.
            streamer: gets the tokens as they come. Give it here: transformers does not pass its own argument on.
            kernel: "numpy" or a native implementation; None for the best.
            num_threads: for native kernels; None for all processors.
            device: a GPU, that of the model: its 4-bit self-draft runs there, on the model's KV cache. A model with
                BSFP layers (`load_package`, `quantize_model`) has it in its own bytes; for other models the package's
                4-bit weights are loaded too. None for drafts on the CPU.
            graphs: decode by CUDA graphs on a static KV cache, which outlast the text.

        Raises:
            MxconvError: the package cannot be loaded, or has no such draft.
        """
        self.check = check
        self.streamer = streamer
        self.last: GenerateRun | None = None
        self._root = find_package(package)
        self._opened = ExitStack()
        self._with_graphs = graphs
        self._graphs: PassGraphs | None = None  # of the last text's model
        self._begin: Callable[[TorchTarget], AbstractContextManager[Proposer]]
        if device is not None:
            found = checked_device(device)
            from mxconv.interop.transformers.gpu_self_draft import GpuSelfDraft  # imports Triton, which is there now

            manifest = read_manifest(self._root)
            draft = GpuSelfDraft(self._root, manifest, found, levels, num_draft_tokens, confidence)
            self._opened.callback(draft.close)
            self._begin = draft.begin
            self._vocab_size = None if manifest.tokenizer is None else manifest.tokenizer.vocab_size
            return
        with self._opened:
            opened = self._opened.enter_context(LoadedPackage(self._root, kernel=kernel, num_threads=num_threads))
            self._vocab_size = opened.config.vocab_size
            target, *loaded = opened.levels
            named = {level.name: level for level in loaded}
            unknown = [name for name in levels or () if name not in named]
            if unknown or not named or (levels is not None and not levels):
                raise ModelError(
                    f"{package}: drafts {', '.join(levels or ['none'])}; at least one of {', '.join(named) or 'none'} "
                    "is required, and the target is the model that generates. Leave the names out for all."
                )
            chosen = [named[name] for name in levels or named]
            hierarchy = drafting_hierarchy([target, *chosen], num_draft_tokens, confidence, tree)
            self._begin = lambda target: nullcontext(DraftChain(hierarchy))
            self._opened = self._opened.pop_all()  # nothing went wrong: it stays open

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> "Drafts":
        return self

    def __exit__(self, *_: object) -> None:
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
        """Decode one text; `generate` calls this with its own arguments, and returns the result.

        Raises:
            ModelError: a batch, beams, inputs that are no text, or a vocabulary that is not the drafts'.
        """
        self._check_arguments(model, generation_config)
        plain_kwargs = copy.deepcopy(model_kwargs) if self.check else None
        target = self._target_of(model, input_ids, model_kwargs, generation_config)
        loop = GenerateLoop(target, logits_processor, stopping_criteria, generation_config, input_ids)
        loop.stream_to(streamer, self.streamer)
        with self._begin(target) as chain:
            loop.run(chain)
        difference = None
        if plain_kwargs is not None:
            alone = self._target_of(model, input_ids, plain_kwargs, generation_config)
            plain = GenerateLoop(alone, logits_processor, stopping_criteria, generation_config, input_ids)
            plain.run(None)
            difference = first_difference(loop.choices, plain.choices)
        num_tokens = loop.sequence.shape[1] - input_ids.shape[1]
        self.last = GenerateRun(loop.choices, num_tokens, loop.num_rounds, chain.statistics, difference)
        if difference is not None:
            warnings.warn(str(difference), RuntimeWarning, stacklevel=2)
        return loop.output()

    def _target_of(
        self, model: "PreTrainedModel", input_ids: torch.Tensor, kwargs: dict[str, Any], config: "GenerationConfig"
    ) -> TorchTarget:
        """The model with an empty cache, as it decodes with these drafts."""
        if not self._with_graphs:
            return TorchTarget(model, input_ids, kwargs)
        from mxconv.interop.transformers.graphed_target import GraphedTarget, PassGraphs  # imports Triton

        if self._graphs is None or self._graphs.model is not model or self._graphs.num_positions < config.max_length:
            self._graphs = PassGraphs(model, config.max_length)
        return GraphedTarget(model, input_ids, kwargs, self._graphs)

    def _check_arguments(self, model: "PreTrainedModel", config: "GenerationConfig") -> None:
        vocab_size = model.config.get_text_config(decoder=True).vocab_size
        if self._vocab_size not in (None, vocab_size):
            raise ModelError(
                f"{self._root}: drafts with a vocabulary of {self._vocab_size} tokens; the model's "
                f"{vocab_size} are required. Convert this model, or one of its family."
            )
        if (config.num_beams or 1) > 1:
            raise ModelError(
                f"generate: num_beams={config.num_beams}; drafts serve greedy decoding and sampling. Use one beam."
            )
        for name in ("output_attentions", "output_hidden_states"):
            if getattr(config, name, False):
                raise ModelError(f"generate: {name}=True; drafts do not collect these. Leave it out.")
        if self.check and config.do_sample:
            raise ModelError("drafts: check=True with do_sample=True; only greedy decoding is checked. Leave one out.")


drafts = Drafts  # so that it reads as it works: `generate(custom_generate=drafts("package"))`
