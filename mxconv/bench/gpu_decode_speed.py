"""Whole decodes in transformers on a GPU: the model in 16 bits, in BSFP, and in BSFP with its 4-bit self-draft.

One model at a time is on the device, so that each has its own peak of memory: first the checkpoint's, then the
package's, without drafts and with them in turns, prompt by prompt. Read bandwidth is sampled before and after each
text. Tokens may differ where two are almost equally likely (docs/gpu.md): the first that does is reported with both
margins, and is no error.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mxconv.bench.decode_speed import StrategyResult, geomean, prompt_ids, summed
from mxconv.bench.gpu_clock import GpuReadBandwidth, cache_bytes
from mxconv.bench.rates import spread
from mxconv.errors import ModelError, install_line
from mxconv.gpu.device import require_room
from mxconv.gpu.gpu_experts import GpuExperts
from mxconv.gpu.gpu_linear import GpuLinear
from mxconv.gpu.load_package import load_package
from mxconv.gpu.weight import BsfpWeight
from mxconv.interop.transformers.custom_generate import GenerateRun, GreedyChoice, first_difference, greedy_choice
from mxconv.interop.transformers.generate_drafts import Drafts
from mxconv.package.manifest import read_manifest
from mxconv.package.package_folder import find_package
from mxconv.progress import Progress, silent
from mxconv.text.messages import Prompt
from mxconv.text.tokenizer import Tokenizer

PLAIN, TARGET, DRAFTED = "16-bit", "bsfp", "bsfp + draft"
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}
CACHE_MULTIPLE = 4  # the array that is read, in L2 caches
NUM_READS = 8  # of a sample of bandwidth; together they read that array twice


@dataclass(frozen=True)
class TokenDifference:
    """The first token of a text that another strategy chose otherwise, each with its margin over the next best."""

    prompt: int  # its number
    compared_with: str  # the other strategy
    index: int  # among the new tokens
    token: int
    runner_up: int
    margin: float
    other_token: int
    other_runner_up: int
    other_margin: float


@dataclass(frozen=True, kw_only=True)
class GpuDecodeResult(StrategyResult):
    """Figures of one strategy over all prompts, against 16 bits. Bytes of memory are None in the interpreter."""

    num_prompts: int
    speedup_by_prompt: list[float]
    num_bytes: int | None  # of weights that all forward passes read; None where there are experts
    loading_peak_bytes: int | None
    peak_bytes: int | None  # while it decodes, weights included
    identical_to_target: bool  # to the tokens of the same weights without drafts
    differences: list[TokenDifference]  # at most one a prompt: from 16 bits without drafts, from the target with them


@dataclass(frozen=True)
class RecordedText:
    """The text of one prompt."""

    token_ids: list[int]  # new ones, of the timed run
    seconds: float
    bandwidth: float  # bytes a second, before and after
    peak_bytes: int | None  # while it was timed
    choices: list[GreedyChoice]  # of the run that was recorded
    run: GenerateRun | None  # the timed one; None without drafts

    @property
    def num_rounds(self) -> int:
        """Forward passes of the target."""
        return len(self.token_ids) if self.run is None else self.run.num_rounds

    @property
    def num_draft_passes(self) -> int:
        """Forward passes of the draft."""
        return sum(level.num_forwards for level in self.run.levels) if self.run else 0


@dataclass(frozen=True)
class Decoded:
    """The texts of a strategy, one for each prompt."""

    strategy: str
    texts: list[RecordedText]
    target_bytes: int | None  # that a pass of the target reads
    draft_bytes: int | None  # that a pass of the draft reads; 0 without
    loading_peak_bytes: int | None  # while the model was loaded


def bench_gpu_decoding(
    package: str | Path,
    source: str | None,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    device: torch.device,
    progress: Progress = silent,
) -> list[GpuDecodeResult]:
    """Decode every prompt with every strategy.

    Args:
        package: a BSFP package: a folder, or a Hub id.
        source: its 16-bit checkpoint for transformers, a folder or a Hub id; None for the one that the manifest names.
        prompts: texts, or messages.
        max_new_tokens: a prompt.
        device: a GPU, or the CPU in Triton's interpreter.
        progress: receives the number of texts.

    Raises:
        MxconvError: transformers is missing or cannot load the checkpoint, the package is none of BSFP or of another
            model, there is too little memory, or a prompt has no tokens.
    """
    root = find_package(package)
    manifest = read_manifest(root)
    if manifest.options.codec != "bsfp":
        raise ModelError(
            f"{root}: an {manifest.options.codec} package; a BSFP package is required, which is target and draft. "
            "Convert with --codec bsfp."
        )
    checkpoint, dtype = source or manifest.source.id, DTYPES[manifest.source.dtype]
    ids = prompt_ids(Tokenizer.from_folder(root), root, prompts)
    array_bytes = CACHE_MULTIPLE * cache_bytes(device)
    read = GpuReadBandwidth(device, array_bytes).of(2 * array_bytes // NUM_READS, NUM_READS)
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    total, done = 3 * len(ids), 0

    def texts_of(model: Any, turns: dict[str, Drafts | None]) -> dict[str, list[RecordedText]]:
        nonlocal done
        found: dict[str, list[RecordedText]] = {name: [] for name in turns}
        for prompt in ids:
            for name, own in turns.items():
                progress("decode", done, total)
                found[name].append(record_text(model, prompt, max_new_tokens, own, read, before))
                done += 1
        return found

    _begin_peak(device)
    model = _on_host(checkpoint, dtype)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    require_room(device, num_bytes, checkpoint, "It is measured beside the package. Take a smaller model.")
    model.to(device)
    loading = _peak_bytes(device, before)
    plain = Decoded(PLAIN, texts_of(model, {PLAIN: None})[PLAIN], bytes_per_pass(model), 0, loading)
    del model
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    _begin_peak(device)
    model = _on_host(checkpoint, dtype)
    load_package(model, root, device)
    loading = _peak_bytes(device, before)
    with Drafts(root, device=device) as own:
        found = texts_of(model, {TARGET: None, DRAFTED: own})
    target = Decoded(TARGET, found[TARGET], bytes_per_pass(model), 0, loading)
    drafted = Decoded(DRAFTED, found[DRAFTED], target.target_bytes, bytes_per_pass(model, is_draft=True), loading)
    progress("decode", total, total)
    return [summarize(mine, plain, same) for mine, same in ((plain, plain), (target, target), (drafted, target))]


def record_text(
    model: Any,
    prompt: list[int],
    max_new_tokens: int,
    own: Drafts | None,
    read: Callable[[], float],
    bytes_before: int,
) -> RecordedText:
    """Decode a prompt greedily, twice: the first run warms up and keeps the scores, the second is timed.

    Without drafts transformers decodes. `read` samples read bandwidth; `bytes_before` were held before the model came.
    """
    recorded = _generate(model, prompt, max_new_tokens, own, return_dict_in_generate=True, output_scores=True)
    choices = [greedy_choice(index, scores[0]) for index, scores in enumerate(recorded.scores)]
    rate = read()
    _begin_peak(model.device)
    begin = time.perf_counter()
    sequences = _generate(model, prompt, max_new_tokens, own)
    tokens = sequences[0, len(prompt) :].tolist()  # waits for the device
    seconds = time.perf_counter() - begin
    peak = _peak_bytes(model.device, bytes_before)
    bandwidth = spread([rate, read()]).median
    return RecordedText(tokens, seconds, bandwidth, peak, choices, None if own is None else own.last)


def bytes_per_pass(model: nn.Module, is_draft: bool = False) -> int | None:
    """Bytes of weights that a forward pass reads: each once, but for embeddings, of which a token takes a row.

    Args:
        model: in 16 bits, or with a package's layers.
        is_draft: count the 4-bit weights of the package's layers.

    Returns:
        None where there are experts, of which a token needs some.
    """
    num_bytes = 0
    for module in model.modules():
        if isinstance(module, GpuExperts):
            return None
        if isinstance(module, GpuLinear):
            weight = module.weight_on_device
            exact = weight.arrays.num_bytes if isinstance(weight, BsfpWeight) else weight.num_bytes
            num_bytes += weight.draft.num_bytes if isinstance(weight, BsfpWeight) and is_draft else exact
        if isinstance(module, nn.Embedding):
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.ndim > 2:
                return None
            num_bytes += parameter.nbytes
    return num_bytes


def summarize(mine: Decoded, plain: Decoded, target: Decoded) -> GpuDecodeResult:
    """Figures of a strategy, from its texts, those in 16 bits, and those of the same weights without drafts."""
    texts, traffic = mine.texts, None
    if mine.target_bytes is not None and mine.draft_bytes is not None:
        target_bytes, draft_bytes = mine.target_bytes, mine.draft_bytes
        traffic = [text.num_rounds * target_bytes + text.num_draft_passes * draft_bytes for text in texts]
    tokens, plain_tokens, target_tokens = ([text.token_ids for text in each.texts] for each in (mine, plain, target))
    num_tokens = sum(map(len, tokens))
    rates, plain_rates = ([len(text.token_ids) / text.seconds for text in each.texts] for each in (mine, plain))
    ratios = [rate / other for rate, other in zip(rates, plain_rates, strict=True)]
    drafts = summed([text.run.levels for text in texts if text.run is not None])
    fractions = [count / text.seconds / text.bandwidth for count, text in zip(traffic or [], texts, strict=False)]
    other = plain if mine is target else target
    return GpuDecodeResult(
        strategy=mine.strategy,
        levels=["target", *(draft.name for draft in drafts)],
        num_prompts=len(texts),
        num_tokens=num_tokens,
        tokens_per_second=num_tokens / sum(text.seconds for text in texts),
        speedup=geomean(ratios),
        speedup_by_prompt=ratios,
        tokens_per_round=num_tokens / sum(text.num_rounds for text in texts),
        acceptance_rates=[draft.acceptance_rate for draft in drafts],
        num_bytes=None if traffic is None else sum(traffic),
        read_bandwidth=spread([text.bandwidth for text in texts]).median / 1e9,
        fraction_of_bandwidth=spread(fractions).median if fractions else None,
        loading_peak_bytes=mine.loading_peak_bytes,
        peak_bytes=max((text.peak_bytes for text in texts if text.peak_bytes is not None), default=None),
        identical_to_greedy=tokens == plain_tokens,
        identical_to_target=tokens == target_tokens,
        differences=[] if other is mine else _differences(mine, other),
    )


def _differences(mine: Decoded, other: Decoded) -> list[TokenDifference]:
    found = []
    for number, (text, theirs) in enumerate(zip(mine.texts, other.texts, strict=True)):
        difference = first_difference(text.choices, theirs.choices)
        if difference is not None:
            chosen, instead = difference.with_drafts, difference.without_drafts
            margins = (chosen.token, chosen.runner_up, chosen.margin, instead.token, instead.runner_up, instead.margin)
            found.append(TokenDifference(number, other.strategy, chosen.index, *margins))
    return found


def _on_host(checkpoint: str, dtype: torch.dtype) -> Any:
    if find_spec("transformers") is None:
        raise ModelError(
            "bench decode: transformers is not installed; it runs the models on a GPU. " + install_line("hf")
        )
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"{checkpoint}: transformers cannot load it ({reason}); the package's 16-bit checkpoint is required. Name "
            "it with --source."
        ) from error
    config = model.generation_config
    config.max_length = None  # transformers logs a line where both limits are set
    if config.pad_token_id is None:  # and one where nothing pads
        config.pad_token_id = 0
    return model


def _generate(model: Any, prompt: list[int], max_new_tokens: int, own: Drafts | None, **options: Any) -> Any:
    ids = torch.tensor([prompt], device=model.device)
    drafted = {} if own is None else {"custom_generate": own}
    with torch.no_grad():
        return model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            **drafted,
            **options,
        )


def _begin_peak(device: torch.device) -> None:
    """Count peaks of memory from here, once the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)


def _peak_bytes(device: torch.device, before: int) -> int | None:
    """The most bytes that torch held since `_begin_peak`, beyond those before; None in the interpreter."""
    return torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else None
