import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from checkpoints import (
    llama_tensors,
    write_index,
    write_raw_safetensors,
    write_safetensors,
    write_sharded,
    write_tiny_llama,
)

from mxconv.checkpoint.source import Checkpoint, open_checkpoint
from mxconv.errors import CheckpointError
from mxconv.open_source import open_source

MODELS = os.environ.get("MXCONV_TEST_MODELS")


def refused(source: str | Path, words: str, revision: str | None = None) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(source, revision=revision)
    assert words in str(caught.value)


def bytes_by_name(checkpoint: Checkpoint) -> dict[str, tuple[str, list[int], bytes]]:
    return {n: (t.dtype, list(t.shape), t.array().tobytes()) for n, t in checkpoint.tensors.items()}


def bytes_by_name_of_the_library(paths: list[Path]) -> dict[str, tuple[str, list[int], bytes]]:
    return {
        name: (tensor["dtype"], tensor["shape"], bytes(tensor["data"]))
        for path in paths
        for name, tensor in safetensors.deserialize(path.read_bytes())
    }


# what is opened


def test_a_folder_with_one_file_is_opened_with_everything_beside_it(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    for name in ("README.md", "LICENSE.txt", "tokenizer.model", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_text("{}")
    (folder / "LICENSES").mkdir()
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.id == str(folder)
        assert checkpoint.commit is None and checkpoint.index_file is None and checkpoint.container == "safetensors"
        assert checkpoint.root == folder
        assert checkpoint.weight_files == (folder / "model.safetensors",)
        assert [path.relative_to(folder).as_posix() for path in checkpoint.companion_files] == [
            "LICENSE.txt",
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer.model",
            "tokenizer_config.json",
        ]
        assert checkpoint.config is not None and checkpoint.config["model_type"] == "llama"
        assert list(checkpoint.tensors) == sorted(llama_tensors())
        assert bytes_by_name(checkpoint) == bytes_by_name_of_the_library([folder / "model.safetensors"])


def test_shards_with_an_index_give_the_tensors_of_the_single_file(tmp_path: Path) -> None:
    single = write_tiny_llama(tmp_path / "single")
    sharded = write_tiny_llama(tmp_path / "sharded", num_shards=3)
    with open_checkpoint(single) as one, open_checkpoint(str(sharded)) as three:
        assert bytes_by_name(one) == bytes_by_name(three)
        assert three.index_file == sharded / "model.safetensors.index.json"
        assert three.index_file not in three.companion_files
        assert [path.name for path in three.weight_files] == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


def test_a_single_file_is_opened_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", num_shards=2)
    monkeypatch.chdir(folder)
    name = "model-00001-of-00002.safetensors"
    with open_checkpoint(name) as checkpoint:
        assert checkpoint.id == name
        assert checkpoint.config is None and checkpoint.companion_files == ()
        assert checkpoint.root == folder and checkpoint.weight_files == (folder / name,)
        assert bytes_by_name(checkpoint) == bytes_by_name_of_the_library([folder / name])


@pytest.mark.skipif(MODELS is None, reason="MXCONV_TEST_MODELS does not name a folder of models")
def test_real_models_are_read_as_the_library_reads_them() -> None:
    assert MODELS is not None
    folders = sorted(path.parent for path in Path(MODELS).glob("*/model.safetensors"))
    assert folders
    for folder in folders:
        with open_checkpoint(folder) as checkpoint:
            assert bytes_by_name(checkpoint) == bytes_by_name_of_the_library([folder / "model.safetensors"])


# what is refused

ONES = {"a": np.ones(1, np.float16)}
LAYOUT = "model.safetensors, shards with an index, or pytorch_model.bin is required. "
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22\nsize 12345\n"
INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"


def touched(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def linked(path: Path, target: str) -> Path:
    path.symlink_to(path.parent / target)
    return path


def configured(folder: Path, text: str, num_bytes: int | None = None) -> Path:
    path = write_tiny_llama(folder / "model") / "config.json"
    path.write_text(text)
    os.truncate(path, len(text) if num_bytes is None else num_bytes)
    return path.parent


def sharded(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    """Four tensors in two shards; `changes` are of the index."""
    write_sharded(folder, {name: np.full(2, i, np.float16) for i, name in enumerate("abcd")}, 2)
    places = json.loads((folder / INDEX).read_text())["weight_map"] | (changes or {})
    write_index(folder, {name: shard for name, shard in places.items() if shard != "left out"})
    return folder


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def in_the_hub_cache(folder: Path, name: str) -> Path:
    write_tiny_llama(folder / name / "snapshots" / "0123abc")
    touched(folder / name, "refs/main")
    return folder / name


def several(folder: Path, *indexes: str) -> Path:
    for name in "ab":
        write_safetensors(folder / f"{name}.safetensors", {name: np.ones(1, np.float16)})
    for index in indexes:
        write_index(folder, {"a": "a.safetensors"}, f"{index}.safetensors.index.json")
    return folder


def in_a_linked_folder(folder: Path) -> Path:
    write_safetensors(folder / "outside/a.safetensors", ONES)
    (folder / "model").mkdir()
    (folder / "model/inside").symlink_to(folder / "outside")
    write_index(folder / "model", {"a": "inside/a.safetensors"})
    return folder / "model"


def without_a_shard(folder: Path) -> Path:
    (sharded(folder) / TWO).unlink()
    return folder


def damaged(folder: Path) -> Path:
    os.truncate(sharded(folder) / TWO, 100)
    return folder


def listed_twice(folder: Path) -> Path:
    (sharded(folder) / INDEX).write_text(f'{{"weight_map": {{"a": "{ONE}", "a": "{TWO}"}}}}')
    return folder


def in_two_shards(folder: Path) -> Path:
    write_safetensors(sharded(folder) / TWO, {name: np.ones(2, np.float16) for name in "abd"})
    return folder


def of_one_file(folder: Path, name: str = WHOLE, index: dict[str, str] | None = None) -> Path:
    write_safetensors(folder / name, ONES)
    if index is not None:
        write_index(folder, index)
    return folder


def beside_copies(folder: Path) -> Path:
    of_one_file(sharded(folder), "consolidated.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    return folder


def of_links(folder: Path) -> Path:
    write_safetensors(folder / "blobs" / "abc", ONES)
    (folder / "model" / "shards").mkdir(parents=True)
    linked(folder / "model" / "shards" / "1.safetensors", "../../blobs/abc")
    write_index(folder / "model", {"a": "./shards/1.safetensors"})
    return folder / "model"


CHOSEN: dict[str, tuple[Callable[[Path], Path], list[str], bool]] = {  # makes the source; files, whether by an index
    "another name": (lambda f: of_one_file(f, "weights.safetensors"), ["weights.safetensors"], False),
    "consolidated alone": (lambda f: of_one_file(f, "consolidated.safetensors"), ["consolidated.safetensors"], False),
    "beside copies and other formats": (beside_copies, [ONE, TWO], True),
    "a stale index": (lambda f: of_one_file(f, index={"a": "model-00001-of-00009.safetensors"}), [WHOLE], False),
    "an index of one file": (lambda f: of_one_file(f, index={"a": WHOLE}), [WHOLE], True),
    "one index among several files": (lambda f: several(f, "one"), ["a.safetensors"], True),
    "links, in a subfolder": (of_links, ["shards/1.safetensors"], True),
    "a suffix in capitals": (lambda f: of_one_file(f, "A.SAFETENSORS") / "A.SAFETENSORS", ["A.SAFETENSORS"], False),
}


@pytest.mark.parametrize("what", CHOSEN)
def test_weights_are_chosen_among_the_files_of_a_folder(what: str, tmp_path: Path) -> None:
    make, files, has_index = CHOSEN[what]
    with open_checkpoint(make(tmp_path)) as checkpoint:
        assert [path.relative_to(checkpoint.root).as_posix() for path in checkpoint.weight_files] == files
        assert (checkpoint.index_file is not None) == has_index
        assert "a" in checkpoint.tensors and checkpoint.container == "safetensors"


REFUSED: dict[str, tuple[Callable[[Path], str | Path], str]] = {  # makes the source; FOLDER in words is its folder
    "a missing file": (lambda f: f / "no", "FOLDER/no: no such file or folder, and no Hub id either; an existing"),
    "an empty folder": (lambda f: f, f"FOLDER: is empty; {LAYOUT}Check that this is a model in the Hugging Face lay"),
    "other files": (lambda f: touched(f, *"abcdefg"), f"no weights, only a, b, c, d, e and 2 more; {LAYOUT}Check that"),
    "other folders": (lambda f: touched(f, "a", "logs/b"), f"FOLDER: holds no weights, only a, logs/; {LAYOUT}Check"),
    "models": (
        lambda f: touched(f, "2/model.safetensors", "1/model.safetensors"),
        f"FOLDER: holds no weights, but folders with models (1, 2); {LAYOUT}Give one of these",
    ),
    "a repository in the Hub cache": (
        lambda f: in_the_hub_cache(f, "models--org--tiny"),
        f"a folder of the Hub cache, with commits in snapshots (0123abc); {LAYOUT}Give its id, org/tiny, or the",
    ),
    "one without an owner": (lambda f: in_the_hub_cache(f, "models--gpt2"), f"{LAYOUT}Give its id, gpt2, or the"),
    "the Hub cache": (lambda f: in_the_hub_cache(f, "models--gpt2").parent, "folders with models (models--gpt2); "),
    "snapshots": (lambda f: in_the_hub_cache(f, "models--gpt2") / "snapshots", "folders with models (0123abc); "),
    "no index": (several, "holds 2 .safetensors files (a.safetensors, b.safetensors) and no index; one file or one"),
    "two indexes": (lambda f: several(f, "one", "two"), "and 2 indexes; one file or one index is required."),
    "a pipe": (lambda f: pipe(f / WHOLE), f"FOLDER/{WHOLE}: is no regular file; a regular file is required. Check"),
    "a pipe in a folder": (lambda f: pipe(f / WHOLE).parent, f"FOLDER/{WHOLE}: is no regular file"),
    "a link to nowhere": (lambda f: linked(f / WHOLE, "gone").parent, f"/{WHOLE}: a symbolic link that leads nowhere;"),
    "a loop": (lambda f: linked(f / WHOLE, WHOLE), f"FOLDER/{WHOLE}: its symbolic links form a loop; they must lead"),
    "a loop in a folder": (lambda f: linked(f / WHOLE, WHOLE).parent, f"FOLDER/{WHOLE}: its symbolic links form a"),
    "a loop of another file": (
        lambda f: linked(write_tiny_llama(f / "m") / "LICENSE", "LICENSE").parent,
        "LICENSE: its symbolic links form a loop",
    ),
    "a folder in a loop": (lambda f: linked(f / "folder", "folder"), "folder: its symbolic links form a loop"),
    "another container": (lambda f: touched(f, "a.onnx") / "a.onnx", "a.onnx: a file that ends in '.onnx'; a model fo"),
    "no tensors": (lambda f: write_raw_safetensors(f / WHOLE, {}), f"{WHOLE}: its weight files hold no tensors; at"),
    "no JSON": (lambda f: configured(f, "{"), "config.json: no valid JSON in UTF-8 (Expecting property name enclosed"),
    "no object": (lambda f: configured(f, "[]"), "config.json: a JSON list is at the top; a JSON object is required."),
    "a long configuration": (
        lambda f: configured(f, "", 1 << 40),
        "config.json: 1,099,511,627,776 bytes long; at most 100,000,000 bytes of JSON are read. Check that it is the",
    ),
    "a missing shard": (without_a_shard, f"FOLDER/{INDEX}: names shard '{TWO}', which is not there; every shard is"),
    "a linked folder": (in_a_linked_folder, "shard 'inside/a.safetensors' lies in FOLDER/outside; it must lie inside"),
    "a tensor listed twice": (listed_twice, f"FOLDER/{INDEX}: the JSON key 'a' occurs twice in one object; keys must"),
    "a tensor in two shards": (in_two_shards, f"tensor 'a' is in both {ONE} and {TWO}; it must be in one shard."),
    "a damaged shard": (damaged, f"FOLDER/{TWO}: "),
    "a tensor of no shard": (lambda f: sharded(f, {"e": ONE}), f"says that tensor 'e' is in {ONE}, but no shard has"),
    "another shard": (lambda f: sharded(f, {"a": TWO}), f"says that tensor 'a' is in {TWO}, but it is in {ONE}; index"),
    "no entry": (lambda f: sharded(f, {"c": "left out"}), f"FOLDER/{ONE}: holds tensor 'c', which {INDEX} does not l"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_whole_checkpoint_is_refused(what: str, tmp_path: Path) -> None:
    make, words = REFUSED[what]
    refused(make(tmp_path), words.replace("FOLDER", str(tmp_path)))


@pytest.mark.parametrize("source", ["no.safetensors", "a/b/c", "../x/y", "-/", "owner/na me"])
def test_what_is_neither_a_path_nor_an_id_is_refused(source: str) -> None:
    refused(source, f"{source}: no such file or folder, and no Hub id either; an existing path or an id of the form ")


def test_a_path_has_no_revisions(tmp_path: Path) -> None:
    refused(tmp_path, "revision 'main' was given for a local path; only Hub repositories have revisions.", "main")


SHARDS = ["/x", "../x.safetensors", "a/../../x", "..", "C:x.safetensors", "a\\b", "a\0", "", "a/", 5, None]


@pytest.mark.parametrize("shard", SHARDS)
def test_a_shard_path_that_climbs_out_of_the_folder_is_refused(tmp_path: Path, shard: object) -> None:
    refused(
        sharded(tmp_path, {"a": shard}),
        f"tensor 'a' is in {shard!r}; a relative path inside the index's folder is required. Do not use this",
    )


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"])
def test_an_index_without_a_weight_map_is_refused(tmp_path: Path, weight_map: object) -> None:
    write_index(tmp_path, weight_map)
    refused(tmp_path, "has no weight_map, or an empty one; an object of tensor names and shard names is required. Down")


SMALL = ("config.json", "tokenizer.json", "tokenizer.model", "LICENSE", INDEX, TWO)


@pytest.mark.parametrize("name", [WHOLE, *SMALL, "pytorch_model.bin", "model.SAFETENSORS", "model.gguf"])
def test_pointers_of_git_lfs_are_named(tmp_path: Path, name: str) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", num_shards=2 if name in (INDEX, TWO) else 1)
    (folder / name).write_text(POINTER)
    for source in (folder,) if name in SMALL else (folder / name, folder) if name == WHOLE else (folder / name,):
        with pytest.raises(CheckpointError, match="a Git LFS pointer, which names the file and does not hold it; the"):
            open_source(source)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_and_folders_without_permission_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    (folder / "model.safetensors").chmod(0)
    refused(folder, "model.safetensors: cannot be read (Permission denied); a readable file is required.")
    folder.chmod(0)
    try:
        refused(folder, f"{folder}: cannot be listed (Permission denied); a readable folder is required. Check its")
    finally:
        folder.chmod(0o700)


def test_a_configuration_that_transformers_accepts_is_read(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    (folder / "config.json").write_text('{"a": 1, "a": 2, "limit": Infinity}')
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.config == {"a": 2, "limit": float("inf")}
