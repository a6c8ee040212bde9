"""What a push would upload, and which packages nobody else could use."""

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import MANIFEST, files_of, forge, quantize

from mxconv.errors import PackageError
from mxconv.interop.hub.push import prepare_publication

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def from_the_hub(package: Path) -> Path:
    """The same package as if its source had been org/base."""

    def change(members: dict[str, Any]) -> None:
        members["source"] |= {"id": "org/base", "commit": COMMIT}

    forge(package, change)
    return package


def test_a_whole_package_is_uploaded_as_it_is(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "package", codec="mxfp4")
    publication = prepare_publication(tmp_path / "package")
    found = files_of(tmp_path / "package")
    assert publication.manifest_bytes == found.pop(MANIFEST)
    assert sorted(record.path for record in publication.manifest.files) == sorted(found)


def test_drafts_only_is_the_package_of_a_conversion_that_references_its_target(source: Path, tmp_path: Path) -> None:
    draft = write_tiny_llama(tmp_path / "small", num_shards=2, num_hidden_layers=1)
    for target in ("include", "reference"):
        quantize(source, tmp_path / target, codec="mxfp4", target=target, drafts=(f"checkpoint:{draft}",))
        from_the_hub(tmp_path / target)
    published = prepare_publication(tmp_path / "include", drafts_only=True)
    expected = json.loads((tmp_path / "reference" / MANIFEST).read_bytes())
    assert json.loads(published.manifest_bytes) == expected
    assert {record.path for record in published.manifest.files} == {*files_of(tmp_path / "reference")} - {MANIFEST}
    assert {path for path in files_of(draft) if path.endswith(".safetensors")} <= {
        record.path.rpartition("/")[2] for record in published.manifest.files
    }


def test_drafts_only_of_shared_bits_is_refused(bsfp: Path) -> None:
    with pytest.raises(PackageError, match=r"bsfp: --drafts-only of a BSFP package; its draft and its target share"):
        prepare_publication(bsfp, drafts_only=True)


def test_drafts_only_without_a_target_that_others_can_find_is_refused(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "local", codec="mxfp4")
    with pytest.raises(PackageError, match=r"local: --drafts-only, but it was converted from the folder .*/base; a"):
        prepare_publication(tmp_path / "local", drafts_only=True)
    wide = write_tiny_llama(tmp_path / "wide", dtype="F32")
    quantize(wide, tmp_path / "rounded", codec="mxfp4", dtype="bf16")
    from_the_hub(tmp_path / "rounded")
    with pytest.raises(PackageError, match=r"rounded: --drafts-only, but its 16-bit target was made by the conver"):
        prepare_publication(tmp_path / "rounded", drafts_only=True)


def test_a_target_in_a_local_folder_is_refused_in_any_case(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "package", codec="mxfp4", target="reference")
    for drafts_only in (False, True):
        with pytest.raises(PackageError, match=r"package: references its target in the folder /.*/base, which nobody"):
            prepare_publication(tmp_path / "package", drafts_only=drafts_only)
