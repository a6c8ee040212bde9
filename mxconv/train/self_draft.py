"""Training the MXFP4 copy of a model to agree with it: weights move, scales stay, every step rounds them anew.

A trained number is a weight in units of its block's scale. The forward pass rounds it to an element and multiplies by
the scale; the gradient passes the rounding as if it were not there (straight-through, arXiv 1308.3432). So a step of
Adam is the same share of the scale in every block, whatever the size of its weights. All else is the target's own, and
the output head MXINT8, as the package has them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.func import functional_call

from mxconv.arrays import F32, U8, U16
from mxconv.checkpoint.source import open_checkpoint
from mxconv.codecs.e2m1 import MAX, VALUES, encode_e2m1
from mxconv.codecs.e8m0 import BIAS, decode_e8m0
from mxconv.codecs.mxfp4 import BLOCK, quantize_mxfp4
from mxconv.codecs.mxint8 import dequantize_mxint8, quantize_mxint8
from mxconv.codecs.vnni8 import TILE_ROWS, pack_nibbles, pack_scales, pad, unpack_nibbles, unpack_scales
from mxconv.conversion.draft_file import DraftFile, DraftFileWriter
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.plan import TensorPlan, plan_tensors
from mxconv.errors import ModelError
from mxconv.package.head_screen import HeadScreen, read_head_screen
from mxconv.package.package import Package
from mxconv.train.training_task import FrozenTarget, TrainingTask, kl_divergence
from mxconv.train.windows import Windows

FILE_NAME = "draft.safetensors"
Matrix = tuple[F32, U8]  # elements (rows, num_blocks * 32), weights in units of their scales; scales (rows, num_blocks)


def round_e2m1(elements: Tensor) -> Tensor:
    """The nearest E2M1 values: ties to even, saturating at ±6, the sign of zero kept."""
    magnitudes = elements.abs()
    halves = (magnitudes < 2).to(elements.dtype)  # steps of 1/2 below 2, of 1 below 4, then of 2
    per_unit = 0.5 + 0.5 * (magnitudes < 4) + halves
    return (elements * per_unit).round_().div_(per_unit).clamp_(-MAX, MAX)


class SelfDraftTask(TrainingTask):
    """The matrices of a target in few bits.

    Args:
        folder: of the target.
        target: what they learn from.
        start: a draft file or a package to begin with, whose head screen goes along; what it lacks, or all, begins as
            the direct cast, rule `mse`.
        record: how the draft is made, for the file.

    Raises:
        MxconvError: a matrix is no plain one of 16 bits, or transformers has none of its name.
    """

    weight_decay = 0.0  # toward zero would be away from the target

    def __init__(
        self,
        folder: Path,
        target: FrozenTarget,
        start: Path | None,
        record: Mapping[str, Any],
    ) -> None:
        super().__init__({}, target, torch.float32, ["kl"])
        self.record = dict(record)
        self.matrices, self.head = _read(folder, dict(target.model.named_parameters()))
        self.screen: HeadScreen | None = None
        if start is not None:
            self._start_from(start)

    def model(self) -> "SelfDraftModel":
        return SelfDraftModel(self.target.model, self.matrices, self.head)

    def losses(self, model: nn.Module, token_ids: Tensor, windows: Windows) -> Tensor:
        """KL(target || draft) over the whole vocabulary, mean over the tokens that follow the prompts."""
        first = max(windows.num_prompt_tokens - 1, 0)
        theirs = self.target.logits(token_ids)[:, first:-1]
        return kl_divergence(model(token_ids)[:, first:-1], theirs)[None]

    def num_bytes(self, model: nn.Module) -> int:
        """With the rounded weights, and those that the training began with."""
        return super().num_bytes(model) + 8 * sum(elements.size for elements, _ in self.matrices.values())

    def flops_per_token(self, model: nn.Module) -> float:
        """Two a weight forward in each of both; back, two for the states and, where weights move, two for them."""
        return 6.0 * self.target.num_parameters + 2.0 * sum(each.size for each, _ in self.matrices.values())

    def write(self, tensors: dict[str, Tensor], folder: Path) -> None:
        """The draft file alone, under `FILE_NAME`."""
        codes = {
            name: encode_e2m1(tensors[f"elements.{place}"].cpu().numpy()) for place, name in enumerate(self.matrices)
        }
        stored = {
            name: (pack_nibbles(pad(each, TILE_ROWS, 1)), pack_scales(pad(self.matrices[name][1], TILE_ROWS, 1)))
            for name, each in codes.items()
        }
        shapes = {name: codes[name].shape for name in stored}
        with DraftFileWriter(folder / FILE_NAME, shapes) as writer:
            for name, (packed, scales) in stored.items():
                writer.write(name, packed, scales)
            writer.commit(self.record, self.screen)

    def _start_from(self, path: Path) -> None:
        """Take given codes and scales.

        A weight that rounds to its code there begins as it is in the target. Any other one begins as the code's value.
        """
        is_empty = True
        for name, packed, packed_scales in _given(path):
            if name not in self.matrices:
                raise ModelError(
                    f"{path}: holds {name}, which is no matrix of the target's draft; a draft of the same model is "
                    "required. Give that, or leave --from out."
                )
            elements, own = self.matrices[name]
            codes, scales = unpack_nibbles(packed)[: len(own)], unpack_scales(packed_scales)[: len(own)]
            if codes.shape != elements.shape:
                raise ModelError(
                    f"{path}: {name} is {codes.shape}; {elements.shape} is required. Give a draft of the same model."
                )
            elements = np.ldexp(elements, np.repeat(own.astype(np.int32) - scales, BLOCK, 1))
            kept = encode_e2m1(elements) == codes
            self.matrices[name] = np.where(kept, elements, VALUES[codes]), scales
            is_empty = False
        self.screen = _given_screen(path, tuple(self.target.model.get_output_embeddings().weight.shape))
        if is_empty:
            raise ModelError(
                f"{path}: holds no matrix of mxfp4; one at least is required. Make it with `mxconv quantize`."
            )


def _given(path: Path) -> Iterator[tuple[str, U8, U8]]:
    """Stored codes and scales of a draft file, or of a package, with the names of the tensors."""
    if path.is_dir():
        with Package(path) as package:
            for record in package.manifest.tensors:
                if record.codec == "mxfp4":
                    stored = package.mxfp4(record)
                    yield record.name, stored.codes, stored.scales
        return
    draft = DraftFile.open(path)
    try:
        for name in draft.names:
            if draft.file.entries[f"{name}.scales"].dtype != "U8":  # a draft of BSFP
                continue
            codes, scales = (cast(U8, draft.file.view(f"{name}.{part}")) for part in ("codes", "scales"))
            yield name, codes, scales
    finally:
        draft.close()


def _given_screen(path: Path, head: tuple[int, int]) -> HeadScreen | None:
    """The head screen of a draft file, or of a package; it depends on the target's head and on texts alone."""
    if path.is_dir():
        with Package(path) as package:
            found = [level.screen for level in package.manifest.levels if level.screen is not None]
            return read_head_screen(package.arrays, found[0], head, str(path)) if found else None
    draft = DraftFile.open(path)
    try:
        return draft.screen(head) if draft.has_screen else None
    finally:
        draft.close()


