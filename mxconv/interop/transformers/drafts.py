"""Speculative decoding inside `model.generate`: the target is the user's torch model, the drafts run on our kernels.

`generate` hands its prepared arguments to `custom_generate` when that is a callable. A round asks the draft chain for
tokens, evaluates all of them in one forward pass of the target, and goes through the logits as `generate` itself
would: logits processors, choice, stopping criteria, token by token, until a choice differs from the proposal. So each
token is the target's own. Sampled tokens are drawn one by one from the target's distribution, in the order and with
the random numbers of plain decoding, and a proposal is accepted where it equals the draw.

What remains is torch: its logits may round differently when several tokens are evaluated at once. `check=True` decodes
once more without drafts and says where that changed a token.
"""

import copy
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch

from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import ModelError
from mxconv.interop.transformers.arguments import check_arguments
from mxconv.interop.transformers.chain import DraftLevels
from mxconv.interop.transformers.decoding import Decoding
from mxconv.interop.transformers.gpu.chosen_draft import gpu_draft
from mxconv.interop.transformers.graphs.passes import RecordedPasses
from mxconv.interop.transformers.graphs.replayed_target import ReplayedTarget
from mxconv.interop.transformers.proposer import Proposers
from mxconv.interop.transformers.run import Run, first_difference
from mxconv.interop.transformers.target import TorchTarget
from mxconv.package.package_folder import find_package

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel
    from transformers.generation import LogitsProcessorList, StoppingCriteriaList
    from transformers.generation.streamers import BaseStreamer


class Drafts:
    """A callable for `generate(custom_generate=...)`. A context manager: closing it unmaps the package.

    `last` is what the last run did.
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
        graphs: bool = True,
    ) -> None:
        """Load the draft levels; arguments as for `drafts`."""
        self.check = check
        self.streamer = streamer
        self.last: Run | None = None
        self._root = find_package(package)
        self._package: LoadedPackage | None = None
        self._passes = RecordedPasses() if device is not None and graphs else None
        self._drafts: Proposers
        self._vocab_size: int | None
        if device is not None:
            self._drafts, self._vocab_size = gpu_draft(self._root, levels, num_draft_tokens, confidence, device)
            return
        self._package = LoadedPackage(self._root, kernel=kernel, num_threads=num_threads)
        self._vocab_size = self._package.config.vocab_size
        try:
            target, *loaded = self._package.levels
            named = {level.name: level for level in loaded}
            unknown = [name for name in levels or () if name not in named]
            if unknown or not named or (levels is not None and not levels):
                raise ModelError(
                    f"{package}: drafts {', '.join(levels or ['none'])}; at least one of {', '.join(named) or 'none'} "
                    "is required, and the target is the model that generates. Leave the names out for all."
                )
            chosen = [named[name] for name in levels or named]
            self._drafts = DraftLevels([target, *chosen], num_draft_tokens, confidence, tree)
        except BaseException:
            self._package.close()
            raise

    def close(self) -> None:
        self._drafts.close()
        if self._passes is not None:
            self._passes.close()
        if self._package is not None:
            self._package.close()

    def __enter__(self) -> "Drafts":
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
            ModelError: a batch, beams, inputs that are no text, or a vocabulary that is not the drafts'.
        """
        self._check_arguments(model, generation_config)
        plain_kwargs = copy.deepcopy(model_kwargs) if self.check else None
        target = self._target(model, input_ids, model_kwargs, generation_config)
        decoding = Decoding(target, logits_processor, stopping_criteria, generation_config, input_ids)
        decoding.stream_to(streamer, self.streamer)
        with self._drafts.begin(target) as chain:
            decoding.run(chain)
        difference = None
        if plain_kwargs is not None:
            alone = self._target(model, input_ids, plain_kwargs, generation_config)
            plain = Decoding(alone, logits_processor, stopping_criteria, generation_config, input_ids)
            plain.run(None)
            difference = first_difference(decoding.choices, plain.choices)
        num_tokens = decoding.sequence.shape[1] - input_ids.shape[1]
        self.last = Run(
            decoding.choices, num_tokens, decoding.num_rounds, chain.statistics, difference, target.num_replays
        )
        if difference is not None:
            warnings.warn(str(difference), RuntimeWarning, stacklevel=2)
        return decoding.output()

    def _target(
        self,
        model: "PreTrainedModel",
        input_ids: torch.Tensor,
        model_kwargs: dict[str, Any],
        config: "GenerationConfig",
    ) -> TorchTarget:
        if self._passes is None:
            return TorchTarget(model, input_ids, model_kwargs)
        return ReplayedTarget(model, input_ids, model_kwargs, self._passes, config.max_length)

    def _check_arguments(self, model: "PreTrainedModel", config: "GenerationConfig") -> None:
        vocab_size = model.config.get_text_config(decoder=True).vocab_size
        if self._vocab_size not in (None, vocab_size):
            raise ModelError(
                f"{self._root}: drafts with a vocabulary of {self._vocab_size} tokens; the model's "
                f"{vocab_size} are required. Convert this model, or one of its family."
            )
        check_arguments(config)
        if self.check and config.do_sample:
            raise ModelError("drafts: check=True with do_sample=True; only greedy decoding is checked. Leave one out.")


def drafts(
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
    graphs: bool = True,
) -> Drafts:
    """Drafts from a package, for `model.generate(**inputs, custom_generate=drafts("package"))`.

    Args:
        package: the package's folder, or its Hub id. Its target is not used; the model that generates is, whatever
            its weights are: 16 bits, or the 4-bit ones as `mxconv export --level draft` writes them.
        levels: which of its drafts, the outermost first; None for all.
        num_draft_tokens: tokens a round asks of each draft; None for the manifest's, "auto" for what pays.
        confidence: below which each draft stops; None for the manifest's.
        tree: most nodes that a look-up may propose to a model draft, "chain" for none, "auto" for what pays; the torch
            model itself is told chains.
        check: decode greedily without drafts too, and warn (RuntimeWarning) of the first token that differs.
        streamer: gets the tokens as they come. Give it here: transformers does not hand on its own argument.
        kernel: "numpy" or a native implementation; None for the best.
        num_threads: for native kernels; None for all processors.
        device: a GPU, that of the model: its 4-bit self-draft runs there, on the model's KV cache. A model with BSFP
            layers (`quantize_model`) has it in its own bytes; beside other layers the package's 4-bit weights are
            loaded. None for drafts on the CPU.
        graphs: with a `device`, whether short passes of model and draft are recorded as CUDA graphs, with a KV cache of
            fixed size; models whose passes cannot be recorded are launched as ever.

    Returns:
        The callable; its `last` is what the last run did.

    Raises:
        MxconvError: the package cannot be loaded, or has no such draft.

    Source:
        Multi-level drafts behind `generate`, as in ML-SpecQD (arXiv 2503.13565).
    """
    return Drafts(
        package,
        levels,
        num_draft_tokens=num_draft_tokens,
        confidence=confidence,
        tree=tree,
        check=check,
        streamer=streamer,
        kernel=kernel,
        num_threads=num_threads,
        device=device,
        graphs=graphs,
    )
