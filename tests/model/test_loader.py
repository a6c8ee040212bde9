"""From packages to decoders: which matrix is exact, which is 4-bit, and every reason to refuse."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import torch
from checkpoints import TINY_LLAMA, llama_tensors, write_safetensors, write_tiny_llama, write_tiny_tokenizer
from ngram_tables import write_table
from packages import header_of
from tiny_levels import decoder_of

from mxconv.checkpoint.draft_spec import LOOK_UPS, parse_draft
from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.manifest import FILE_NAME, FileRecord, Manifest, TunedRecord, read_manifest
from mxconv.checkpoint.ngram_file import read_ngram_table
from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.errors import CheckpointError, ModelError, MxconvError, PackageError
from mxconv.kernels.bsfp_full import BsfpMatrix
from mxconv.kernels.dense import DenseMatrix
from mxconv.kernels.engine import choose_engine, kernel_names, native_names
from mxconv.kernels.four_bit import FourBitFloatMatrix, FourBitMatrix
from mxconv.model.cache import KVCache
from mxconv.model.decoder import Decoder
from mxconv.model.families.table import describe_file
from mxconv.model.loader import LoadedPackage
from mxconv.model.matrices import Matrices
from mxconv.model.sink_window import SinkWindow
from mxconv.model.stored_weights import EMBEDDING, HEAD, dense_weights

IDS = [int(token) for token in np.random.default_rng(8).integers(0, 96, 20)]
PROJECTION = "model.layers.0.mlp.gate_proj.weight"


@pytest.fixture(autouse=True, params=["numpy", *native_names()[:1]])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The reference, and one native implementation for all: what is loaded how depends on no instruction set."""
    name: str = request.param
    monkeypatch.setenv("MXCONV_KERNEL", name)
    return name


def kind(matrix: Any) -> type:
    """Which matrix it is, or which one it is a native copy of."""
    return type(getattr(matrix, "reference", matrix))


def pack(source: Path, package: Path, **options: Any) -> Path:
    with open_checkpoint(source) as checkpoint:
        convert(checkpoint, package, QuantizeOptions(**options))
    return package


def logits(decoder: Decoder, ids: list[int] = IDS) -> np.ndarray:
    return decoder.forward(ids, KVCache(decoder.config))


def source_logits(source: Path, ids: list[int] = IDS) -> np.ndarray:
    """Of the 16-bit checkpoint itself."""
    with open_checkpoint(source) as checkpoint:
        config = describe_file(source / "config.json")
        matrices = Matrices(choose_engine())
        return logits(matrices.decoder(config, dense_weights(checkpoint.tensors, config, matrices), "source"), ids)


def rewrite(package: Path, **changes: Any) -> None:
    """Change the manifest as an adversary would: digests and lengths of all files set right again."""
    manifest = read_manifest(package)
    names = sorted(path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file())
    files = [
        FileRecord(path=name, num_bytes=(package / name).stat().st_size, sha256=sha256_file(package / name))
        for name in names
        if name != FILE_NAME
    ]
    manifest = manifest.model_copy(update={"files": files, **changes})
    (package / FILE_NAME).write_bytes(Manifest.model_validate(manifest.model_dump()).to_bytes())


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
@pytest.mark.parametrize(
    ("dtype", "tied", "lm_head"),
    [("BF16", False, "quantize"), ("BF16", False, "keep"), ("BF16", True, "quantize"), ("BF16", True, "keep"),
     ("F16", False, "quantize")],
)  # fmt: skip
def test_the_target_is_the_source_bit_for_bit_and_the_draft_is_near(
    tmp_path: Path, codec: str, dtype: str, tied: bool, lm_head: str
) -> None:
    source = write_tiny_llama(tmp_path / "source", dtype=dtype, tie_word_embeddings=tied)
    expected = source_logits(source)
    residual_bits = 10 if (codec, dtype) == ("bsfp", "F16") else None  # fitting one width takes a third of the time
    options = {"codec": codec, "lm_head": lm_head, "residual_bits": residual_bits}
    with LoadedPackage(pack(source, tmp_path / "package", **options)) as loaded:
        target, draft = loaded.levels
        assert [target.name, draft.name] == ["target", codec]
        assert (target.shares_cache, draft.shares_cache) == (False, True)
        assert logits(target.decoder).tobytes() == expected.tobytes()
        found = logits(draft.decoder)
        assert not (found == expected).all()
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.8


