"""Draft files: codes and scales of matrices that somebody else chose, for `mxconv quantize --draft-weights`.

    shapes = {"model.layers.0.mlp.up_proj.weight": (1536, 576)}
    with DraftFileWriter(Path("draft.safetensors"), shapes) as writer:
        writer.write("model.layers.0.mlp.up_proj.weight", codes, scales)  # as a package has them
        writer.commit({"rule": "distilled", "num_tokens": 9000})

Normative text: formats/package.md, "Draft weights".
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from pydantic import ValidationError

from mxconv.arrays import U8, U16
from mxconv.checkpoint.regular_file import parse_json_object, sha256_file
from mxconv.checkpoint.safetensors_header import format_header
from mxconv.checkpoint.tensor import MappedFile, SourceTensor
from mxconv.codecs.e8m0 import BIAS
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import BLOCK, MAX_EXPONENT
from mxconv.codecs.vnni8 import TILE_COLUMNS, TILE_ROWS, unpack_nibbles
from mxconv.conversion.options import Codec
from mxconv.conversion.survey import GivenCodes, Survey, with_codes
from mxconv.errors import CheckpointError, PackageError
from mxconv.package.head_screen import STEM, HeadScreen, read_head_screen
from mxconv.package.level_record import ScreenRecord
from mxconv.package.manifest import DraftWeightsRecord
from mxconv.package.stored import draft_arrays
from mxconv.system.disk import write_at

KEY = "mxconv_draft"  # of the metadata that says how codes were made
MAX_DESCRIPTION_BYTES = 1 << 16  # of the JSON in the header; the manifest repeats it
ROOM = MAX_DESCRIPTION_BYTES - 64  # that is kept for what the header says at last; headers are multiples of 64 bytes
MAX_SCALE = MAX_EXPONENT + BIAS  # with larger ones codes reach infinity; 255 is NaN
MAX_BF16 = BF16.infinity - 1  # patterns of what is finite and not negative


class DraftFileWriter:
    """Writes a draft file beside its place, and renames it when all matrices are there.

    Args:
        path: of the file; what is there is replaced.
        shapes: (rows, in_features) of each matrix by the name of its tensor; of a stack of experts
            `StackedExperts.stored_shape`.
        codec: of the matrices.

    Raises:
        PackageError: the file cannot be written.
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, int]], codec: Codec = "mxfp4") -> None:
        self.path, self._partial = path, path.with_name(path.name + ".partial")
        self._arrays = {name: draft_arrays(codec, name, shape) for name, shape in shapes.items()}
        self._missing = set(shapes)
        header, begins = self._header({}, None, 0)
        self._num_header_bytes = len(header) + ROOM
        begins = [begin + ROOM for begin in begins]
        names = [array.name for arrays in self._arrays.values() for array in arrays]
        self._begins = dict(zip(names, begins, strict=True))
        try:
            self._file = self._partial.open("wb", buffering=0)
        except OSError as error:
            raise PackageError(f"{path}: cannot be written ({error.strerror}). Check its folder.") from error

    def write(self, name: str, codes: U8, scales: U8 | U16) -> None:
        """Write a matrix: (T, C, 64) uint8 and its scales, in any order of the names.

        Raises:
            ValueError: they have other shapes.
            PackageError: the disk is full, or fails.
        """
        for array, values in zip(self._arrays[name], (codes, scales), strict=True):
            dtype = np.uint16 if array.dtype == "BF16" else np.uint8
            if values.shape != array.shape or values.dtype != dtype:
                raise ValueError(
                    f"{array.name}: {values.dtype} {values.shape}; {dtype.__name__} {array.shape} is required"
                )
            self._write(self._begins[array.name], values.tobytes())
        self._missing.discard(name)

    def commit(self, description: Mapping[str, Any], screen: HeadScreen | None = None) -> None:
        """Finish the file.

        Args:
            description: how the codes were made, for the manifest; `rule`, a text, is required.
            screen: of the draft's output head, if it has one.
        """
        assert not self._missing, f"matrices that were not written: {sorted(self._missing)[:5]}"
        if screen is not None:
            description = {**description, STEM: screen.record.model_dump()}
        num_spaces = self._num_header_bytes - len(self._header(description, screen, 0)[0])
        if num_spaces < 0:
            raise ValueError(f"a description that is {-num_spaces} bytes too long for a header")
        header, begins = self._header(description, screen, num_spaces)
        for (_, values), begin in zip(screen.arrays if screen else [], begins[len(self._begins) :], strict=True):
            self._write(begin, values.tobytes())
        self._write(0, header)
        self._file.close()
        self._partial.replace(self.path)

    def _header(
        self, description: Mapping[str, Any], screen: HeadScreen | None, num_spaces: int
    ) -> tuple[bytes, list[int]]:
        """A header whose JSON ends in spaces, so that it has one length whatever the description."""
        arrays = [array for arrays in self._arrays.values() for array in arrays]
        arrays += [array for array, _ in screen.arrays] if screen else []
        return format_header(
            [(array.name, array.dtype, array.shape) for array in arrays],
            {KEY: json.dumps(description) + " " * num_spaces},
        )

    def _write(self, begin: int, content: bytes) -> None:
        try:
            write_at(self._file, content, begin)
        except OSError as error:
            raise PackageError(f"{self.path}: cannot be written ({error.strerror}). Make room.") from error

    def __enter__(self) -> "DraftFileWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)


