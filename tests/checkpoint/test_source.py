import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
from checkpoints import llama_tensors, write_index, write_raw_safetensors, write_safetensors, write_tiny_llama

from mxconv.checkpoint.source import Checkpoint, open_checkpoint
from mxconv.errors import CheckpointError
from mxconv.open_source import open_source

MODELS = os.environ.get("MXCONV_TEST_MODELS")


def error_of(source: str | Path, revision: str | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(source, revision=revision)
    return str(caught.value)


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


def test_one_safetensors_file_of_another_name_is_enough(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "weights.safetensors", {"a": np.ones(3, np.float16)})
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint.tensors) == ["a"] and checkpoint.config is None


def test_consolidated_copies_and_other_formats_beside_the_weights_are_left_alone(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", num_shards=2)
    write_safetensors(folder / "consolidated.safetensors", {"a": np.ones(3, np.float16)})
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    with open_checkpoint(folder) as checkpoint:
        assert len(checkpoint.weight_files) == 2 and checkpoint.container == "safetensors"
    only = tmp_path / "only"
    write_safetensors(only / "consolidated.safetensors", {"a": np.ones(3, np.float16)})
    with open_checkpoint(only) as checkpoint:
        assert list(checkpoint.tensors) == ["a"]


def test_a_stale_index_beside_a_single_file_is_left_alone(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    write_index(folder, {"a": "model-00001-of-00009.safetensors"})
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.weight_files == (folder / "model.safetensors",) and checkpoint.index_file is None
    write_index(folder, dict.fromkeys(llama_tensors(), "model.safetensors"))
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.index_file == folder / "model.safetensors.index.json"


def test_weights_may_be_symbolic_links_and_shards_may_lie_in_subfolders(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    write_safetensors(blobs / "abc", {"a": np.ones(3, np.float16)})
    (folder / "shards").mkdir(parents=True)
    (folder / "shards" / "1.safetensors").symlink_to(blobs / "abc")
    write_index(folder, {"a": "./shards/1.safetensors"})
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.weight_files == (folder / "shards" / "1.safetensors",)
        assert checkpoint.tensors["a"].shape == (3,)


@pytest.mark.skipif(MODELS is None, reason="MXCONV_TEST_MODELS does not name a folder of models")
def test_real_models_are_read_as_the_library_reads_them() -> None:
    assert MODELS is not None
    folders = sorted(path.parent for path in Path(MODELS).glob("*/model.safetensors"))
    assert folders
    for folder in folders:
        with open_checkpoint(folder) as checkpoint:
            assert bytes_by_name(checkpoint) == bytes_by_name_of_the_library([folder / "model.safetensors"])


def test_opening_imports_neither_torch_nor_the_hub_client(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    code = (
        "import sys; from mxconv.checkpoint.source import open_checkpoint; open_checkpoint(sys.argv[1]).close(); "
        "print([name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


# what is refused


def test_what_is_neither_a_path_nor_an_id_is_refused(tmp_path: Path) -> None:
    for source in (tmp_path / "no", "no.safetensors", "a/b/c", "../x/y", "-/", "owner/na me"):
        assert error_of(source) == (
            f"{source}: no such file or folder, and no Hub id either; an existing path or an id of the form "
            "owner/name is required. Check the spelling."
        )


def test_a_folder_without_weights_is_refused_with_what_is_there(tmp_path: Path) -> None:
    assert error_of(tmp_path) == (
        f"{tmp_path}: is empty; model.safetensors, shards with an index, or pytorch_model.bin is required. "
        "Check that this is a model in the Hugging Face layout. A .gguf file is read when its own path is given; "
        "Other .pt files, .pth and .onnx are not read."
    )
    for i in range(7):
        (tmp_path / f"model-{i}.gguf").touch()
    assert error_of(tmp_path).startswith(
        f"{tmp_path}: holds no weights, only model-0.gguf, model-1.gguf, model-2.gguf, model-3.gguf, model-4.gguf "
        "and 2 more; model.safetensors, "
    )


def test_a_folder_of_folders_says_which_hold_models(tmp_path: Path) -> None:
    required = "; model.safetensors, shards with an index, or pytorch_model.bin is required. "
    (tmp_path / "logs").mkdir()
    (tmp_path / "notes.txt").touch()
    assert error_of(tmp_path).startswith(
        f"{tmp_path}: holds no weights, only notes.txt, logs/{required}Check that this"
    )
    for name in ("checkpoint-2", "checkpoint-1"):
        write_tiny_llama(tmp_path / name)
    assert error_of(tmp_path) == (
        f"{tmp_path}: holds no weights, but folders with models (checkpoint-1, checkpoint-2){required}"
        "Give one of these folders."
    )


@pytest.mark.parametrize(("name", "repo_id"), [("models--org--tiny", "org/tiny"), ("models--gpt2", "gpt2")])
def test_a_folder_of_the_hub_cache_says_what_to_give(tmp_path: Path, name: str, repo_id: str) -> None:
    folder = tmp_path / name
    write_tiny_llama(folder / "snapshots" / "0123abc")
    (folder / "refs").mkdir()
    assert error_of(folder) == (
        f"{folder}: is a folder of the Hub cache, with commits in snapshots (0123abc); model.safetensors, shards with "
        f"an index, or pytorch_model.bin is required. Give its id, {repo_id}, or the folder of a commit."
    )
    assert f"holds no weights, but folders with models ({name}); " in error_of(tmp_path)
    assert "holds no weights, but folders with models (0123abc); " in error_of(folder / "snapshots")


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22\nsize 12345\n"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer.model", "LICENSE"])
def test_pointers_of_git_lfs_are_named(tmp_path: Path, name: str) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    (folder / name).write_text(POINTER)
    message = (
        f"{folder / name}: a Git LFS pointer, which names the file and does not hold it; the file itself is required. "
        "Run `git lfs pull` in its folder, or download it again, say with `hf download`."
    )
    assert error_of(folder) == message
    if name == "model.safetensors":
        assert error_of(folder / name) == message


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "model-00002-of-00002.safetensors"])
def test_pointers_among_shards_are_named(tmp_path: Path, name: str) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", num_shards=2)
    (folder / name).write_text(POINTER)
    assert error_of(folder).startswith(f"{folder / name}: a Git LFS pointer, ")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.SAFETENSORS", "model.gguf"])
def test_pointers_in_other_containers_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(POINTER)
    with pytest.raises(CheckpointError, match="a Git LFS pointer, which names the file and does not hold it"):
        open_source(tmp_path / name)


def test_the_suffix_of_a_file_may_be_in_capitals(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny")
    path = (tmp_path / "tiny/model.safetensors").rename(tmp_path / "MODEL.SAFETENSORS")
    with open_checkpoint(path) as checkpoint:
        assert list(checkpoint.tensors) == sorted(llama_tensors())


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        write_safetensors(tmp_path / f"{name}.safetensors", {name: np.ones(1, np.float16)})
    assert error_of(tmp_path) == (
        f"{tmp_path}: holds 2 .safetensors files (a.safetensors, b.safetensors) and no index; one file or one index "
        "is required. Pass one of the files, or add the model.safetensors.index.json that belongs to them."
    )
    write_index(tmp_path, {"a": "a.safetensors"}, "one.safetensors.index.json")
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint.tensors) == ["a"]
    write_index(tmp_path, {"b": "b.safetensors"}, "two.safetensors.index.json")
    assert "and 2 indexes; one file or one index is required." in error_of(tmp_path)


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    os.mkfifo(path)
    message = f"{path}: is no regular file; a regular file is required. Check the path."
    assert error_of(path) == error_of(tmp_path) == message


def test_symbolic_links_that_lead_nowhere_or_in_a_loop_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.symlink_to(tmp_path / "gone")
    assert error_of(tmp_path) == (
        f"{path}: a symbolic link that leads nowhere; a readable file is required. "
        "Check the path, or download it again."
    )
    path.unlink()
    path.symlink_to(path)
    message = f"{path}: its symbolic links form a loop; they must lead to a file. Replace the link by the file itself."
    assert error_of(path) == error_of(tmp_path) == message
    path.unlink()
    write_safetensors(path, {"a": np.ones(1, np.float16)})
    config = tmp_path / "config.json"
    config.symlink_to("config.json")
    assert error_of(tmp_path) == message.replace(str(path), str(config))
    folder = tmp_path / "folder"
    folder.symlink_to(folder)
    assert "its symbolic links form a loop" in error_of(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_and_folders_without_permission_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    (folder / "model.safetensors").chmod(0)
    assert "model.safetensors: cannot be read (Permission denied); a readable file is required." in error_of(folder)
    folder.chmod(0)
    try:
        assert error_of(folder) == (
            f"{folder}: cannot be listed (Permission denied); a readable folder is required. Check its permissions."
        )
    finally:
        folder.chmod(0o700)


def test_files_that_hold_no_weights_and_revisions_of_paths_are_refused(tmp_path: Path) -> None:
    other, empty = tmp_path / "model.onnx", write_raw_safetensors(tmp_path / "a.safetensors", {})
    other.touch()
    assert error_of(other) == (
        f"{other}: a file that ends in '.onnx'; a model folder, a .safetensors or a .gguf file is required. "
        "Pass the folder that holds config.json and the weights."
    )
    assert error_of(empty) == (
        f"{empty}: its weight files hold no tensors; at least one is required. Export the model again."
    )
    assert error_of(tmp_path, "main") == (
        f"{tmp_path}: revision 'main' was given for a local path; only Hub repositories have revisions. "
        "Leave --revision out, or give the Hub id."
    )


def test_a_damaged_config_is_refused_and_an_absurdly_long_one_before_it_is_read(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    path = folder / "config.json"
    for text, message in (
        ("{", "no valid JSON in UTF-8 (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"),
        ("[]", "a JSON list is at the top"),
    ):
        path.write_text(text)
        assert error_of(folder) == (f"{path}: {message}; a JSON object is required. Download or export the file again.")
    os.truncate(path, 1 << 40)
    assert error_of(folder) == (
        f"{path}: 1,099,511,627,776 bytes long; at most 100,000,000 bytes of JSON are read. "
        "Check that it is the file its name says."
    )
    path.write_text('{"a": 1, "a": 2, "limit": Infinity}')  # which Python and transformers accept
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.config == {"a": 2, "limit": float("inf")}
