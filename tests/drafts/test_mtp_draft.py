"""A checkpoint's own MTP module as a draft: converted with it, in 16 and in 4 bits, and the target's tokens as ever."""

from pathlib import Path

import pytest
from mtp_packages import write_mimo
from packages import quantize
from reader_levels import check_all
from trained_levels import write_noisy

from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.mtp import MtpModule
from mxconv.errors import ModelError, MxconvError
from mxconv.kernels.matrix import DenseMatrix
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling

SELECTIONS = (GREEDY, Selection(Sampling(0.8, top_p=0.95), "coupled", 7))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a module, packages of it, and the checkpoint without the module's tensors."""
    folder = tmp_path_factory.mktemp("mtp")
    write_mimo(folder / "source")
    write_mimo(folder / "stripped", with_module=False)
    for codec in ("mxfp4", "bsfp"):
        quantize(folder / "source", folder / codec, codec=codec, drafts=("mtp", "prompt-lookup"))
    return folder


@pytest.mark.parametrize(
    ("codec", "bits", "levels", "tree"),
    [
        ("mxfp4", 4, ["target"], "chain"),
        ("mxfp4", 4, ["target", "mxfp4"], 12),
        ("bsfp", 4, ["target"], 12),
        ("bsfp", 4, ["target", "bsfp"], "auto"),
        ("bsfp", 16, ["target"], "chain"),
        ("bsfp", 16, ["target", "bsfp"], 12),
    ],
)
def test_the_text_is_the_targets(folder: Path, codec: str, bits: int, levels: list[str], tree: int | str) -> None:
    with LoadedPackage(folder / codec, levels, drafts=[parse_draft(f"mtp,bits={bits}")]) as loaded:
        for selection in SELECTIONS:
            lengths = "auto" if tree == "auto" else [3] * len(levels)
            proposed, accepted = check_all(loaded.levels, lengths, tree, selection)[-1]
            assert tree == "auto" or accepted > 0
            if selection == GREEDY and tree != "auto":  # of 1,024 tokens: by chance next to none would stand
                assert accepted > proposed * (0.9 if bits == 16 and levels == ["target"] else 0.25)


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_it_drafts_for_the_4_bit_level_as_target_and_needs_nothing_else(folder: Path, codec: str) -> None:
    with LoadedPackage(folder / codec, [codec], drafts=[parse_draft("mtp")]) as loaded:
        check_all(loaded.levels, [3], 12, GREEDY)
        assert "sixteen_bits" not in vars(loaded.own)


def test_a_package_has_it_as_a_level_behind_models_and_before_look_ups(folder: Path) -> None:
    with LoadedPackage(folder / "bsfp") as loaded:
        records = [level.record for level in loaded.levels]
        assert [record.name for record in records] == ["target", "bsfp", "mtp", "prompt-lookup"]
        assert (records[2].kind, records[2].codec, records[2].shares) == ("mtp", "bsfp", ["weights", "tokenizer"])
        for selection in SELECTIONS:
            check_all(loaded.levels, "auto", "auto", selection)


def test_its_matrices_are_those_of_16_or_of_4_bits(folder: Path) -> None:
    drafts = [parse_draft("mtp,bits=16"), parse_draft("mtp")]
    with LoadedPackage(folder / "mxfp4", ["target"], "numpy", drafts=drafts) as loaded:
        exact, four_bits = (level.reader for level in loaded.levels[1:])
        assert [level.name for level in loaded.levels] == ["target", "mtp", "mtp-2"]
        assert [level.record.codec for level in loaded.levels] == ["bf16", None, "mxfp4"]
        assert isinstance(exact, MtpModule) and isinstance(four_bits, MtpModule)
        for module, is_dense in ((exact, True), (four_bits, False)):
            own = [module.projection.matrix, module.output.matrix, *module.layer.attention.matrices]
            assert all(isinstance(matrix, DenseMatrix) == is_dense for matrix in own)
            assert isinstance(module.embedding, DenseMatrix)


def test_a_checkpoint_without_one_is_refused(folder: Path, tmp_path: Path) -> None:
    """Where config.json names one and its tensors are gone, and where the family has none: converting and decoding."""
    stripped = r"no tensor begins with model.mtp_layers.0., where mimo has its MTP layer; one is required, which "
    with pytest.raises(ModelError, match=stripped):
        quantize(folder / "stripped", tmp_path / "package", drafts=("mtp",))
    assert not (tmp_path / "package").exists()
    quantize(folder / "stripped", tmp_path / "stripped")
    with pytest.raises(ModelError, match=f"{tmp_path / 'stripped'}: {stripped}"):
        LoadedPackage(tmp_path / "stripped", ["target"], drafts=[parse_draft("mtp")])
    quantize(write_noisy(tmp_path / "llama"), tmp_path / "plain")
    with pytest.raises(ModelError, match="plain: model_type llama without MTP layers; a checkpoint that was trained"):
        LoadedPackage(tmp_path / "plain", ["target"], drafts=[parse_draft("mtp")])
    (tmp_path / "llama" / "config.json").unlink()
    with pytest.raises(MxconvError, match=r"--draft mtp: .*llama has no config.json; the one that says which family"):
        quantize(tmp_path / "llama", tmp_path / "package", drafts=("mtp",))


def test_it_cannot_be_decoded_itself(folder: Path) -> None:
    with pytest.raises(ModelError, match="level mtp first, which reads another level's hidden states and decodes"):
        LoadedPackage(folder / "bsfp", ["mtp", "target"])
