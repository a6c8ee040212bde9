"""/v1/chat/completions through OpenAI's own client; and /tokenize and /detokenize: the tokens that it reads."""

from http_servers import NAME, Running

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which module?"}]
MOST = 24
TEXT = "import os\n\ndef é"


def test_a_chat_is_what_generate_writes_behind_the_template(server: Running) -> None:
    expected = server.model.generate(MESSAGES, max_new_tokens=MOST)
    answer = server.client().chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=MOST, temperature=0, response_format={"type": "text"}
    )
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content == expected.text
    assert choice.finish_reason == expected.generation.ending
    assert answer.usage is not None and answer.usage.prompt_tokens == len(server.model.encode(MESSAGES))


def test_a_stream_says_the_same_in_pieces_logprobs_included(server: Running) -> None:
    options = {
        "messages": MESSAGES,
        "max_completion_tokens": MOST,
        "seed": 9,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = server.client().chat.completions.create(model=NAME, **options)
    stream = server.client().chat.completions.create(
        model=NAME, stream=True, stream_options={"include_usage": True}, **options
    )
    *pieces, last = list(stream)
    assert last.choices == [] and last.usage == whole.usage
    for choice in whole.choices:
        mine = [piece.choices[0] for piece in pieces if piece.choices[0].index == choice.index]
        assert mine[0].delta.role == "assistant"
        assert "".join(piece.delta.content or "" for piece in mine) == choice.message.content
        assert mine[-1].finish_reason == choice.finish_reason
        assert choice.logprobs is not None and choice.logprobs.content is not None
        content = [one for piece in mine if piece.logprobs for one in piece.logprobs.content or []]
        assert content == choice.logprobs.content
        assert len(content) <= MOST and all(len(one.top_logprobs) == 2 for one in content)
        assert all(one.bytes == list(one.token.encode()) for one in content)


def test_texts_and_messages_become_the_tokens_that_are_decoded(server: Running) -> None:
    tokenizer = server.model.loaded.tokenizer
    found = server.post("/tokenize", {"prompt": TEXT, "model": NAME, "return_token_strs": True}).json()
    assert found["tokens"] == tokenizer.encode(TEXT) and found["count"] == len(found["tokens"])
    assert found["token_strs"] == [tokenizer.name_of(token) for token in found["tokens"]]
    assert found["max_model_len"] == server.model.loaded.config.max_position_embeddings
    bare = server.post("/tokenize", {"content": TEXT, "with_pieces": True}).json()["tokens"]
    assert [one["id"] for one in bare] == tokenizer.encode(TEXT, add_special_tokens=False)
    chat = server.post("/tokenize", {"messages": MESSAGES}).json()
    assert chat["tokens"] == server.model.encode(MESSAGES)
    usage = server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}).json()["usage"]
    assert usage["prompt_tokens"] == chat["count"]
    unfinished = server.post("/tokenize", {"messages": MESSAGES, "add_generation_prompt": False}).json()
    assert unfinished["count"] <= chat["count"]


def test_back_to_the_same_text(server: Running) -> None:
    tokens = server.post("/tokenize", {"prompt": TEXT, "add_special_tokens": False}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json() == {"prompt": TEXT, "content": TEXT}
    assert server.post("/detokenize", {"tokens": []}).json()["prompt"] == ""
