"""Further levels below the codec's own, as `--draft` asks for them, and the files that they take along."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mxconv.checkpoint.regular_file import sha256_file
from mxconv.checkpoint.source import Checkpoint
from mxconv.checkpoint.tokenizer_files import Vocabulary
from mxconv.conversion.options import Codec
from mxconv.drafts.kind import DraftSpec, OpenedDraft, OpenTarget
from mxconv.drafts.kinds import KINDS, WORDS, parse_draft
from mxconv.errors import MxconvError
from mxconv.package.growing_shard import PlacedFile
from mxconv.package.level_record import LevelRecord


@dataclass(frozen=True)
class PackedDrafts:
    """The drafts of a package that is being made."""

    drafts: list[OpenedDraft]
    own_codec: Codec

    @classmethod
    def open(cls, texts: Sequence[str], target: Checkpoint, own_codec: Codec) -> "PackedDrafts":
        """Those that `--draft` names, their names unique among levels; errors are those of `open_drafts`."""
        drafts = open_drafts([parse_draft(text) for text in texts], target)
        return cls(_with_unique_names(drafts, own_codec), own_codec)

    @property
    def levels(self) -> list[LevelRecord]:
        """The levels that they become."""
        found = []
        for folder, draft in self._folders.items():
            kind = KINDS[draft.spec.kind]
            codec, path = kind.codec_in(draft, self.own_codec), kind.path_in(folder, draft)
            found.append(kind.record(draft.spec, draft.name, codec, path, draft.same_tokenizer))
        return found

    @property
    def labelled_files(self) -> list[tuple[str, PlacedFile]]:
        """Their files, each after the draft's name for messages."""
        return [
            (
                f"--draft {draft.spec.subject}: ",
                PlacedFile(f"{folder}/{file.as_posix()}", draft.root / file, link=True),
            )
            for folder, draft in self._folders.items()
            if draft.root is not None
            for file in draft.files
        ]

    @property
    def files(self) -> list[PlacedFile]:
        """Their files, in folders of the package."""
        return [file for _, file in self.labelled_files]

    @property
    def _folders(self) -> dict[str, OpenedDraft]:
        return {f"drafts/{number}-{draft.name}": draft for number, draft in enumerate(self.drafts, 1)}


def _with_unique_names(drafts: list[OpenedDraft], codec: str) -> list[OpenedDraft]:
    """Number the drafts whose folder has the name of another level: levels are chosen by name."""
    taken = {"target", codec}
    renamed = []
    for draft in drafts:
        name, number = draft.name, 2
        while name in taken:
            name, number = f"{draft.name}-{number}", number + 1
        taken.add(name)
        renamed.append(replace(draft, name=name))
    return renamed


def open_drafts(specs: Sequence[DraftSpec], target: Checkpoint) -> list[OpenedDraft]:
    """Open the drafts of a package, each below the one before, and check that they fit its target.

    Raises:
        MxconvError: one cannot be opened, was not made for this target, or is below a draft that cannot use it.
    """
    if not specs:
        return []
    derived = target.derive_files()
    vocabulary = Vocabulary.of_folder(target.root, derived if target.container == "GGUF" else None)
    tokenizer_sha256 = sha256_file(path) if (path := target.root / "tokenizer.json").is_file() else ""
    if derived:
        tokenizer_sha256 = hashlib.sha256(derived.get("tokenizer.json", b"")).hexdigest()
    above = OpenTarget(target, vocabulary, tokenizer_sha256)
    drafts = []
    for number, spec in enumerate(specs, 1):
        if spec.kind not in WORDS:
            raise MxconvError(
                f"--draft {spec.kind}: a plug-in; packages hold kinds of mxconv alone, so that anybody can read them. "
                "Name it where the package is used: mxconv generate PACKAGE --draft ..."
            )
        drafts.append(KINDS[spec.kind].open(spec, above))
        if number < len(specs):
            _check_order(spec, specs[number])
    return drafts


def _check_order(spec: DraftSpec, below: DraftSpec) -> None:
    kind, next_kind = KINDS[spec.kind], KINDS[below.kind]
    if kind.is_look_up and not next_kind.is_look_up:
        raise MxconvError(
            f"--draft {spec.kind}: a look-up, with {below.kind} below it; only a model can use a draft. "
            "Give look-ups last."
        )
    if kind.is_reader and not (next_kind.is_look_up or next_kind.is_reader):
        raise MxconvError(
            f"--draft {spec.kind}: reads the target's states, with {below.kind} below it; only a model can "
            "use a draft. Give it after the models."
        )
