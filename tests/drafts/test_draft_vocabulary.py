"""Drafts whose output head has some of the tokens: their logits, what they cost, what is stored, and the same texts."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from checkpoints import write_tiny_llama
from loaded_packages import IDS, pack, rewrite
from tokenizers import Tokenizer
from trained_levels import PROMPTS, TRAINED

from mxconv.cost.package_levels import package_levels
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.errors import MxconvError, PackageError
from mxconv.kernels.engine import native_names
from mxconv.package.draft_vocabulary import VOCABULARY_FILE
from mxconv.package.manifest import read_manifest
from mxconv.package.package import Package
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling
from mxconv.verification.decode_proof import verify_decoding

VIEWS = ("streaming,sink=1,window=9", "layer-skip:m0", "early-exit")
NUM_TOKENS = 37  # no multiple of 16


def write_texts(path: Path, text: str) -> dict[str, Any]:
    """The options of a conversion whose tokens are counted in a text."""
    path.write_text(text)
    return {"draft_vocabulary": NUM_TOKENS, "draft_vocabulary_texts": (path,)}


def logits_of(decoder: Decoder, count: int) -> np.ndarray:
    """Of the last rows of a pass over so many."""
    return decoder.forward(IDS[:count], KVCache(decoder.config))


KINDS_OF_HEADS = [
    ("mxfp4", "int8", "BF16", True),
    ("mxfp4", "quantize", "BF16", False),
    ("mxfp4", "keep", "F16", True),
    ("bsfp", "quantize", "BF16", True),
    ("bsfp", "exact", "BF16", False),
    ("bsfp", "keep", "F16", True),
]
KERNELS = ["numpy", *native_names()]


@pytest.mark.parametrize(
    ("codec", "lm_head", "dtype", "tied", "kernel"),
    [(*head, KERNELS[(place + turn) % len(KERNELS)]) for place, head in enumerate(KINDS_OF_HEADS) for turn in (0, 1)],
)
def test_the_logits_of_listed_tokens_are_those_of_the_whole_head_bit_for_bit(
    tmp_path: Path, codec: str, lm_head: str, dtype: str, tied: bool, kernel: str
) -> None:
    """The 4-bit level beside itself as a run's first level, which says all; views of the target beside the target."""
    source = write_tiny_llama(tmp_path / "m", dtype=dtype, tie_word_embeddings=tied)
    options = write_texts(tmp_path / "t.txt", "zebras quickly jumped over 1234567890 {lazy} dogs~")
    residual_bits = 10 if (codec, dtype) == ("bsfp", "F16") else None
    pack(source, tmp_path / "p", codec=codec, lm_head=lm_head, drafts=VIEWS, residual_bits=residual_bits, **options)
    tokens = safetensors.numpy.load_file(tmp_path / "p" / VOCABULARY_FILE)["draft_vocabulary"]
    assert (tokens.dtype, len(tokens)) == (np.int32, NUM_TOKENS)
    others = np.delete(np.arange(96), tokens)
    with LoadedPackage(tmp_path / "p", kernel=kernel) as loaded:
        whole: dict[str, LoadedPackage] = {}
        for level in loaded.levels[1:]:
            whole[level.name] = loaded.stack.enter_context(LoadedPackage(tmp_path / "p", [level.name], kernel=kernel))
            for count in (1, 3, 20):
                assert isinstance(level.decoder, Decoder)
                found, expected = logits_of(level.decoder, count), logits_of(whole[level.name].target, count)
                assert np.isfinite(expected).all()
                assert found[:, tokens].tobytes() == expected[:, tokens].tobytes(), (level.name, count)
                assert (found[:, others] == -np.inf).all()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Packages of a trained model, with drafts that know a sixth of its tokens and with drafts that know all."""
    folder = tmp_path_factory.mktemp("trained")
    options = write_texts(folder / "t.txt", "import os\n" * 20 + PROMPTS[1])
    options["draft_vocabulary"] = 160
    made = {"mxfp4": pack(TRAINED, folder / "mxfp4", drafts=VIEWS, **options)}
    made["bsfp"] = pack(TRAINED, folder / "bsfp", codec="bsfp", drafts=VIEWS[:1], **options)
    made["whole"] = pack(TRAINED, folder / "whole", drafts=VIEWS)
    return made


DRAWN = Selection(Sampling(0.8), "coupled", 3)


@pytest.mark.parametrize(("codec", "tree"), [("mxfp4", 8), ("bsfp", "chain")])
def test_texts_are_the_targets_own_whatever_its_drafts_do_not_know(
    trained: dict[str, Path], codec: str, tree: Any
) -> None:
    """Greedily and drawn, of the 4-bit level alone and of views below each other; many tokens are no draft's."""
    with LoadedPackage(trained[codec], num_threads=1) as loaded:
        level = loaded.levels[1].decoder
        assert level is not None and level.tokens is not None
        known = set(level.tokens.tolist())
        for drafts in ([loaded.levels[1]], loaded.levels[2:]):
            hierarchy = Hierarchy([loaded.levels[0], *drafts], [4], [0.0], tree)
            for selection in (GREEDY, DRAWN):
                record = verify_decoding(loaded, hierarchy, PROMPTS[:2], 16, selection)
                assert (record.num_token_mismatches, record.num_logit_mismatches) == (0, 0)
        hierarchy = Hierarchy(loaded.levels[:2], [4], [0.0], tree)
        for selection in (GREEDY, DRAWN, Selection(Sampling(), "rejection", 3)):
            generations = [
                hierarchy.generate(loaded.tokenizer.encode(prompt), 24, selection=selection) for prompt in PROMPTS
            ]
            said = [token for each in generations for token in each.token_ids]
            assert 0.1 < sum(token in known for token in said) / len(said) < 0.9
            assert sum(each.trace.statistics[1].num_accepted for each in generations) > 0


