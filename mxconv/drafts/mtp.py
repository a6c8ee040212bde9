"""The checkpoint's own layer for multi-token prediction: `mtp`, in the package's 4 bits, or in 16 with `bits=16`.

One layer over the text's tokens and the target's last states, trained with the model. Sources: see
`mxconv.arch.families.mtp_modules`.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Mtp
from mxconv.arch.elements import Linear
from mxconv.arch.model_sizes import ModelSizes
from mxconv.arch.whole_model import checkpoint_config
from mxconv.arrays import F32
from mxconv.drafts.feature_draft import FeatureDraft, FeatureReader
from mxconv.drafts.kind import DraftSpec, LevelCodec, OpenedDraft, OpenTarget, Parameter, Run
from mxconv.drafts.pass_cost import PassCost, mtp_bytes
from mxconv.drafts.reader_kind import ReaderKind
from mxconv.engine.layer import Layer
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import Reads, SequenceRows
from mxconv.engine.stored_weights import package_config
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.errors import ModelError, MxconvError
from mxconv.package.level_record import LevelRecord, Shared
from mxconv.package.package import Package
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.reader import ReaderSizes


class MtpModule(FeatureReader):
    """The module of a model: it reads the state after the target's final norm, and its features are such states too.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights, name: str) -> None:
        assert config.mtp is not None, "of a family that has such a module"
        parts, tensors, size = config.mtp, CheckedWeights(weights, name), config.hidden_size
        super().__init__(ReaderSizes(size, config.vocab_size), Reads(normed_last=True), name)
        self.layers = layer_config(config, parts)
        self.embedding = tensors.matrix(config.embedding, config.vocab_size, size)
        self.embedding_norm = tensors.norm(parts.embedding_norm, size)
        self.state_norm = tensors.norm(parts.state_norm, size)
        self.projection = tensors.projection(parts.projection, size, 2 * size)
        self.layer = Layer(tensors, self.layers, 0, parts.layer_prefix)
        self.norm = tensors.norm(parts.final_norm, size)
        self.output = tensors.projection(Linear(config.head), config.vocab_size, size)
        self._state_first = parts.state_first

    def fuse(self, states: F32) -> F32:
        normed: F32 = states[0]
        return normed

    def made(self, embedded: F32, features: F32, rows: SequenceRows, positions: Positions) -> F32:
        parts = [self.embedding_norm(embedded), self.state_norm(features)]
        if self._state_first:
            parts.reverse()
        return self.norm(self.layer(self.projection(np.concatenate(parts, axis=1)), [rows], positions))

    def logits(self, features: F32) -> F32:
        return self.output(features)


def layer_config(config: ModelConfig, parts: Mtp) -> ModelConfig:
    """The module's layer as a model of one layer, with the same embedding and head."""
    return replace(config, layers=(parts.layer,), final_norm=parts.final_norm, layer_inputs=None, mtp=None)


def check_mtp(config: ModelConfig, tensors: Iterable[str], name: str) -> Mtp:
    """The place of a checkpoint's MTP module, from its sizes and the names of its tensors.

    Raises:
        ModelError: its family has none, its config.json names none, or it lacks the tensors.
    """
    if config.mtp is None:
        raise ModelError(
            f"{name}: model_type {config.model_type} without MTP layers; a checkpoint that was trained with such is "
            "required. Use another draft."
        )
    if not any(config.mtp.has(config.own_name(tensor) or "") for tensor in tensors):
        raise ModelError(
            f"{name}: no tensor begins with {config.mtp.modules[0]}, where {config.model_type} has its MTP layer; one "
            "is required, which transformers' save_pretrained leaves out. Convert the checkpoint as it was first "
            "published, or use another draft."
        )
    return config.mtp


class MtpKind(ReaderKind):
    """Its weights are part of the package's own model."""

    name = "mtp"
    draft_type = FeatureDraft
    subject = ""
    parameters = (Parameter("bits", choices=(4, 16)),)

    def shares(self, spec: DraftSpec, same_tokenizer: bool) -> list[Shared]:
        return ["weights", "tokenizer"]

    def codec_in(self, draft: OpenedDraft, own_codec: LevelCodec) -> LevelCodec | None:
        return None if draft.spec.parameters.get("bits") == 16 else own_codec

    def open(self, spec: DraftSpec, target: OpenTarget) -> OpenedDraft:
        checkpoint = target.checkpoint
        if checkpoint.config is None:
            raise MxconvError(
                f"--draft mtp: {checkpoint.id} has no config.json; the one that says which family it is is required. "
                "Copy it from the model's source."
            )
        check_mtp(checkpoint_config(checkpoint), checkpoint.tensors.keys(), checkpoint.id)
        return OpenedDraft(spec, spec.kind)

    def locate(self, spec: DraftSpec, run: Run) -> OpenedDraft:
        draft = OpenedDraft(spec, spec.kind)
        return replace(draft, codec=self.codec_in(draft, run.package.manifest.options.codec))

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        own, root = run.own, str(run.package.root)
        check_mtp(own.config, [tensor.name for tensor in run.package.manifest.tensors], root)
        weights = own.sixteen_bits if record.codec is None else own.four_bits(record.name, with_target=True)
        reader = MtpModule(own.config, weights, record.name)
        reader.sizes.check_target(run.target.config, run.target_vocabulary.num_tokens, root)
        return LoadedLevel(record, None, run.tokenizer, reader=reader, kind=self)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        """A layer over the whole context, and the head."""
        config = package_config(package)
        assert config.mtp is not None and target is not None, "of a level that was converted"
        codec = {None: target.codec, "mxfp4": "mxfp4", "bsfp": "bsfp-draft"}[record.codec]
        num_bytes = mtp_bytes(package, in_four_bits=record.codec is not None)
        return PassCost(codec, num_bytes, ModelSizes.of(layer_config(config, config.mtp)), "mtp")


MTP = MtpKind()