@pytest.mark.parametrize(("codec", "exact"), [("mxfp4", DenseMatrix), ("bsfp", BsfpMatrix)])
def test_a_tied_embedding_stays_exact_while_the_same_tensor_is_a_4_bit_head(
    tmp_path: Path, codec: str, exact: type
) -> None:
    source = write_tiny_llama(tmp_path / "source", tie_word_embeddings=True)
    stored = safetensors.numpy.load_file(source / "model.safetensors")[EMBEDDING].astype(np.float32)
    with LoadedPackage(pack(source, tmp_path / "package", codec=codec)) as loaded:
        target, draft = (level.decoder for level in loaded.levels)
        assert kind(target.embedding) is exact
        assert target.head is target.embedding
        assert draft.embedding is target.embedding
        assert (draft.embedding.rows(np.arange(96)) == stored).all()
        assert kind(draft.head) is FourBitMatrix
        assert not (draft.head.rows(np.arange(96)) == stored).all()


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_activations_decide_how_4_bit_matrices_multiply_and_nothing_else(tmp_path: Path, codec: str) -> None:
    package = pack(write_tiny_llama(tmp_path / "source"), tmp_path / "package", codec=codec)
    with LoadedPackage(package) as loaded, LoadedPackage(package, activations="fp32") as other:
        target, draft = (level.decoder for level in other.levels)
        assert kind(draft.layers[0].mlp.gate.matrix) is kind(draft.head) is FourBitFloatMatrix
        assert kind(target.head) is kind(loaded.levels[0].decoder.head)
        assert logits(target).tobytes() == logits(loaded.levels[0].decoder).tobytes()
        found, expected = logits(draft), logits(loaded.levels[1].decoder)
        assert not (found == expected).all()
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_that_is_kept_is_exact_in_the_draft_too(tmp_path: Path, tied: bool) -> None:
    source = write_tiny_llama(tmp_path / "source", tie_word_embeddings=tied)
    with LoadedPackage(pack(source, tmp_path / "package", codec="bsfp", lm_head="keep")) as loaded:
        target, draft = (level.decoder for level in loaded.levels)
        assert kind(draft.head) is DenseMatrix
        assert draft.head is target.head
        assert kind(draft.layers[0].mlp.gate.matrix) is FourBitMatrix


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_skipped_tensors_are_the_targets_own_in_the_draft(tmp_path: Path, codec: str) -> None:
    source = write_tiny_llama(tmp_path / "source")
    package = pack(source, tmp_path / "package", codec=codec, skip=("*.layers.0.*", "lm_head.weight"))
    with LoadedPackage(package) as loaded:
        target, draft = (level.decoder for level in loaded.levels)
        for projection in ("query", "key", "value", "output", "gate", "up", "down"):
            of_target, of_draft = (_projection(decoder.layers[0], projection).matrix for decoder in (target, draft))
            assert of_draft is of_target
            assert kind(of_draft) is DenseMatrix
            assert kind(_projection(draft.layers[1], projection).matrix) is FourBitMatrix
        assert draft.head is target.head


