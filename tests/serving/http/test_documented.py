"""docs/serving.md names every field, status, code and flag that there is."""

import os
import re
from dataclasses import fields
from pathlib import Path

import pytest
from commands import run_forked

from mxconv.serving.http.anthropic_messages import MessagesBody
from mxconv.serving.http.api_error import RESPONSES
from mxconv.serving.http.bodies import ChatBody, CompletionBody
from mxconv.serving.http.guard import PATHS
from mxconv.serving.http.openai_responses import ResponsesBody

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "serving.md").read_text()
SOURCES = "".join(path.read_text() for path in (ROOT / "mxconv" / "serving" / "http").glob("*.py"))


def test_fields_and_endpoints() -> None:
    bodies = (CompletionBody, ChatBody, ResponsesBody, MessagesBody)
    named = {name for body in bodies for name in (*body.model_fields, *body.ignored, *body.neutral, *body.aliases)}
    for name in named - {"stream_options"}:
        assert f"`{name}`" in PAGE, name
    assert "`stream_options.include_usage`" in PAGE
    assert all(f" {path}`" in PAGE for path in PATHS)


def test_figures_of_a_load() -> None:
    pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")
    from mxconv.bench.serving_speed import ServeResult, Waiting

    keys = [field.name for kind in (ServeResult, Waiting) for field in fields(kind)]
    assert [key for key in keys if f"`{key}`" not in PAGE] == []


def test_statuses_and_codes() -> None:
    codes = set(re.findall(r'code="(\w+)"', SOURCES)) | set(
        re.findall(r'"(\w+_(?:parameter|exceeded|template))"', SOURCES)
    )
    assert len(codes) >= 9
    assert [code for code in sorted(codes) if f"`{code}`" not in PAGE] == []
    assert [status for status in RESPONSES if not re.search(rf"^\| .*\b{status}\b", PAGE, re.MULTILINE)] == []


@pytest.mark.parametrize("command", [["serve"], ["bench", "serve"]], ids=" ".join)
def test_flags(command: list[str]) -> None:
    said = run_forked((*command, "--help"), os.environ, Path.cwd()).stdout
    flags = set(re.findall(r"^ +(--[a-z-]+)", said, re.MULTILINE)) - {"--help", "--install-completion"}
    assert len(flags) >= 17
    assert [flag for flag in sorted(flags) if flag not in PAGE] == []
