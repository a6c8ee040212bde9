"""docs/serving.md names every field, status, code and flag that there is."""

import os
import re
from pathlib import Path

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


def test_statuses_and_codes() -> None:
    codes = set(re.findall(r'code="(\w+)"', SOURCES)) | set(
        re.findall(r'"(\w+_(?:parameter|exceeded|template))"', SOURCES)
    )
    assert len(codes) >= 9
    assert [code for code in sorted(codes) if f"`{code}`" not in PAGE] == []
    assert [status for status in RESPONSES if not re.search(rf"^\| .*\b{status}\b", PAGE, re.MULTILINE)] == []


def test_flags() -> None:
    said = run_forked(("serve", "--help"), os.environ, Path.cwd()).stdout
    flags = set(re.findall(r"^ +(--[a-z-]+)", said, re.MULTILINE)) - {"--help", "--install-completion"}
    assert len(flags) >= 17
    assert [flag for flag in sorted(flags) if flag not in PAGE] == []