@dataclass(frozen=True)
class DraftFile:
    """An open draft file, its header checked."""

    file: MappedFile
    description: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> "DraftFile":
        """Open and map it.

        Raises:
            CheckpointError: it cannot be read, is no draft file, or holds other arrays than pairs of codes and scales.
        """
        file = MappedFile(path)
        label = f"{path}: metadata {KEY}"
        if (text := file.metadata.get(KEY)) is None:
            raise CheckpointError(
                f"{label}: missing; a JSON object that says how the codes were made is required. Give a file that "
                "`mxconv train self-draft` or mxconv.conversion.draft_file wrote."
            )
        if len(text.encode()) > MAX_DESCRIPTION_BYTES:
            raise CheckpointError(f"{label}: {len(text)} bytes; at most {MAX_DESCRIPTION_BYTES} are read. Shorten it.")
        description = parse_json_object(text.encode(), label, unique_keys=True)
        if not isinstance(description.get("rule"), str):
            raise CheckpointError(f"{label}: no `rule`; a text that names the method is required. Add it.")
        if not file.entries and "kept" not in description:
            raise CheckpointError(f"{path}: holds no arrays; codes and scales of a matrix are required.")
        for name in file.entries.keys() - {f"{STEM}.projection"}:
            stem, _, part = name.rpartition(".")
            other = {"codes": "scales", "scales": "codes"}.get(part)
            if other is None or f"{stem}.{other}" not in file.entries:
                raise CheckpointError(
                    f"{path}: array {name}: no pair of it; NAME.codes and NAME.scales of each matrix are required."
                )
        return cls(file, description)

    @property
    def names(self) -> list[str]:
        """The tensors whose codes it holds, sorted."""
        found = {name.removesuffix(".codes") for name in self.file.entries if name.endswith(".codes")}
        return sorted(found - {STEM})

    @property
    def has_screen(self) -> bool:
        """Whether it holds a head screen."""
        return STEM in self.description

    def screen(self, head: tuple[int, int]) -> HeadScreen:
        """The screen that it holds, of an output head of (vocab_size, hidden_size).

        Raises:
            CheckpointError: it is described in a way that none has.
            PackageError: an array of it is missing or of another shape.
        """
        described = self.description[STEM]
        try:
            record = ScreenRecord.model_validate(described)
        except ValidationError as error:
            raise CheckpointError(
                f"{self.file.path}: metadata {KEY}: `{STEM}` is {described!r}; `rank` and `num_candidates`, whole "
                "numbers from 1 on, are required. Make the file again."
            ) from error
        tensors = {name: SourceTensor(name, self.file) for name in self.file.entries}
        return read_head_screen(tensors, record, head, str(self.file.path))

    @cached_property
    def record(self) -> DraftWeightsRecord:
        """For the manifest; reads the whole file."""
        return DraftWeightsRecord(sha256=sha256_file(self.file.path), description=self.description, tensors=self.names)

    def give(self, surveys: Sequence[Survey]) -> list[Survey]:
        """Surveys whose matrices have the codes of this file, where it holds them.

        Raises:
            CheckpointError: it holds what the package has not, other shapes, a scale that no weight has, or padding
                that is not zero.
        """
        given = {
            name: GivenCodes(*(SourceTensor(f"{name}.{p}", self.file) for p in ("codes", "scales")))
            for name in self.names
        }
        made = []
        for survey in surveys:
            name = survey.plan.name
            is_encoded = survey.plan.codec in ("mxfp4", "bsfp") and survey.plan.carried is None
            if is_encoded and (codes := given.pop(name, None)):
                self._check(survey, codes)
                survey = with_codes(survey, codes)
            made.append(survey)
        if given:
            name = next(iter(given))
            raise CheckpointError(
                f"{self.file.path}: holds codes of {name}, which this package does not have in 4 bits; names of "
                "matrices that are encoded are required. `mxconv quantize --dry-run` lists them."
            )
        return made

    def _check(self, survey: Survey, given: GivenCodes) -> None:
        codec, shape = survey.plan.codec, survey.plan.stored_shape
        stored = draft_arrays(codec, survey.plan.name, shape)
        for array, tensor in zip(stored, (given.codes, given.scales), strict=True):
            if (tensor.dtype, tensor.shape) != (array.dtype, array.shape):
                raise CheckpointError(
                    f"{self.file.path}: {array.name} is {tensor.dtype} {list(tensor.shape)}; {array.dtype} "
                    f"{list(array.shape)} is required. Make the draft from this source."
                )
        rows, columns = survey.plan.matrix_shape
        tiles = -(-rows // TILE_ROWS)
        for first in range(0, given.scales.shape[0], tiles):
            scales = given.scales.rows(first, first + tiles)
            most = MAX_SCALE if codec == "mxfp4" else MAX_BF16
            if (greatest := int(scales.max())) > most:
                kind = "a BF16 pattern" if codec == "bsfp" else "NaN" if greatest == 255 else "E8M0"
                raise CheckpointError(
                    f"{self.file.path}: {given.scales.name} holds the scale {greatest} ({kind}); "
                    f"0 to {most} are required."
                )
            codes = cast(U8, given.codes.rows(first, first + tiles))
            below, beyond = rows % TILE_ROWS or TILE_ROWS, columns % BLOCK or BLOCK
            last, right = unpack_nibbles(codes[-1:]), unpack_nibbles(codes[:, -BLOCK // TILE_COLUMNS :])
            if last[below:].any() or scales[-1, :, below:].any() or right[:, beyond:].any():
                raise CheckpointError(
                    f"{self.file.path}: {given.codes.name}: padding that is not zero; zero bytes below row {rows} and "
                    f"right of column {columns} are required."
                )
            given.codes.release(first, first + tiles)

    def close(self) -> None:
        """Unmap it."""
        self.file.close()
