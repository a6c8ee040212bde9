"""What a generation_config.json recommends."""

import json
from pathlib import Path

import pytest
from transformers import GenerationConfig as Theirs

from mxconv.errors import CheckpointError, ModelError
from mxconv.model.distribution import Sampling
from mxconv.model.generation_config import GenerationConfig


def read(folder: Path, **values: object) -> GenerationConfig:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return GenerationConfig.from_folder(folder)


def test_a_folder_without_one_decodes_greedily(tmp_path: Path) -> None:
    config = GenerationConfig.from_folder(tmp_path)
    assert config == GenerationConfig()
    assert config.sampling is None


def test_a_file_that_transformers_wrote_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    Theirs(do_sample=True, temperature=0.7, top_k=20, top_p=0.8, stop_strings=["\n\n", "User:"]).save_pretrained(
        tmp_path
    )
    ours, theirs = GenerationConfig.from_folder(tmp_path), Theirs.from_pretrained(tmp_path)
    assert (ours.do_sample, ours.temperature, ours.top_k, ours.top_p) == (
        theirs.do_sample,
        theirs.temperature,
        theirs.top_k,
        theirs.top_p,
    )
    assert list(ours.stop_strings) == theirs.stop_strings
    assert ours.sampling == Sampling(0.7, 20, 0.8)


def test_values_of_sampling_say_nothing_where_nothing_is_drawn(tmp_path: Path) -> None:
    assert read(tmp_path, temperature=0.0, top_p=0.9).sampling is None
    assert read(tmp_path, do_sample=None, temperature=None, top_k=None, top_p=None, stop_strings=None).sampling is None
    assert read(tmp_path, do_sample=True).sampling == Sampling()


def test_one_stop_string_may_stand_alone(tmp_path: Path) -> None:
    assert read(tmp_path, stop_strings="###").stop_strings == ("###",)


@pytest.mark.parametrize(
    ("key", "value", "required"),
    [
        ("do_sample", "yes", "true or false is required"),
        ("temperature", -1, "a finite number above 0, or null, is required"),
        ("temperature", 0, "a finite number above 0, or null, is required"),
        ("temperature", float("nan"), "a finite number above 0, or null, is required"),
        ("temperature", float("inf"), "a finite number above 0, or null, is required"),
        ("temperature", True, "a finite number above 0, or null, is required"),
        ("top_k", 1.5, "a whole number from 0 on, or null, is required"),
        ("top_k", -1, "a whole number from 0 on, or null, is required"),
        ("top_p", 1.1, "a finite number from 0 to 1, or null, is required"),
        ("top_p", "0.9", "a finite number from 0 to 1, or null, is required"),
        ("stop_strings", ["a", ""], "a text, a list of texts or null is required, none of them empty"),
        ("stop_strings", 3, "a text, a list of texts or null is required, none of them empty"),
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path: Path, key: str, value: object, required: str) -> None:
    with pytest.raises(ModelError, match=rf"generation_config.json: {key} is .*; {required}. Take the file"):
        read(tmp_path, **{"do_sample": True, key: value})


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="a JSON object is required"):
        GenerationConfig.from_folder(tmp_path)
