"""The checkpoint's own layer for multi-token prediction: `mtp`, in the package's 4 bits, or in 16 with `bits=16`.

Its network is `mxconv/drafts/readers/mtp_module.py`.
"""

from dataclasses import replace
from pathlib import Path

from mxconv.arch.families.registry import describe_file, describe_values
from mxconv.arch.model_sizes import ModelSizes
from mxconv.drafts.kind import DraftSpec, LevelCodec, LoadedLevel, OpenedDraft, OpenTarget, Parameter, Run
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.reader_kind import ReaderKind
from mxconv.drafts.readers.feature_draft import FeatureDraft
from mxconv.drafts.readers.mtp_module import MtpModule, check_mtp, layer_config
from mxconv.drafts.readers.reader import Reader, check_target
from mxconv.drafts.readers.reading_draft import Listener
from mxconv.engine.cache import KVCache
from mxconv.engine.stored_bytes import mtp_bytes
from mxconv.errors import MxconvError
from mxconv.package.level_record import LevelRecord, Shared
from mxconv.package.package import Package


class MtpKind(ReaderKind):
    """Its weights are part of the package's own model."""

    name = "mtp"
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
        check_mtp(describe_values(checkpoint.config), checkpoint.tensors.keys(), checkpoint.id)
        return OpenedDraft(spec, spec.kind)

    def locate(self, spec: DraftSpec, run: Run) -> OpenedDraft:
        draft = OpenedDraft(spec, spec.kind)
        return replace(draft, codec=self.codec_in(draft, run.package.manifest.options.codec))

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        own, root = run.own, str(run.package.root)
        check_mtp(own.config, [tensor.name for tensor in run.package.manifest.tensors], root)
        weights = own.sixteen_bits if record.codec is None else own.four_bits(record.name, with_target=True)
        reader = MtpModule(own.config, weights, record.name)
        check_target(reader, run.target.config, run.target_vocabulary.num_tokens, root)
        return LoadedLevel(record, None, run.tokenizer, reader=reader)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        """A layer over the whole context, and the head."""
        config = describe_file(package.root / "config.json")
        assert config.mtp is not None and target is not None, "of a level that was converted"
        codec = {None: target.codec, "mxfp4": "mxfp4", "bsfp": "bsfp-draft"}[record.codec]
        num_bytes = mtp_bytes(package, in_four_bits=record.codec is not None)
        return PassCost(codec, num_bytes, ModelSizes.of(layer_config(config, config.mtp)), "mtp")

    def draft(self, loaded: LoadedLevel, listener: Listener) -> FeatureDraft:
        assert isinstance(loaded.reader, MtpModule)
        return FeatureDraft(loaded.reader, listener)

    def new_cache(self, reader: Reader) -> KVCache:
        assert isinstance(reader, MtpModule)
        return reader.new_cache()


MTP = MtpKind()
