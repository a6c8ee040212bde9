"""/tokenize and /detokenize: the tokens that completions and chats read, and back to the same text."""

from http_servers import NAME, Running

TEXT = "import os\n\ndef é"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which module?"}]


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