def test_the_paper_table_drafts_in_float32(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    with LoadedPackage(pack(source, tmp_path / "package", codec="bsfp", segments="paper")) as loaded:
        target, draft = (level.decoder for level in loaded.levels)
        assert kind(draft.layers[1].mlp.down.matrix) is FourBitFloatMatrix
        assert logits(target).tobytes() == source_logits(source).tobytes()


def test_a_rescaled_tensor_is_the_target_that_the_package_can_rebuild(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    tensors = llama_tensors()
    tensors[PROJECTION][5, 6] = 7.0
    write_safetensors(source / "model.safetensors", tensors)
    with LoadedPackage(pack(source, tmp_path / "package", codec="bsfp", outliers="rescale")) as loaded:
        target, draft = (level.decoder for level in loaded.levels)
        (record,) = (record for record in loaded.package.manifest.tensors if record.name == PROJECTION)
        stored = loaded.package.bsfp(record)
        assert stored.rescale_factor != 1.0
        tensors[PROJECTION] = stored.target_rows(0, stored.shape[0]).view(ml_dtypes.bfloat16)
        write_safetensors(source / "model.safetensors", tensors)
        assert logits(target).tobytes() == source_logits(source).tobytes()
        assert kind(draft.layers[0].mlp.gate.matrix) is FourBitMatrix


def test_a_checkpoint_with_tensors_at_odd_addresses_loads_as_it_is(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    expected = source_logits(source)
    file = source / "model.safetensors"
    header, begin = header_of(file)
    header = {name: entry for name, entry in header.items() if name != "__metadata__"}
    content = file.read_bytes()[begin:]
    for entry in header.values():
        entry["data_offsets"] = [offset + 1 for offset in entry["data_offsets"]]
    header["pad"] = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" + content)
    assert source_logits(source).tobytes() == expected.tobytes()


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_referenced_target_is_read_from_the_source(tmp_path: Path, num_shards: int) -> None:
    source = write_tiny_llama(tmp_path / "source", num_shards=num_shards)
    package = pack(source, tmp_path / "package", target="reference")
    assert not list(package.glob("model*.safetensors"))
    with LoadedPackage(package) as loaded:
        assert loaded.levels[0].record.location == "source"
        assert logits(loaded.levels[0].decoder).tobytes() == source_logits(source).tobytes()


def test_an_f32_source_and_a_sharded_one_load_as_their_16_bit_target(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source", dtype="F32")
    rounded = write_tiny_llama(tmp_path / "rounded", dtype="BF16")
    with LoadedPackage(pack(source, tmp_path / "package", dtype="bf16", max_shard_bytes=60_000)) as loaded:
        assert len(loaded.levels[0].record.files) > 1
        assert logits(loaded.levels[0].decoder).tobytes() == source_logits(rounded).tobytes()


def test_norms_in_f32_beside_16_bit_matrices_are_taken_as_they_are(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    tensors = llama_tensors()
    norm = np.linspace(0.5, 1.5, 64, dtype=np.float32) + np.float32(1e-5)
    tensors["model.norm.weight"] = norm
    tensors["steps"] = np.arange(3)  # no weight of this model
    write_safetensors(source / "model.safetensors", tensors)
    for codec in ("mxfp4", "bsfp"):
        with LoadedPackage(pack(source, tmp_path / codec, codec=codec)) as loaded:
            assert all((level.decoder.norm.weight == norm).all() for level in loaded.levels)


@pytest.mark.parametrize("architecture", ["mistral, window", "qwen2", "qwen3", "llama, biases", "llama, tied"])
@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_every_architecture_comes_through_a_package_as_transformers_has_it(
    tmp_path: Path, tiny_oracle: Callable[[str], Any], architecture: str, codec: str, kernel: str
) -> None:
    oracle = tiny_oracle(architecture)
    tied = oracle.decoder.config.tie_word_embeddings
    is_fp16 = architecture.startswith("qwen")
    numpy_type = np.float16 if is_fp16 else ml_dtypes.bfloat16
    tensors = {
        name: tensor.numpy().astype(numpy_type)
        for name, tensor in oracle.torch_model.state_dict().items()
        if not (tied and name == HEAD)
    }
    source = tmp_path / "source"
    write_safetensors(source / "model.safetensors", tensors, {"format": "pt"})
    oracle.torch_model.config.save_pretrained(source)
    write_tiny_tokenizer(source / "tokenizer.json", 96)
    ids = oracle.text(40)
    residual_bits = 10 if is_fp16 and codec == "bsfp" else None
    with LoadedPackage(pack(source, tmp_path / "package", codec=codec, residual_bits=residual_bits)) as loaded:
        target, draft = (level.decoder for level in loaded.levels)
        found = logits(target, ids)
        # biases were rounded to 16 bits on the way, so the oracle must read what was stored
        theirs = _reloaded(oracle, tensors, ids)
        if kernel == "numpy" or is_fp16:
            assert np.abs(found - theirs).max() <= 1e-3
            assert (found.argmax(-1) == theirs.argmax(-1)).all()
        else:  # native BF16 kernels round activations to BF16
            assert np.corrcoef(found.ravel(), theirs.ravel())[0, 1] > 0.999
        assert np.corrcoef(logits(draft, ids).ravel(), theirs.ravel())[0, 1] > 0.7


def _reloaded(oracle: Any, tensors: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    model = type(oracle.torch_model)(oracle.torch_model.config).eval()
    state = {name: torch.from_numpy(array.astype(np.float32)) for name, array in tensors.items()}
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_a_nested_package_drafts_with_its_target(tmp_path: Path, codec: str) -> None:
    source = write_tiny_llama(tmp_path / "source")
    small = write_tiny_llama(tmp_path / "small", seed=1, hidden_size=32, num_hidden_layers=1, dtype="F16")
    nested = pack(small, tmp_path / "small-package", codec=codec)
    package = pack(source, tmp_path / "package", drafts=(f"package:{nested}",))
    with LoadedPackage(package) as loaded:
        assert [level.name for level in loaded.levels] == ["target", "mxfp4", "small-package"]
        level = loaded.levels[2]
        assert not level.shares_cache
        assert level.decoder.config.hidden_size == 32
        assert logits(level.decoder).tobytes() == source_logits(small).tobytes()


def test_a_checkpoint_draft_keeps_its_own_configuration(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    small = write_tiny_llama(
        tmp_path / "small", seed=1, num_hidden_layers=1, max_position_embeddings=24, tie_word_embeddings=True
    )
    package = pack(source, tmp_path / "package", codec="bsfp", drafts=(f"checkpoint:{small},num_draft_tokens=3",))
    with LoadedPackage(package) as loaded:
        level = loaded.levels[2]
        assert level.record.num_draft_tokens == 3
        assert level.decoder.config.max_position_embeddings == 24
        assert loaded.levels[0].decoder.config.max_position_embeddings == 128
        assert logits(level.decoder).tobytes() == source_logits(small).tobytes()


def three_levels(folder: Path) -> Path:
    source = write_tiny_llama(folder / "source")
    small = write_tiny_llama(folder / "small", seed=1, num_hidden_layers=1)
    return pack(source, folder / "package", drafts=(f"checkpoint:{small}",))


def test_levels_are_chosen_by_name(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    for names in (["target"], ["target", "small"], ["target", "small", "mxfp4"], ["target", "mxfp4", "small"]):
        with LoadedPackage(package, names) as loaded:
            assert [level.name for level in loaded.levels] == names


@pytest.mark.parametrize("names", [["targt"], ["target", "bsfp"], ["mxfp4", "bsfp"], [""], []])
def test_a_list_of_levels_names_known_ones(tmp_path: Path, names: list[str]) -> None:
    package = three_levels(tmp_path)
    message = (
        f"^{re.escape(str(package))}: levels {', '.join(names) or 'none'}; at least one, out of target, mxfp4, small, "
        "is required.$"
    )
    with pytest.raises(ModelError, match=message):
        LoadedPackage(package, names)


def tuned_record(**changes: Any) -> TunedRecord:
    values: dict[str, Any] = {
        "levels": ["target", "small"], "num_draft_tokens": [3], "confidence": [0.7], "speedup": 1.5,
        "num_prompts": 9, "num_tokens": 500, "cpu": "a processor", "threads": 2, "kernel": "avx2",
    }  # fmt: skip
    return TunedRecord(**(values | changes))


def test_what_tuning_chose_is_the_default(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    own = [level.num_draft_tokens for level in read_manifest(package).levels]
    rewrite(package, tuned=tuned_record())
    with LoadedPackage(package) as loaded:
        assert [level.name for level in loaded.levels] == ["target", "small"]
        assert (loaded.levels[1].record.num_draft_tokens, loaded.levels[1].record.confidence) == (3, 0.7)
    with LoadedPackage(package, ["target", "mxfp4", "small"]) as loaded:
        assert [level.record.num_draft_tokens for level in loaded.levels] == own
    rewrite(package, tuned=tuned_record(levels=["target"], num_draft_tokens=[], confidence=[]))
    with LoadedPackage(package) as loaded:
        assert [level.name for level in loaded.levels] == ["target"]


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (["target", "absent"], "levels target, absent; at least one, out of target, mxfp4, small, is required"),
        (
            ["mxfp4", "small"],
            "tuned levels mxfp4, small; a list that begins with 'target' is required. Run mxconv tune",
        ),
    ],
)
def test_tuned_levels_that_are_not_there_or_decode_something_else_are_refused(
    tmp_path: Path, levels: list[str], message: str
) -> None:
    package = three_levels(tmp_path)
    rewrite(package, tuned=tuned_record(levels=levels))
    with pytest.raises(ModelError, match=message):
        LoadedPackage(package)


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


@pytest.mark.parametrize(("num_rows", "works"), [(90, False), (96, True), (200, True)])
def test_a_draft_may_have_padding_but_needs_a_row_for_every_token(tmp_path: Path, num_rows: int, works: bool) -> None:
    package = three_levels(tmp_path)
    tokenizer = (package / "drafts/1-small/tokenizer.json").read_bytes()
    replace_small(package, vocab_size=num_rows)
    (package / "drafts/1-small/tokenizer.json").write_bytes(tokenizer)
    rewrite(package)
    if works:
        with LoadedPackage(package) as loaded:
            small = loaded.levels[-1]
            assert small.decoder is not None and small.decoder.config.vocab_size == num_rows
            assert small.tokenizer is loaded.tokenizer
    else:
        message = (
            "level small and its target have 90 and 96 rows of tokens; 96 tokens need 96 rows in both, 90 are there"
        )
        with pytest.raises(ModelError, match=message):
            LoadedPackage(package)


def test_further_drafts_stand_below_the_packages_own(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    other = write_tiny_llama(tmp_path / "other", seed=2, vocab_size=90)
    specs = [parse_draft(text) for text in ("layer-skip:m1", f"checkpoint:{other}", "token-recycling")]
    with LoadedPackage(package, drafts=specs) as loaded:
        names = [level.name for level in loaded.levels]
        assert names == ["target", "mxfp4", "small", "layer-skip", "other", "token-recycling"]
        tokenizers = [level.tokenizer is loaded.tokenizer for level in loaded.levels]
        assert tokenizers == [True, True, True, True, False, False]
        assert loaded.levels[-1].tokenizer is loaded.levels[-2].tokenizer  # a look-up speaks as the level above
        assert loaded.levels[4].record.confidence == 0.65


# further kinds of drafts, in a package or beside it

KINDS = (
    "layer-skip:a1",
    "streaming:sink=1,window=3",
    "prompt-lookup:max_ngram=2,min_ngram=2",
    "token-recycling:num_candidates=5",
    "stand:max_ngram=2,num_candidates=5",
)


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
@pytest.mark.parametrize("spec", KINDS)
def test_a_draft_of_every_kind_is_loaded(tmp_path: Path, spec: str, is_in_package: bool) -> None:
    with load(tmp_path, [spec], is_in_package) as loaded:
        target, _, level = loaded.levels
        kind_name = spec.partition(":")[0]
        assert (level.name, level.record.kind) == (kind_name, kind_name)
        assert level.tokenizer is target.tokenizer
        assert (level.decoder is None) == (kind_name in LOOK_UPS)
        assert level.shares_cache == (level.decoder is not None)
        assert (level.record.num_draft_tokens, level.record.confidence) == (8, 0.4)


@pytest.mark.parametrize("is_in_package", [True, False])
def test_a_part_of_the_target_shares_its_weights(tmp_path: Path, is_in_package: bool) -> None:
    with load(tmp_path, ["layer-skip:a1+m0,cache=own", "streaming:sink=1,window=3"], is_in_package) as loaded:
        target, _, skipping, streaming = (level.decoder for level in loaded.levels)
        assert target and skipping and streaming
        assert skipping.head is target.head
        assert streaming.layers[1].mlp.down.matrix is target.layers[1].mlp.down.matrix
        assert [layer.skips_attention for layer in skipping.layers] == [False, True]
        assert [layer.skips_mlp for layer in skipping.layers] == [True, False]
        assert {layer.sink_window for layer in streaming.layers} == {SinkWindow(1, 3)}
        assert [level.shares_cache for level in loaded.levels] == [False, True, False, True]
        short, long = IDS[:4], IDS
        assert (logits(streaming, short) == logits(target, short)).all()  # a window that has seen everything
        assert not (logits(streaming, long)[-1] == logits(target, long)[-1]).all()
        assert not (logits(skipping, short) == logits(target, short)).all()


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


def test_a_table_in_other_tokens_is_refused(tmp_path: Path) -> None:
    table = ngram_table(tmp_path, write_tiny_llama(tmp_path / "small", vocab_size=90))
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(table))}: its tokens are of a tokenizer.json with"):
        load(tmp_path, [f"ngram:{table}"], is_in_package=False)


def test_a_table_that_was_replaced_is_refused(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    package = pack(source, tmp_path / "package", drafts=(f"ngram:{ngram_table(tmp_path, source)}",))
    place = package / read_manifest(package).levels[2].path  # type: ignore[operator]
    place.unlink()
    write_table(place, "0" * 64)
    rewrite(package)
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(place))}: its tokens are of a tokenizer.json with"):
        LoadedPackage(package)


@pytest.mark.parametrize("is_in_package", [True, False])
@pytest.mark.parametrize("as_package", [True, False])
def test_a_model_with_a_tokenizer_of_its_own_brings_it(tmp_path: Path, as_package: bool, is_in_package: bool) -> None:
    small = write_tiny_llama(tmp_path / "small", vocab_size=90, seed=1)
    spec = f"package:{pack(small, tmp_path / 'small-package')}" if as_package else f"checkpoint:{small}"
    with load(tmp_path, [spec, "token-recycling"], is_in_package) as loaded:
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
@pytest.mark.parametrize(("dtype", "codec"), [("BF16", "bf16"), ("F16", "f16")])
def test_a_checkpoint_is_recorded_with_the_format_of_its_weights(
    tmp_path: Path, dtype: str, codec: str, is_in_package: bool
) -> None:
    small = write_tiny_llama(tmp_path / "small", num_hidden_layers=1, dtype=dtype)
    with load(tmp_path, [f"checkpoint:{small}"], is_in_package) as loaded:
        assert loaded.levels[2].record.codec == codec


@pytest.mark.parametrize("spec", ["checkpoint:{0}/none", "package:{0}/none", "ngram:{0}/none"])
def test_a_draft_that_is_not_there_is_named(tmp_path: Path, spec: str) -> None:
    with pytest.raises(MxconvError, match=f"{re.escape(str(tmp_path))}/none"):
        load(tmp_path, [spec.format(tmp_path)], is_in_package=False)


def test_layers_that_the_target_does_not_have_cannot_be_skipped(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^skipped layers '2': layer 2; layers of the model, 0 to 1, are required\."):
        load(tmp_path, ["layer-skip:2"], is_in_package=False)


@pytest.mark.parametrize(("kind_name", "thing"), [("ngram", "a table"), ("model", "a model")])
def test_a_level_without_the_path_it_needs_is_refused(tmp_path: Path, kind_name: str, thing: str) -> None:
    package = three_levels(tmp_path)
    *rest, model = read_manifest(package).levels
    rewrite(package, levels=[*rest, model.model_copy(update={"path": None, "kind": kind_name})])
    with pytest.raises(PackageError, match=rf"level small without a path; {thing} needs one\. Convert again\.$"):
        LoadedPackage(package)


def test_a_variant_of_a_target_that_comes_later_is_refused(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    package = pack(source, tmp_path / "package", drafts=("streaming",))
    target, draft, streaming = read_manifest(package).levels
    rewrite(package, levels=[streaming, target, draft])
    with pytest.raises(ModelError, match=r"level target below streaming; a draft must be cheaper than what it drafts"):
        LoadedPackage(package)


def test_a_referenced_source_that_is_gone_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_llama(tmp_path / "models/tiny")
    monkeypatch.chdir(tmp_path)
    package = pack(Path("models/tiny"), tmp_path / "package", target="reference")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    LoadedPackage(package).close()  # found from anywhere
    (tmp_path / "models").rename(tmp_path / "moved")
    message = (
        "^/.*models/tiny: no such file or folder; .*package references its weights there. Restore it, "
        "or convert again with --target include.$"
    )
    with pytest.raises(PackageError, match=message):
        LoadedPackage(package)


def test_a_referenced_source_of_another_length_is_refused(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    package = pack(source, tmp_path / "package", target="reference")
    num_bytes = (source / "model.safetensors").stat().st_size
    write_tiny_llama(source, num_hidden_layers=3)
    message = f"source/model.safetensors: .* bytes; .*package was converted from a file of {num_bytes:,}. Restore the"
    with pytest.raises(PackageError, match=message):
        LoadedPackage(package)


def test_a_referenced_source_in_other_files_is_refused(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    package = pack(source, tmp_path / "package", target="reference")
    (source / "model.safetensors").unlink()
    write_tiny_llama(source, num_shards=2)
    message = "source/model-00001-of-00002.safetensors: .* bytes; .*package was converted from other files. Restore"
    with pytest.raises(PackageError, match=message):
        LoadedPackage(package)


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
    message = (
        r"^target: tensor model.layers.0.mlp.gate_proj.weight has shape \(172, 64\); config.json requires \(176, 64\)"
    )
    with pytest.raises(ModelError, match=message):
        LoadedPackage(pack(source, tmp_path / "package"))


def test_a_matrix_of_infinities_that_was_kept_flows_through_target_and_draft(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    tensors = llama_tensors()
    tensors[PROJECTION][3, 4] = np.inf
    write_safetensors(source / "model.safetensors", tensors)
    for codec in ("mxfp4", "bsfp"):
        with LoadedPackage(pack(source, tmp_path / codec, codec=codec, on_nonfinite="keep")) as loaded:
            for level in loaded.levels:
                assert kind(level.decoder.layers[0].mlp.gate.matrix) is DenseMatrix
                assert not np.isfinite(logits(level.decoder)).all()


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
    for name in ("", None):
        if name is None:
            monkeypatch.delenv("MXCONV_KERNEL")
        else:
            monkeypatch.setenv("MXCONV_KERNEL", name)
        with LoadedPackage(package) as loaded:
            assert engine_names(loaded) == [kernel_names()[0]] * 3


@pytest.mark.parametrize("name", native_names())
@pytest.mark.parametrize("num_threads", [1, 3])
def test_every_level_runs_on_the_kernels_and_threads_asked_for(tmp_path: Path, name: str, num_threads: int) -> None:
    source = write_tiny_llama(tmp_path / "source")
    small = write_tiny_llama(tmp_path / "small", seed=1, num_hidden_layers=1)
    nested = pack(write_tiny_llama(tmp_path / "nested", seed=2, num_hidden_layers=1), tmp_path / "nested-package")
    package = pack(source, tmp_path / "package", drafts=(f"checkpoint:{small}", f"package:{nested}"))
    with LoadedPackage(package, kernel=name, num_threads=num_threads) as loaded:
        assert engine_names(loaded) == [name] * 4
        assert {level.decoder.engine.num_threads for level in loaded.levels} == {num_threads}


@pytest.mark.parametrize("num_threads", [0, -1, 1025])
def test_an_impossible_number_of_threads_is_refused(tmp_path: Path, num_threads: int) -> None:
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


def _projection(layer: Any, name: str) -> Any:
    return getattr(layer.mlp if name in ("gate", "up", "down") else layer.attention, name)
