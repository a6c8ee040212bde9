"""The target in two bits, from a file beside its 4-bit copy: `mx2:FILE`, which `mxconv train mx2` wrote.

It drafts alone, or below the 4-bit level, whose output head, and screen it takes. Like that one it reads the
target's keys and values.
"""

from dataclasses import replace
from pathlib import Path

from mxconv.drafts.kind import DraftSpec, OpenedDraft, OpenTarget, Run, placed
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.target_views import SelfDraft
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelRecord, Shared
from mxconv.package.mx2_file import read_mx2_file
from mxconv.package.package import Package
from mxconv.package.stored import mx2_arrays, stored_shape, tensor_arrays
from mxconv.speculation.loaded_level import LoadedLevel

OWN = ("target", "self-draft", "streaming", "fewer-experts")  # kinds with the package's own weights


class TwoBitDraft(SelfDraft):
    """Its subject is the file of 2-bit matrices; every other weight is the 4-bit level's."""

    name = "mx2"
    subject = "FILE"

    def shares(self, spec: DraftSpec, same_tokenizer: bool) -> list[Shared]:
        return ["kv_cache", "tokenizer"]

    def open(self, spec: DraftSpec, target: OpenTarget) -> OpenedDraft:
        file = Path(spec.subject)
        read_mx2_file(file, {name: tensor.shape for name, tensor in target.checkpoint.tensors.items()})
        return OpenedDraft(spec, self.name, file.absolute().parent, (Path(file.name),), "mx2")

    def path_in(self, folder: str, draft: OpenedDraft) -> str:
        return f"{folder}/{draft.files[0].as_posix()}"

    def locate(self, spec: DraftSpec, run: Run) -> OpenedDraft:
        return OpenedDraft(spec, self.name, Path(spec.subject), codec="mx2")

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        if run.levels and run.levels[0].record.kind not in OWN:
            raise ModelError(
                f"{run.package.root}: level {record.name} drafts for {run.levels[0].name}; the 2-bit copy drafts for "
                "the package's own weights. Name another level first, or leave it out."
            )
        own = _four_bits(run.package)
        record = record.model_copy(update={"screen": own.screen})
        return replace(super().load(record, place, run), folder=place)

    def weights(self, record: LevelRecord, place: Path | None, run: Run) -> ModelWeights:
        weights, config = super().weights(record, place, run), run.own.config
        stored = read_mx2_file(placed(record, place, run, "draft of 2 bits"), _shapes(run.package))
        named = {own: each for name, each in stored.items() if (own := config.own_name(name)) is not None}
        made = {own: run.matrices.mx2_draft(each) for own, each in named.items()}
        return replace(weights, matrices={**weights.matrices, **made})

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        assert place is not None, "it has a file"
        cost = super().cost(_four_bits(package), None, package, target)
        stored = read_mx2_file(place, _shapes(package))
        records = [record for record in package.manifest.tensors if record.name in stored]
        less = sum(
            sum(array.num_bytes for array in tensor_arrays(each) if array.name.endswith((".codes", ".scales")))
            - sum(array.num_bytes for array in mx2_arrays(each.name, stored_shape(each)))
            for each in records
        )
        return replace(cost, codec=self.name, num_bytes=cost.num_bytes - less, typical=None)


def _four_bits(package: Package) -> LevelRecord:
    """The 4-bit level of a package, which every one has."""
    return next(level for level in package.manifest.levels if level.kind == "self-draft")


def _shapes(package: Package) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that a package has in 4 bits."""
    return {record.name: tuple(record.shape) for record in package.manifest.tensors if record.codec != "keep"}


MX2 = TwoBitDraft()