def test_a_pass_counts_the_head_that_it_reads(trained: dict[str, Path]) -> None:
    """MXINT8 has 8.25 bits a weight; views of the target copy their rows in 16 bits."""
    with LoadedPackage(trained["mxfp4"]) as listed, LoadedPackage(trained["whole"]) as whole:
        config = whole.config
        missing = (config.vocab_size - 160) * config.hidden_size
        saved = {level.name: [whole, listed] for level in listed.levels}
        bytes_of = {
            name: [p.bytes_per_pass(next(level for level in p.levels if level.name == name)) for p in pair]
            for name, pair in saved.items()
        }
        assert bytes_of["target"][0] == bytes_of["target"][1]
        assert bytes_of["mxfp4"][0] - bytes_of["mxfp4"][1] == missing * 8.25 / 8
        for name in ("streaming", "layer-skip", "early-exit"):
            assert bytes_of[name][0] - bytes_of[name][1] == pytest.approx(missing * 2, abs=2)
        for level, cost in zip(listed.levels, package_levels(listed.package), strict=True):
            assert cost.num_bytes == pytest.approx(listed.bytes_per_pass(level), rel=0.01)


def test_the_most_frequent_tokens_are_listed_the_lower_id_where_equal(tmp_path: Path) -> None:
    """Counted by another library, in plain text and in JSONL; what ends texts and turns is always among them."""
    source = write_tiny_llama(tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.add_special_tokens(["|", "y"])  # of its 96
    tokenizer.save(str(source / "tokenizer.json"))
    (source / "chat_template.jinja").write_text("{{ messages[0].content }}|")
    plain, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("hello world, " * 9 + "zq")
    lines.write_text(json.dumps({"text": "hollowy"}) + "\n" + json.dumps({"prompt": "wqqx"}))
    counts = Counter(tokenizer.encode(plain.read_text()).ids + tokenizer.encode("hollowywqqx").ids)
    ranked = [token for token, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]
    edge = next(place for place in range(1, len(ranked)) if counts[ranked[place - 1]] == counts[ranked[place]])
    always = [2, tokenizer.token_to_id("|")]
    found = [
        pack(source, tmp_path / name, draft_vocabulary=number, draft_vocabulary_texts=(plain, lines))
        for name, number in (("p", edge + 2), ("again", edge + 2), ("more", 40))
    ]
    listed = [safetensors.numpy.load_file(each / VOCABULARY_FILE)["draft_vocabulary"].tolist() for each in found]
    assert listed[0] == listed[1] == sorted(always + ranked[:edge])
    filled = [token for token in range(96) if token not in {*ranked, *always}]
    assert listed[2] == sorted([*always, *ranked, *filled][:40])
    record = read_manifest(found[0]).levels[1].vocabulary
    assert record is not None and record.num_tokens == edge + 2 and len(record.texts) == 2


def test_a_list_that_is_no_list_of_the_models_tokens_is_refused(tmp_path: Path) -> None:
    options = write_texts(tmp_path / "t.txt", "some text")
    package = pack(write_tiny_llama(tmp_path / "m"), tmp_path / "p", **options)
    path = package / VOCABULARY_FILE
    name = f"{path}: array draft_vocabulary"
    good = np.arange(NUM_TOKENS, dtype=np.int32)
    for tokens, message in [
        (np.where(good == 5, 4, good), f"{name}: token 4 after 4; ids that ascend, each once, are required."),
        (good[::-1].copy(), f"{name}: token 35 after 36; ids that ascend"),
        (good + 60, f"{name}: token 96; ids from 0 to 95 are required."),
        (good - 1, f"{name}: token -1; ids from 0 to 95 are required."),
        (good[:-1], f"{name} is I32 [36]; I32 [37] is required by level mxfp4. Convert again."),
        (good.astype(np.int64), f"{name} is I64 [37]; I32 [37] is required"),
        (good[:0], f"{name} is I32 [0]; I32 [37] is required"),
    ]:
        safetensors.numpy.save_file({"draft_vocabulary": tokens.astype(tokens.dtype)}, path)
        rewrite(package)
        with pytest.raises(PackageError) as caught:
            LoadedPackage(package)
        assert message in str(caught.value)
    safetensors.numpy.save_file({"other": good}, path)
    rewrite(package)
    with pytest.raises(PackageError, match=r"array draft_vocabulary is missing; I32 \[37\] is required by level"):
        LoadedPackage(package)
    with LoadedPackage(package, ["target"]):  # which does not need it
        pass


@pytest.mark.parametrize(
    ("number", "text", "message"),
    [
        (96, "text", "--draft-vocabulary 96: {m} has 96 tokens, of which 1 end texts or turns; 1 to 95 are required."),
        (0, "text", "--draft-vocabulary 0: {m} has 96 tokens, of which 1 end texts or turns; 1 to 95 are required."),
        (5, "", "{t}: 0 tokens; at least one is required."),
    ],
)
def test_numbers_and_texts_that_do_not_fit_are_refused(tmp_path: Path, number: int, text: str, message: str) -> None:
    source, texts = write_tiny_llama(tmp_path / "m"), tmp_path / "t.txt"
    texts.write_text(text)
    with pytest.raises(MxconvError) as caught:
        pack(source, tmp_path / "p", draft_vocabulary=number, draft_vocabulary_texts=(texts,))
    assert str(caught.value).startswith(message.format(m=source, t=texts))
    assert not (tmp_path / "p").exists()


def test_packages_without_one_say_nothing_of_it_and_others_come_back_as_they_are(trained: dict[str, Path]) -> None:
    assert "vocabulary" not in json.loads((trained["whole"] / "mxconv.json").read_text())["levels"][1]
    manifest = read_manifest(trained["mxfp4"])
    assert manifest.to_bytes() == (trained["mxfp4"] / "mxconv.json").read_bytes()
    assert [level.vocabulary is None for level in manifest.levels] == [True, False, False, False, False]
    with Package(trained["mxfp4"]) as package:
        assert package.manifest.levels[1].files[-1] == VOCABULARY_FILE