class SelfDraftModel(nn.Module):
    """The target with other weights: its layers are used and not copied.

    Args:
        target: a Hugging Face model, frozen.
        matrices: by the names of its parameters.
        head: (vocab_size, hidden_size) values of the output head; None leaves the target's.
    """

    head: Tensor | None

    def __init__(self, target: Any, matrices: Mapping[str, Matrix], head: F32 | None) -> None:
        super().__init__()
        self._target = [target]  # in a list, it is no module of this one, whose state is what is trained
        self.names = list(matrices)
        self.elements = nn.ParameterList(torch.from_numpy(elements.copy()) for elements, _ in matrices.values())
        for place, (_, scales) in enumerate(matrices.values()):
            self.register_buffer(f"scales_{place}", torch.from_numpy(decode_e8m0(scales)), persistent=False)
        self.register_buffer("head", None if head is None else torch.from_numpy(head), persistent=False)

    def weights(self) -> dict[str, Tensor]:
        """The rounded matrices by name, (out_features, in_features)."""
        target, made = self._target[0], {}
        for place, name in enumerate(self.names):
            scales = getattr(self, f"scales_{place}")
            values: Tensor = Rounded.apply(self.elements[place], scales)  # type: ignore[no-untyped-call]
            made[name] = values[:, : target.get_parameter(name).shape[1]]
        if self.head is not None:
            output = target.get_output_embeddings()
            made[next(f"{name}.weight" for name, module in target.named_modules() if module is output)] = self.head
        return made

    def forward(self, token_ids: Tensor) -> Tensor:
        """Logits (batch, length, vocab_size)."""
        given = {"input_ids": token_ids, "use_cache": False}
        made: Tensor = functional_call(self._target[0], self.weights(), (), given, tie_weights=False).logits
        return made


class Rounded(torch.autograd.Function):
    """Elements (rows, num_blocks * 32) as values: rounded as the codec does, times scales (rows, num_blocks).

    The gradient of a value is handed to its element as it is. The factor of the scale is left out, since Adam's steps
    have no use for it and its epsilon would be large beside such small numbers.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, elements: Tensor, scales: Tensor) -> Tensor:
        rows, columns = elements.shape
        rounded = round_e2m1(elements).view(rows, -1, BLOCK)
        return rounded.mul_(scales[:, :, None]).view(rows, columns)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _read(folder: Path, parameters: Mapping[str, Tensor]) -> tuple[dict[str, Matrix], F32 | None]:
    """The matrices of a checkpoint as its direct cast begins, and its output head in MXINT8."""
    matrices: dict[str, Matrix] = {}
    head = None
    with open_checkpoint(folder) as checkpoint:
        for plan in plan_tensors(checkpoint, QuantizeOptions(scale_rule="mse")):
            if not plan.is_quantized:
                continue
            values = _values(plan, parameters)
            if plan.codec == "mxint8":
                head = dequantize_mxint8(*quantize_mxint8(values))[:, : values.shape[1]]
                continue
            _, scales = quantize_mxfp4(values, scale_rule="mse")
            blocks = pad(values, 1, BLOCK).reshape(len(values), -1, BLOCK)
            elements = np.ldexp(blocks, BIAS - scales.astype(np.int32)[:, :, None])
            matrices[plan.name] = elements.reshape(len(values), -1), scales
    return matrices, head


def _values(plan: TensorPlan, parameters: Mapping[str, Tensor]) -> F32:
    """The weights of a tensor, which are those of the parameter of its name."""
    name, parameter = plan.name, parameters.get(plan.name)
    if plan.experts is not None or plan.carried is not None or plan.fp8 is not None:
        raise ModelError(
            f"{plan.tensor.path}: tensor {name} ({plan.reason}); matrices of 16 bits are required, since others are "
            "not trained. Convert the model with mxconv quantize alone."
        )
    assert plan.float_format is not None
    values = plan.float_format.decode(cast(U16, plan.tensor.array()))
    if parameter is None or not np.array_equal(parameter.cpu().numpy(), values):
        raise ModelError(
            f"{plan.tensor.path}: tensor {name}: transformers has {'no' if parameter is None else 'another'} parameter "
            "of this name; the same one is required to train it. Convert the model with mxconv quantize alone."
        )
    return values
