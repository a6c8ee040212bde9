"""Damage to a file of any kind that others wrote, and to tables: our error, or what can still be read."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from checkpoints import write_tiny_llama
from gguf_files import write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_tables import write_table
from sentence_pieces import NORMAL, USER_DEFINED, model_bytes

from mxconv.checkpoint.tokenizer_files import Vocabulary, read_tokenizer_json
from mxconv.errors import CheckpointError
from mxconv.open_source import open_source
from mxconv.package.ngram_table import read_ngram_table


def read_weights(path: Path) -> None:
    with open_source(path) as checkpoint:
        for tensor in checkpoint.tensors.values():
            tensor.array()
        checkpoint.derive_files()
    if path.suffix == ".safetensors":  # what we accept, the library accepts
        safetensors.deserialize(path.read_bytes())


def read_folder(path: Path) -> None:
    open_source(path.parent).close()


def read_tokenizer(path: Path) -> None:
    (path.parent / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    read_tokenizer_json(path.parent)


def read_vocabulary(path: Path) -> None:
    Vocabulary.of_folder(path.parent)


def read_table(path: Path) -> None:
    table = read_ngram_table(path)
    for context in np.ndindex(9, 9):
        token, probability = table.best(context)
        assert 0 <= token < table.vocab_size and 0 < probability <= 1


def write_small(path: Path) -> None:
    arrays: dict[str, Any] = {"a": np.arange(4, dtype=np.uint16).reshape(2, 2), "b": np.zeros((), np.int8)}
    path.write_bytes(safetensors.numpy.save(arrays, metadata={"format": "pt"}))


def write_pickle(path: Path, as_zip: bool) -> None:
    torch.save({"a": torch.ones(2, 3), "b": torch.ones(3)}, path, _use_new_zipfile_serialization=as_zip)


def write_pieces(path: Path) -> None:
    pieces = [("<unk>", 0.0, 2), ("a", -1.0, NORMAL), ("b", -2.0, USER_DEFINED)]
    path.write_bytes(model_bytes(pieces, {3: 2}, {4: 0}))


def write_model(path: Path) -> None:
    write_tiny_llama(path.parent, num_shards=2)


# name of a whole file; what writes it, what reads it, and how far its head goes
FILES: dict[str, tuple[Callable[[Path], object], Callable[[Path], None], int]] = {
    "a.safetensors": (write_small, read_weights, 10_000),
    "a.gguf": (write_gguf, read_weights, 1300),
    "zip/a.bin": (lambda path: write_pickle(path, True), read_weights, 10_000),
    "pickle/a.bin": (lambda path: write_pickle(path, False), read_weights, 10_000),
    "tokenizer.model": (write_pieces, read_tokenizer, 10_000),
    "model.safetensors.index.json": (write_model, read_folder, 10_000),
    "config.json": (write_model, read_folder, 10_000),
    "tokenizer.json": (write_model, read_vocabulary, 10_000),
    "table": (lambda path: write_table(path, "0" * 64, vocab_size=8), read_table, 10_000),
}


@pytest.fixture(scope="module", params=FILES)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, str]:
    path: Path = tmp_path_factory.mktemp("damage") / request.param
    path.parent.mkdir(exist_ok=True)
    FILES[request.param][0](path)
    return path, path.read_bytes(), request.param


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_raises_our_error_or_leaves_what_can_be_read(
    whole: tuple[Path, bytes, str], data: st.DataObject
) -> None:
    path, raw, name = whole
    damaged, last = bytearray(raw), min(len(raw) - 1, FILES[name][2])
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, last))] ^= 1 << data.draw(st.integers(0, 7))
    damaged = damaged[: data.draw(st.just(len(raw)) | st.integers(0, last))] + data.draw(st.binary(max_size=2))
    path.unlink()  # others may still be mapped
    path.write_bytes(damaged)
    with contextlib.suppress(CheckpointError):
        FILES[name][1](path)


def test_an_error_names_the_file(whole: tuple[Path, bytes, str]) -> None:
    path, raw, name = whole
    path.write_bytes(raw[: len(raw) // 3])
    with pytest.raises(CheckpointError) as caught:
        FILES[name][1](path)
    assert str(caught.value).startswith(str(path))
