"""What a newcomer types: prompts from everywhere, the chat template where there is one, sizes with units."""

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from packages import quantize

from mxconv.cli.common_options import parse_bytes
from mxconv.text.tokenizer import Tokenizer

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def instruct(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of a model with a chat template."""
    folder = tmp_path_factory.mktemp("instruct")
    shutil.copytree(source, folder / "source")
    (folder / "source" / "chat_template.jinja").write_text(TEMPLATE)
    quantize(folder / "source", folder / "package")
    return folder / "package"


def tokens(outcome: Any) -> list[int]:
    assert outcome.exit_code == 0, outcome.stderr
    return list(outcome.json["results"][0]["token_ids"])


def test_a_chat_template_is_used_where_there_is_one(run: Any, instruct: Path, package: Path) -> None:
    common = ("--max-new-tokens", 8, "--json")
    in_chat = tokens(run("generate", instruct, "--prompt", "Once", *common))
    assert in_chat == tokens(run("generate", instruct, "--prompt", "Once", "--chat", *common))
    raw = tokens(run("generate", instruct, "--prompt", "Once", "--raw", *common))
    assert raw == tokens(run("generate", package, "--prompt", "Once", "--levels", "target,mxfp4", *common))
    rendered = tokens(run("generate", instruct, "--prompt", "user: Once\n", "--raw", *common))
    assert in_chat == rendered != raw
    refused = run("generate", package, "--prompt", "Once", "--chat")
    assert refused.exit_code == 1 and "there is no chat template" in refused.stderr


@pytest.mark.parametrize("how", [("--prompt", "-"), ()])
def test_a_prompt_is_piped_in(how: tuple[str, ...], run: Any, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tokens(run("generate", package, "-p", "Once upon", "--max-new-tokens", 8, "--json"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("Once upon\n"))
    assert tokens(run("generate", package, *how, "--max-new-tokens", 8, "--json")) == expected


def test_the_table_of_levels_is_printed_where_it_is_asked_for(run: Any, package: Path) -> None:
    common = ("generate", package, "-p", "Once upon", "--max-new-tokens", 8)
    plain, told = run(*common).stdout, run(*common, "--stats").stdout
    assert "forward passes" not in plain and "forward passes" in told
    assert plain.splitlines()[-1].startswith("8 tokens in ")


def test_an_empty_answer_says_why(run: Any, source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source")
    quantize(source, tmp_path / "p")
    first = tokens(run("generate", tmp_path / "p", "-p", "Once upon", "--max-new-tokens", 1, "--json"))[0]
    (tmp_path / "source" / "generation_config.json").write_text(json.dumps({"eos_token_id": first}))
    path = tmp_path / "source" / "tokenizer.json"
    members = json.loads(path.read_text())
    names = {number: name for name, number in members["model"]["vocab"].items()}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    members["added_tokens"].append({"id": first, "content": names[first], "special": True, **flags})
    path.write_text(json.dumps(members))
    quantize(tmp_path / "source", tmp_path / "ends")
    outcome = run("generate", tmp_path / "ends", "-p", "Once upon")
    assert outcome.exit_code == 0 and first in Tokenizer.from_folder(tmp_path / "ends").eos_token_ids
    assert "the answer is empty: the first token ended the text. An instruct model needs its chat template" in (
        outcome.stderr
    )


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("5000000000", 5 * 10**9), ("5GB", 5 * 10**9), ("5g", 5 * 10**9), ("2.5 G", 25 * 10**8), ("512MiB", 2**29)],
)
def test_sizes_have_units(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GB", "5XB", "-1", "0", "1e9", "5 GBs", "nan"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"a number of bytes such as 5GB or 512MiB is required"):
        parse_bytes(text)


def test_names_of_choices_may_be_in_capitals(run: Any, source: Path, tmp_path: Path) -> None:
    outcome = run("quantize", source, "-o", tmp_path / "p", "--codec", "BSFP", "--max-shard-bytes", "1MB", "--json")
    assert outcome.exit_code == 0 and outcome.json["codec"] == "bsfp"


@pytest.mark.parametrize("command", [(), ("quantize",), ("bench",), ("bench", "decode"), ("train", "ngram")])
def test_help_has_a_short_name(command: tuple[str, ...], run: Any) -> None:
    short, long = (run(*command, flag) for flag in ("-h", "--help"))
    assert short.exit_code == 0 and short.stdout == long.stdout and "Usage: mxconv" in short.stdout


def test_a_model_in_the_place_of_a_package_is_converted_once(
    run: Any, source: Path, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "cache"))
    common = ("-p", "Once upon", "--max-new-tokens", 8, "--json")
    first, second = run("generate", source, *common), run("generate", source, *common)
    assert tokens(first) == tokens(second) == tokens(run("generate", package, *common))
    (folder,) = (path for path in (tmp_path / "cache/mxconv/packages/converted").iterdir() if path.is_dir())
    assert f"{source}: a model, converted once to {folder}" in first.stderr and "converted" not in second.stderr
    assert folder.name.startswith(f"{source.name}-mxfp4-")
