"""Where a text of `mxconv generate` ends: stop strings, full positions, Ctrl-C."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama

from mxconv.speculation.hierarchy import Hierarchy


def test_a_prompt_that_fills_all_positions_gets_one_token(run: Any, package: Path) -> None:
    outcome = run("generate", package, "--prompt", "a" * 128, "--check", "--json")
    assert outcome.exit_code == 0
    assert len(outcome.json["results"][0]["token_ids"]) == 1


def test_a_stop_string_ends_the_text_and_is_left_out(run: Any, package: Path) -> None:
    arguments = ["generate", package, "--prompt", "Once", "--max-new-tokens", 12, "--json"]
    whole = run(*arguments).json["results"][0]
    stop = whole["text"][4:6]
    result = run(*arguments, "--stop", stop, "--check").json["results"][0]
    assert result["text"] == whole["text"][: whole["text"].index(stop)]
    assert result["ending"] == "stop"
    assert result["token_ids"] == whole["token_ids"][: len(result["token_ids"])]


def test_ctrl_c_stops_with_what_was_generated(run: Any, process: Callable[..., Any], tmp_path: Path) -> None:
    """A real process: it is interrupted while it writes, and what it wrote is the beginning of the whole text."""
    source = write_tiny_llama(tmp_path / "source", num_hidden_layers=2, max_position_embeddings=100_000)
    arguments = ["--prompt", "Once", "--max-new-tokens", 90_000, "--kernel", "numpy"]
    assert run("quantize", source, "-o", tmp_path / "package").exit_code == 0
    running = process("generate", tmp_path / "package", *arguments)
    begin = running.stdout.read(20)  # it is decoding by now
    running.send_signal(signal.SIGINT)
    rest, errors = running.communicate(timeout=120)
    assert running.returncode == 130, errors
    assert begin.startswith("Once")
    assert "rounds of the target" in rest
    assert errors == ""


def test_an_interrupt_before_the_first_token_leaves_an_empty_result(
    run: Any, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Hierarchy, *arguments: Any) -> Iterator[tuple[int, Any]]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Hierarchy, "stream", interrupted)
    outcome = run("generate", package, "--prompt", "Once", "--check", "--json")
    assert outcome.exit_code == 130
    (result,) = outcome.json["results"]
    assert (result["text"], result["token_ids"], result["ending"]) == ("", [], "interrupted")
    assert "0 tokens in 0 rounds of the target" in outcome.stderr
