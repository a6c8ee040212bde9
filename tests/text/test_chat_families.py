"""Conversations in the style of today's families, rendered as apply_chat_template of transformers renders them."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_templates import CONVERSATIONS, TEMPLATES, TOOLS
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from mxconv.errors import ModelError
from mxconv.text.chat import ChatTemplate

THINKING = {"enable_thinking": False, "reasoning_effort": "high", "keep_past_thinking": True}


@pytest.fixture(scope="module", params=TEMPLATES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ChatTemplate, Any]:
    """Ours and transformers' of one folder."""
    folder = tmp_path_factory.mktemp("model")
    Backend(models.BPE({"a": 0, "<s>": 1, "</s>": 2}, [])).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATES[request.param])
    return ChatTemplate.from_folder(folder), PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_conversations_are_rendered_as_by_transformers(pair: tuple[ChatTemplate, Any], conversation: str) -> None:
    ours, theirs = pair
    messages, num_rendered = CONVERSATIONS[conversation], 0
    cases: list[tuple[Any, bool, dict[str, Any]]] = [(None, True, {}), (None, False, THINKING), (TOOLS, True, THINKING)]
    for tools, prompts, variables in cases:
        given = {"tools": tools, "tokenize": False, "add_generation_prompt": prompts, **variables}
        try:
            expected = theirs.apply_chat_template(messages, **given)
        except Exception as error:  # what a template refuses
            with pytest.raises(ModelError, match="cannot render") as caught:
                ours.render(messages, prompts, tools=tools, variables=variables)
            assert str(error) in str(caught.value)
            continue
        assert ours.render(messages, prompts, tools=tools, variables=variables) == expected
        num_rendered += 1
    assert num_rendered == 3 or conversation != "one"  # an oracle that refuses everything would compare nothing


@pytest.mark.parametrize(
    ("tools", "variables", "message"),
    [
        ([{"function": Path("x")}], {}, r"tools: holds a \w*Path; what JSON can say is required"),
        ([{1: 2}], {}, r"tools: holds a dict; what JSON can say is required"),
        (None, {"enable_thinking": object()}, r"variables of the chat template: holds a object; what JSON"),
    ],
)
def test_a_template_sees_json_alone(tools: Any, variables: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ChatTemplate("x", "it").render(CONVERSATIONS["one"], tools=tools, variables=variables)


def test_deep_messages_are_refused() -> None:
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    with pytest.raises(ModelError, match=r"message 1: nested more than 32 deep; less is required\. Flatten it"):
        ChatTemplate("x", "it").render([{"role": "user", "content": "x", "more": deep}])


def test_namespaces_hold_no_hidden_names() -> None:
    with pytest.raises(ModelError, match="names must not begin with an underscore"):
        ChatTemplate("{% set ns = namespace(_a=1) %}", "it").render(CONVERSATIONS["one"])
    with pytest.raises(ModelError, match="names must not begin with an underscore"):
        ChatTemplate("{% set ns = namespace() %}{% set ns.__a = 1 %}", "it").render(CONVERSATIONS["one"])
    assert ChatTemplate("{{ namespace(self=3).self }}", "it").render(CONVERSATIONS["one"]) == "3"
