"""What a generation_config.json recommends."""

import json
from pathlib import Path

import pytest
from transformers import GenerationConfig as Theirs

from mxconv.errors import CheckpointError, ModelError
from mxconv.speculation.selection import GenerationConfig


def read(folder: Path, **values: object) -> GenerationConfig:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return GenerationConfig.from_folder(folder)


def test_a_folder_without_one_recommends_nothing(tmp_path: Path) -> None:
    config = GenerationConfig.from_folder(tmp_path)
    assert config == GenerationConfig()
    assert config.parameters == {} and not config.samples


def test_a_file_that_transformers_wrote_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    values = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.1}
    Theirs(do_sample=True, **values, stop_strings=["\n\n", "User:"]).save_pretrained(tmp_path)
    ours, theirs = GenerationConfig.from_folder(tmp_path), Theirs.from_pretrained(tmp_path)
    assert ours.samples == theirs.do_sample
    assert ours.parameters == values == {name: getattr(theirs, name) for name in values}
    assert list(ours.stop_strings) == theirs.stop_strings


def test_a_file_that_wants_no_draws_recommends_a_temperature_of_0(tmp_path: Path) -> None:
    assert read(tmp_path, temperature=0.0, top_p=0.9).parameters == {"temperature": 0.0, "top_p": 0.9}
    assert read(tmp_path, do_sample=False, temperature=0.6, top_k=3).parameters == {"temperature": 0.0, "top_k": 3}
    assert not read(tmp_path, do_sample=False, temperature=0.6).samples


def test_a_file_that_names_values_alone_wants_draws(tmp_path: Path) -> None:
    assert read(tmp_path, temperature=0.9, top_p=0.6).samples
    assert read(tmp_path, min_p=0.1).samples
    assert not read(tmp_path, repetition_penalty=1.1).samples
    nothing = read(tmp_path, do_sample=None, temperature=None, top_k=None, top_p=None, min_p=None, stop_strings=None)
    assert nothing.parameters == {} and not nothing.samples


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
        ("min_p", -0.1, "a finite number from 0 to 1, or null, is required"),
        ("repetition_penalty", 0, "a number from 0.001 to 1000, or null, is required"),
        ("repetition_penalty", float("nan"), "a number from 0.001 to 1000, or null, is required"),
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
