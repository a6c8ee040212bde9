"""From packages to levels: files, kernels and threads, which levels, in which tokens; drafts of packages and others."""

import json
import re
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from checkpoints import TINY_LLAMA, write_tiny_llama, write_tiny_tokenizer
from loaded_packages import IDS, logits, pack, rewrite, source_logits, three_levels
from ngram_tables import write_table
from plug_ins import RECYCLING
from tiny_levels import decoder_of

from mxconv.checkpoint.regular_file import sha256_file
from mxconv.drafts.kinds import kind_named, parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.attention_window import RetrievedPages, SinkWindow
from mxconv.engine.decoder import Decoder
from mxconv.errors import CheckpointError, ModelError, MxconvError, PackageError
from mxconv.kernels.engine import kernel_names, native_names
from mxconv.package.manifest import read_manifest
from mxconv.package.ngram_table import read_ngram_table

MISSING = {
    "config.json": (CheckpointError, "config.json: no such file"),
    "tokenizer.json": (ModelError, "tokenizer.json: there is no such file; a fast tokenizer is required"),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_package_without_the_files_of_a_model_cannot_be_run(tmp_path: Path, name: str) -> None:
    source = write_tiny_llama(tmp_path / "source")
    (source / name).unlink()
    error, message = MISSING[name]
    with pytest.raises(error, match=message):
        LoadedPackage(pack(source, tmp_path / "package"))


def test_a_config_that_does_not_fit_the_weights_is_refused(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    (source / "config.json").write_text(json.dumps(TINY_LLAMA | {"intermediate_size": 176}))
    with pytest.raises(
        ModelError, match=r"tensor model.layers.0.mlp.gate_proj.weight has shape \[172, 64\]; \[176, 64\]"
    ):
        pack(source, tmp_path / "package")


def test_kernels_are_chosen_by_name_or_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = three_levels(tmp_path)
    names = ", ".join(kernel_names())
    with LoadedPackage(package, kernel="numpy") as loaded:
        assert [type(level.decoder) for level in loaded.levels] == [Decoder] * 3
    message = f"^--kernel: 'mmx'; on this processor one of {names} is required. Leave it out for the best.$"
    with pytest.raises(ModelError, match=message):
        LoadedPackage(package, kernel="mmx")
    monkeypatch.setenv("MXCONV_KERNEL", "cuda")
    with pytest.raises(ModelError, match=r"^MXCONV_KERNEL: 'cuda'; on this processor one of"):
        LoadedPackage(package)
    LoadedPackage(package, kernel="numpy").close()
    monkeypatch.setenv("MXCONV_KERNEL", "")
    with LoadedPackage(package) as loaded:
        assert engine_names(loaded) == [kernel_names()[0]] * 3


@pytest.mark.parametrize(("name", "num_threads"), [*zip(native_names(), cycle((1, 3)))])
def test_every_level_runs_on_the_kernels_and_threads_asked_for(tmp_path: Path, name: str, num_threads: int) -> None:
    source = write_tiny_llama(tmp_path / "source")
    small = write_tiny_llama(tmp_path / "small", seed=1, num_hidden_layers=1)
    nested = pack(write_tiny_llama(tmp_path / "nested", seed=2, num_hidden_layers=1), tmp_path / "nested-package")
    package = pack(source, tmp_path / "package", drafts=(f"checkpoint:{small}", f"package:{nested}"))
    with LoadedPackage(package, kernel=name, num_threads=num_threads) as loaded:
        assert engine_names(loaded) == [name] * 4
        assert {level.decoder.engine.num_threads for level in loaded.levels} == {num_threads}


def test_an_impossible_number_of_threads_is_refused(tmp_path: Path) -> None:
    for num_threads in (0, -1, 1025):
        message = f"^--threads: {num_threads}; 1 to 1024 is required. Leave it out for all processors.$"
        with pytest.raises(ModelError, match=message):
            LoadedPackage(tmp_path, num_threads=num_threads)


def engine_names(loaded: LoadedPackage) -> list[str]:
    decoders = [level.decoder for level in loaded.levels]
    return [decoder.engine.name if hasattr(decoder, "engine") else "numpy" for decoder in decoders]


def test_closing_unmaps_the_files_and_a_refused_package_stays_mapped_nowhere(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    with LoadedPackage(package):
        assert mapped_files(package)
    assert not mapped_files(package)
    with pytest.raises(ModelError):
        LoadedPackage(package, ["target", "nonsense"])
    assert not mapped_files(package)


def mapped_files(package: Path) -> set[str]:
    """Files of a package that this process has mapped (Linux)."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("mappings are listed in /proc, which this system lacks")
    return {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if f"{package}/" in line}


def test_levels_are_chosen_by_name(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    for names in (["target"], ["target", "small"], ["target", "small", "mxfp4"], ["target", "mxfp4", "small"]):
        with LoadedPackage(package, names) as loaded:
            assert [level.name for level in loaded.levels] == names
    for names in (["targt"], ["target", "bsfp"], [""], []):
        found = ", ".join(names) or "none"
        message = f"{package}: levels {found}; at least one, out of target, mxfp4, small, is required."
        with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
            LoadedPackage(package, names)


def test_what_an_earlier_version_tuned_is_read_and_ignored(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    with LoadedPackage(package) as loaded:
        own = [level.record for level in loaded.levels]
    tuned = {
        "levels": ["target", "small"], "num_draft_tokens": [3], "confidence": [0.7], "speedup": 1.5,
        "num_prompts": 9, "num_tokens": 500, "cpu": "a processor", "threads": 2, "kernel": "avx2",
    }  # fmt: skip
    rewrite(package, tuned=tuned)
    assert read_manifest(package).tuned == tuned
    with LoadedPackage(package) as loaded:
        assert [level.record for level in loaded.levels] == own
        assert not loaded.lengths_are_given


def test_levels_of_the_same_name_do_not_hide_each_other(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    manifest = read_manifest(package)
    renamed = [level.model_copy(update={"name": "target"}) for level in manifest.levels]
    rewrite(package, levels=renamed)
    with LoadedPackage(package) as loaded:
        assert [level.record.kind for level in loaded.levels] == ["target", "self-draft", "model"]
    with LoadedPackage(package, ["target"]) as loaded:
        assert loaded.levels[0].record.kind == "target"


def replace_small(package: Path, **changes: Any) -> None:
    """Put another small model into the package than was converted."""
    folder = package / "drafts/1-small"
    for path in folder.iterdir():  # they are links into the source
        path.unlink()
    write_tiny_llama(folder, seed=1, **changes)


def test_a_draft_whose_tokenizer_is_not_the_one_it_should_share_is_refused(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    replace_small(package, vocab_size=90)
    rewrite(package)
    with pytest.raises(ModelError) as caught:
        LoadedPackage(package)
    assert str(caught.value) == (
        f"{package}/drafts/1-small/tokenizer.json: differs from that of the level above small, which the manifest says "
        "it shares; the same tokens are required. Convert again."
    )
    with LoadedPackage(package, ["target", "mxfp4"]) as loaded:
        assert len(loaded.levels) == 2


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(96, 90), (90, 96)])
def test_a_token_without_a_row_is_refused(tmp_path: Path, target_rows: int, draft_rows: int) -> None:
    source = write_tiny_llama(tmp_path / "source", vocab_size=target_rows)
    small = write_tiny_llama(tmp_path / "small", vocab_size=draft_rows)
    for folder in (source, small):
        write_tiny_tokenizer(folder / "tokenizer.json", 96)
    package = pack(source, tmp_path / "package")
    with pytest.raises(ModelError) as caught:
        LoadedPackage(package, drafts=[parse_draft(f"checkpoint:{small}")])
    assert str(caught.value) == (
        f"{package}: level small and its target have {draft_rows} and {target_rows} rows of tokens; 96 tokens need 96 "
        "rows in both, 90 are there. Choose a draft of the same family."
    )


def test_further_drafts_stand_below_the_packages_own(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    other = write_tiny_llama(tmp_path / "other", seed=2, vocab_size=90)
    specs = [parse_draft(text) for text in ("streaming", f"checkpoint:{other}", RECYCLING)]
    with LoadedPackage(package, drafts=specs) as loaded:
        names = [level.name for level in loaded.levels]
        assert names == ["target", "mxfp4", "small", "streaming", "other", "token-recycling"]
        tokenizers = [level.tokenizer is loaded.tokenizer for level in loaded.levels]
        assert tokenizers == [True, True, True, True, False, False]
        assert loaded.levels[-1].tokenizer is loaded.levels[-2].tokenizer  # a look-up speaks as the level above
        assert loaded.levels[4].record.confidence == 0.65


def ngram_table(folder: Path, like: Path) -> Path:
    return write_table(folder / "table.safetensors", sha256_file(like / "tokenizer.json"))


def load(tmp_path: Path, specs: list[str], is_in_package: bool) -> LoadedPackage:
    """The same drafts, converted with the target or named when it is loaded."""
    source = tmp_path / "source"
    if not source.exists():
        write_tiny_llama(source)
    package = pack(source, tmp_path / f"package-{len(list(tmp_path.iterdir()))}", drafts=tuple(specs) * is_in_package)
    return LoadedPackage(package, drafts=() if is_in_package else [parse_draft(spec) for spec in specs])


@pytest.mark.parametrize("is_in_package", [True, False])
def test_a_part_of_the_target_shares_its_weights(tmp_path: Path, is_in_package: bool) -> None:
    with load(tmp_path, ["streaming:window=2,cache=own", "streaming:sink=1,window=3"], is_in_package) as loaded:
        target, _, alone, streaming = (level.decoder for level in loaded.levels)
        assert target and alone and streaming
        assert alone.head is target.head
        assert streaming.layers[1].mlp.down.matrix is target.layers[1].mlp.down.matrix
        assert {layer.pattern for layer in streaming.layers} == {SinkWindow(1, 3)}
        assert [level.shares_cache for level in loaded.levels] == [False, True, False, True]
        short, long = IDS[:4], IDS
        assert (logits(streaming, short) == logits(target, short)).all()  # a window that has seen everything
        assert not (logits(streaming, long)[-1] == logits(target, long)[-1]).all()
        assert not (logits(alone, long) == logits(target, long)).all()


@pytest.mark.parametrize("is_in_package", [True, False])
@pytest.mark.parametrize("first", ["target", "mxfp4"])
def test_a_sparse_view_has_the_weights_that_its_bits_say(tmp_path: Path, is_in_package: bool, first: str) -> None:
    specs = ["streaming,bits=4", "retrieval", "retrieval,bits=16"]
    package = pack(write_tiny_llama(tmp_path / "source"), tmp_path / "p", drafts=tuple(specs) * is_in_package)
    names = ["target", "mxfp4"][["target", "mxfp4"].index(first) :]
    names += ["streaming", "retrieval", "retrieval-2"] * is_in_package
    drafts = () if is_in_package else [parse_draft(spec) for spec in specs]
    with LoadedPackage(package, names, drafts=drafts) as loaded:
        weights = {level.name: level.decoder.layers[0].mlp.down.matrix for level in loaded.levels if level.decoder}
        assert weights["streaming"] is weights["retrieval"] is weights["mxfp4"]
        assert weights["retrieval-2"] is weights[first]
        window, pages, _ = (level.decoder.pattern for level in loaded.levels[-3:] if level.decoder)
        assert (window, pages) == (SinkWindow(4, 252), RetrievedPages(4, 256, 16))
        assert all(level.shares_cache for level in loaded.levels[1:])
        codecs = [level.record.codec for level in loaded.levels[-3:]]
        assert codecs == ["mxfp4", "mxfp4", None]


def test_the_copy_in_four_bits_is_no_view_of_another_model(tmp_path: Path) -> None:
    source, small = write_tiny_llama(tmp_path / "source"), write_tiny_llama(tmp_path / "small")
    package = pack(source, tmp_path / "p", drafts=(f"checkpoint:{small}",))
    message = (
        r"level streaming: the 4-bit copy of .*p below small; the weights that it is made of are required above it"
    )
    with pytest.raises(ModelError, match=message):
        LoadedPackage(package, ["small"], drafts=[parse_draft("streaming,bits=4")])


@pytest.mark.parametrize("is_in_package", [True, False])
def test_a_table_is_read_where_its_tokens_are_those_of_the_level_above(tmp_path: Path, is_in_package: bool) -> None:
    table = ngram_table(tmp_path, write_tiny_llama(tmp_path / "source"))
    with load(tmp_path, [f"ngram:{table},confidence=0.3"], is_in_package) as loaded:
        level = loaded.levels[2]
        assert (level.name, level.record.confidence) == ("table", 0.3)
        assert level.table is not None
        assert level.table.best([5]) == read_ngram_table(table).best([5])
    small = write_tiny_llama(tmp_path / "small", vocab_size=90)
    below = ngram_table(tmp_path, small)
    with load(tmp_path, [f"checkpoint:{small}", f"ngram:{below}"], is_in_package) as loaded:
        assert loaded.levels[3].tokenizer is loaded.levels[2].tokenizer is not loaded.levels[0].tokenizer


def test_a_table_that_was_replaced_is_refused(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    package = pack(source, tmp_path / "package", drafts=(f"ngram:{ngram_table(tmp_path, source)}",))
    place = package / read_manifest(package).levels[2].path  # type: ignore[operator]
    place.unlink()
    write_table(place, "0" * 64)
    rewrite(package)
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(place))}: its tokens are of a tokenizer.json with"):
        LoadedPackage(package)


@pytest.mark.parametrize(("as_package", "is_in_package"), [(True, False), (False, True)])
def test_a_model_with_a_tokenizer_of_its_own_brings_it(tmp_path: Path, as_package: bool, is_in_package: bool) -> None:
    small = write_tiny_llama(tmp_path / "small", vocab_size=90, seed=1)
    spec = f"package:{pack(small, tmp_path / 'small-package')},level=target" if as_package else f"checkpoint:{small}"
    with load(tmp_path, [spec, "prompt-lookup"], is_in_package) as loaded:
        target, _, level, look_up = loaded.levels
        assert level.tokenizer is not None and level.tokenizer is not target.tokenizer
        assert level.tokenizer.vocab_size == 90
        assert look_up.tokenizer is level.tokenizer
        assert level.record.confidence == 0.65
        known = [token for token in IDS if token < 90]
        assert logits(decoder_of(level), known).tobytes() == source_logits(small, known).tobytes()


@pytest.mark.parametrize("is_in_package", [True, False])
def test_a_model_that_is_padded_otherwise_speaks_the_same_tokens(tmp_path: Path, is_in_package: bool) -> None:
    padded = write_tiny_llama(tmp_path / "padded", vocab_size=112, with_tokenizer=False)
    write_tiny_tokenizer(padded / "tokenizer.json", 96)
    with load(tmp_path, [f"checkpoint:{padded}"], is_in_package) as loaded:
        target, _, level = loaded.levels
        assert level.tokenizer is target.tokenizer
        assert decoder_of(level).config.vocab_size == 112


def test_drafts_that_are_no_part_of_a_package_get_names_of_their_own(tmp_path: Path) -> None:
    small = write_tiny_llama(tmp_path / "target", num_hidden_layers=1)
    specs = [f"checkpoint:{small}", f"checkpoint:{small},num_draft_tokens=2", "streaming", "streaming", "prompt-lookup"]
    with load(tmp_path, specs, is_in_package=False) as loaded:
        names = [level.name for level in loaded.levels]
        assert names == ["target", "mxfp4", "target-2", "target-3", "streaming", "streaming-2", "prompt-lookup"]
        assert [level.record.num_draft_tokens for level in loaded.levels[2:4]] == [8, 2]
        assert loaded.levels[2].folder == small


@pytest.mark.parametrize("is_in_package", [True, False])
def test_a_checkpoint_is_recorded_with_the_format_of_its_weights(tmp_path: Path, is_in_package: bool) -> None:
    folders = [write_tiny_llama(tmp_path / dtype, num_hidden_layers=1, dtype=dtype) for dtype in ("BF16", "F16")]
    with load(tmp_path, [f"checkpoint:{folder}" for folder in folders], is_in_package) as loaded:
        assert [level.record.codec for level in loaded.levels[2:]] == ["bf16", "f16"]


def test_a_draft_that_is_not_there_is_named(tmp_path: Path) -> None:
    for kind in ("checkpoint", "package", "ngram"):
        with pytest.raises(MxconvError, match=f"{re.escape(str(tmp_path))}/none"):
            load(tmp_path, [f"{kind}:{tmp_path}/none"], is_in_package=False)


def test_a_level_without_the_path_it_needs_is_refused(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    *rest, model = read_manifest(package).levels
    for kind_name, thing in (("ngram", "a table"), ("model", "a model")):
        members = {**model.model_dump(), "path": None, "kind": kind_name}
        rewrite(package, levels=[*rest, kind_named(kind_name).record_type.model_validate(members)])
        with pytest.raises(PackageError, match=rf"level small without a path; {thing} needs one\. Convert again\.$"):
            LoadedPackage(package)


def test_a_variant_of_a_target_that_comes_later_is_refused(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    package = pack(source, tmp_path / "package", drafts=("streaming",))
    target, draft, streaming = read_manifest(package).levels
    rewrite(package, levels=[streaming, target, draft])
    with pytest.raises(ModelError, match=r"level target below streaming; a draft must be cheaper than what it drafts"):
        LoadedPackage(package)
