"""The page in headless Chromium, as somebody uses it: keys, a reply in colours, and what a screen reader hears."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import LiveBrowser, live_browser
from http_servers import TEMPLATE, Running, chat_package, running

CONTRAST = (Path(__file__).parent / "probes/contrast.js").read_text()
QUESTION = "Which module reads files?"
MOST = 160  # tokens: more than a screen
CERTAIN = "certain by the schema"
LONG = "\n".join("0123456789" * 4)
CODE = "if a < b:\n\n    print('```')\n"
BEFORE, AFTER = "So <img src=x onerror=alert(1)>:\n\n", "That is all, ``` or not."
ANSWER = f"{BEFORE}```python\n{CODE}```\n{AFTER}"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBrowser]:
    with live_browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


def ask(browser: LiveBrowser, seed: int, most: int = MOST) -> None:
    for name, value in (("seed", str(seed)), ("most", str(most)), ("temperature", "0.5")):
        browser.value(f"document.getElementById('{name}').value = '{value}'")
    browser.type(QUESTION)  # the message field has the focus already
    browser.press("Enter", 13)
    browser.wait("document.querySelector('.fate, .problem') !== null")


@pytest.mark.parametrize(("width", "height", "scheme"), [(1280, 420, "light"), (390, 520, "dark")])
def test_a_reply_appears_in_the_colours_of_its_guessers(
    server: Running, browser: LiveBrowser, width: int, height: int, scheme: str
) -> None:
    browser.console.clear()
    browser.requested.clear()
    browser.open(server.url + "/", width, height, scheme)
    seed = 2**63 + 9  # more than JavaScript's numbers hold
    ask(browser, seed)
    body = {"messages": [{"role": "user", "content": QUESTION}], "seed": seed, "temperature": 0.5, "max_tokens": MOST}
    answer = server.post("/v1/chat/completions", body | {"mxconv": {"trace": True}}).json()["choices"][0]
    assert browser.value("document.querySelector('.reply .said').textContent") == answer["message"]["content"]
    guessers = browser.value(
        "[...document.querySelectorAll('.token')].map((one) => one.title.replace(/guessed by |the target itself/, ''))"
    )
    assert len(guessers) == len(answer["mxconv"]["tokens"])  # who guessed them may differ, for drafts learn
    levels = [level.name for level in server.model.loaded.levels]
    counts = browser.value("[...document.querySelectorAll('#rows tr')].map((row) => Number(row.cells[1].textContent))")
    assert counts == [guessers.count(name) for name in ("", *levels[1:], CERTAIN)]
    assert browser.value("document.getElementById('min-p').placeholder") == "0.05"  # the server's default
    used = browser.value("document.getElementById('used-sampling').textContent")
    assert used == "temperature 0.5 (request)"  # what others would add is off
    assert float(browser.value("document.getElementById('a-round').textContent")) >= 1
    browser.wait("document.getElementById('compared').textContent !== ''")
    assert texts(browser, "#compared") == ["128 tokens, the same."]
    answered, plain, times = texts(browser, "#a-second, #plain, #times")
    if plain != "–":  # in under 20 ms
        assert float(times) == pytest.approx(float(answered) / float(plain), rel=0.1)  # figures are rounded
    ends = [f"document.getElementById('{name}').getBoundingClientRect().top" for name in ("form", "turns")]
    fate = browser.value("document.querySelector('.fate').getBoundingClientRect().bottom")
    assert browser.value(ends[1]) < 0 < fate <= browser.value(ends[0])  # the end of a long reply is in sight
    assert "complete" in browser.value("document.getElementById('spoken').textContent")
    assert browser.value("document.activeElement.id") == "question"
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    assert browser.console == []
    assert all(url.startswith((server.url, "data:")) for url in browser.requested)


def test_colours_of_tokens_can_be_told_apart_and_text_on_them_read(server: Running, browser: LiveBrowser) -> None:
    for scheme in ("light", "dark"):
        browser.open(server.url + "/", scheme=scheme)
        assert browser.value(f"(() => {{ {CONTRAST} }})()") >= 4.5, scheme


def test_everything_has_a_name_and_can_be_reached_by_keys(server: Running, browser: LiveBrowser) -> None:
    browser.open(server.url + "/")
    browser.value("document.querySelector('details').open = true")
    reached = []
    for _ in range(26):
        browser.press("Tab", 9)
        reached.append(browser.value("document.activeElement.id || document.activeElement.className"))
    order = [
        "send", "fresh", "marks", "system", "temperature", "top-k", "top-p", "min-p", "repetition-penalty",
        "presence-penalty", "frequency-penalty", "most", "schema", "seed", "key", "skip", "talk", "question",
    ]  # fmt: skip
    assert [name for name in reached if name in order][: len(order)] == order
    named = {"textbox", "button", "checkbox", "spinbutton", "link", "region", "table", "image"}
    unnamed = [role for role, name in browser.accessible_names() if role in named and not name]
    assert unnamed == []
    roles = [role for role, _ in browser.accessible_names()]
    assert {"main", "banner", "complementary", "status", "heading"} <= set(roles)


def test_a_schema_shapes_the_reply_and_what_it_makes_certain_has_a_row(server: Running, browser: LiveBrowser) -> None:
    browser.open(server.url + "/")
    last = "document.querySelector('#rows tr:last-child')"
    assert browser.value(f"{last}.hidden && {last}.cells[0].textContent === 'constraint'")
    schema = {"type": "object", "properties": {"module": {"enum": ["os", "re"]}}, "required": ["module"]}
    browser.value(
        f"document.getElementById('schema').value = {json.dumps(json.dumps(schema | {'additionalProperties': False}))}"
    )
    ask(browser, 1)
    assert json.loads(browser.value("document.querySelector('.reply .said').textContent"))["module"] in ("os", "re")
    titles = browser.value("[...document.querySelectorAll('.token')].map((one) => one.title)")
    assert titles.count(CERTAIN) == browser.value(f"Number({last}.cells[1].textContent)") > 1
    assert not browser.value(f"{last}.hidden")
    browser.value("document.getElementById('fresh').click()")
    browser.value("document.getElementById('schema').value = '{'")
    ask(browser, 1)
    assert browser.value("document.querySelector('.problem').textContent").startswith("JSON Schema: ")
    browser.value("document.getElementById('schema').value = ''")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_model_is_chosen_by_keys(
    server: Running, package: Path, plain_package: Path, browser: LiveBrowser, width: int, scheme: str
) -> None:
    browser.open(server.url + "/")
    assert browser.value("document.getElementById('models').hidden")  # there is nothing to choose
    long = "larger-" * 12
    with running(package, others={long: plain_package}) as several:
        browser.console.clear()
        browser.open(several.url + "/", width, 520, scheme)
        assert ("combobox", "Model") in browser.accessible_names()
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        browser.value("document.getElementById('min-p').value = '0.1'")
        while browser.value("document.activeElement.id") != "models":
            browser.press("Tab", 9)
        browser.press("ArrowDown", 40)
        browser.wait(f"document.title === '{long} · mxconv'")
        rows = "[...document.querySelectorAll('#rows tr')].map((row) => row.cells[0].textContent)"
        levels = ["target", "mxfp4", "prompt-lookup"]
        assert browser.value(rows) == ["target itself", *levels[1:], "constraint"]
        assert browser.value("document.getElementById('levels').textContent") == " ← ".join(levels)
        assert browser.value("document.getElementById('question-label').textContent") == "Text to go on with"
        assert browser.value("document.getElementById('min-p').value") == "0.1"  # what was typed stays
        browser.value("document.getElementById('min-p').value = ''; document.getElementById('question').focus()")
        ask(browser, 5, most=12)
        body = {"model": long, "prompt": QUESTION, "seed": 5, "temperature": 0.5, "max_tokens": 12}
        (choice,) = several.post("/v1/completions", body).json()["choices"]
        assert browser.value("document.querySelector('.reply .said').textContent") == choice["text"]
        assert browser.console == []


def answers(browser: LiveBrowser, answer: str) -> None:
    """Let the server write this answer to what the page asks from now on, and keep what it asks in `asked`."""
    browser.value(f"""{{
      window.realFetch ??= fetch;
      window.asked = [];
      window.fetch = (path, options) => {{
        const body = {{ ...JSON.parse(options.body), guided_choice: [{json.dumps(answer)}] }};
        if (body.mxconv.drafts ?? true) asked.push(JSON.parse(options.body)); // plain decoding is asked by nobody
        return realFetch(path, {{ ...options, body: JSON.stringify(body) }});
      }};
      document.getElementById('most').value = '';
    }}""")


def send(browser: LiveBrowser, question: str) -> None:
    browser.value("document.getElementById('question').focus()")
    browser.type(question)
    browser.press("Enter", 13)
    browser.wait("asked.length && document.getElementById('stop').disabled")


def texts(browser: LiveBrowser, selector: str) -> list[str]:
    found: list[str] = browser.value(
        f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)"
    )
    return found


@pytest.mark.parametrize(("width", "height"), [(1280, 420), (390, 520)])
def test_a_reply_is_followed_until_somebody_scrolls_up(
    server: Running, browser: LiveBrowser, width: int, height: int
) -> None:
    browser.open(server.url + "/", width, height)
    browser.value(f"document.getElementById('most').value = '{MOST}'; document.getElementById('seed').value = '1'")
    browser.type(LONG)
    server.gate.clear()
    browser.press("Enter", 13)
    end = "document.querySelector('.reply').getBoundingClientRect().bottom"
    inside = f"{end} > 0 && {end} <= document.getElementById('form').getBoundingClientRect().top"
    browser.wait(inside)
    server.gate.set()
    browser.wait("document.querySelectorAll('.token').length > 60")
    server.gate.clear()
    assert browser.value(inside)
    browser.type("the next question\n\n\n\n")
    assert browser.value(inside)  # above the field, which grew
    browser.value("for (const one of [document.getElementById('talk'), document.scrollingElement]) one.scrollTop = 0")
    server.gate.set()
    browser.wait("document.querySelector('.fate') !== null")
    top = "document.getElementById('talk').scrollTop + document.scrollingElement.scrollTop"
    assert browser.value(top) == 0 and not browser.value(inside)


def test_a_refused_question_stays_in_the_field_which_grows_with_it(server: Running, browser: LiveBrowser) -> None:
    browser.open(server.url + "/")
    height = "document.getElementById('question').getBoundingClientRect().height"
    low = browser.value(height)
    browser.value("document.getElementById('most').value = '0'")
    browser.type("a\nb\nc\nd")
    high = browser.value(height)
    assert low < high < 192
    browser.press("Enter", 13)
    browser.wait("document.querySelector('.problem') !== null")
    (problem,) = texts(browser, ".problem")
    assert problem.startswith("max_tokens: 0") and texts(browser, "#spoken")[0].strip() == problem
    assert browser.value("document.getElementById('question').value") == "a\nb\nc\nd"
    assert browser.value(height) == high
    browser.type(LONG)
    assert browser.value(height) == 192  # 12rem
    answers(browser, "Good.")
    send(browser, "!")
    assert browser.value(height) == low and browser.value("document.getElementById('question').value") == ""
    assert texts(browser, ".turn .said") == [f"a\nb\nc\nd{LONG}!", "Good."] and texts(browser, ".problem") == []
    (body,) = browser.value("asked")
    assert "max_tokens" not in body and [one["role"] for one in body["messages"]] == ["user"]


@pytest.mark.parametrize("by_key", [True, False])
def test_a_reply_is_stopped_and_frees_its_sequence(server: Running, browser: LiveBrowser, by_key: bool) -> None:
    browser.open(server.url + "/")
    server.gate.clear()
    browser.type(QUESTION)
    browser.press("Enter", 13)
    browser.wait("!document.getElementById('stop').disabled")
    if by_key:
        browser.press("Escape", 27)
    else:
        browser.value("document.getElementById('stop').click()")
    browser.wait("document.querySelector('.fate') !== null")
    server.gate.set()
    assert texts(browser, ".fate") == ["stopped"] and browser.value("document.activeElement.id") == "question"
    server.wait_until_idle()


@pytest.mark.parametrize("is_secure", [True, False])
def test_code_is_a_block_and_it_and_the_answer_can_be_copied(
    server: Running, browser: LiveBrowser, is_secure: bool
) -> None:
    browser.console.clear()
    browser.open(server.url + "/")
    if not is_secure:
        browser.value("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    answers(browser, ANSWER)
    send(browser, QUESTION)
    assert texts(browser, ".said") == [QUESTION, ANSWER] and not browser.value("document.querySelector('.said img')")
    assert texts(browser, ".said pre") == [f"```python\n{CODE}```\n"]
    assert texts(browser, ".said code") == [CODE] and texts(browser, ".fence") == ["```python\n", "```\n"]
    for label, text in (("Copy the code", CODE), ("Copy the answer", ANSWER)):
        assert ("button", label) in browser.accessible_names()
        browser.value(f"document.querySelector('[aria-label=\"{label}\"]').focus()")
        browser.press("Enter", 13)
        browser.wait("document.querySelector('.copy.done') !== null")
        assert texts(browser, "#spoken") == ["Copied."]
        browser.wait("document.querySelector('.copy.done') === null")
        browser.value("document.getElementById('question').focus(); document.getElementById('question').value = ''")
        browser.press("v", 86, "paste")
        assert browser.value("document.getElementById('question').value") == text
    assert browser.console == []


@pytest.mark.parametrize("fate", ["refused", "broken off", "stopped"])
def test_a_retry_that_fails_leaves_the_answer_that_stood_and_another_replaces_it(
    server: Running, browser: LiveBrowser, fate: str
) -> None:
    browser.open(server.url + "/")
    answers(browser, "Zero.")
    send(browser, "before")
    answers(browser, "One answer that stands.")
    send(browser, "first")
    retry = "[...document.querySelectorAll('.retry')].at(-1).click()"
    kept = browser.value("localStorage.getItem('mxconv.talk')")
    answers(browser, "Another one.")
    if fate == "refused":
        browser.value("document.getElementById('most').value = '0'")
    elif fate == "broken off":  # after some of its text
        browser.value("""{ const whole = window.fetch;
          window.fetch = async (...asked) => {
            const events = (await (await whole(...asked)).text()).split("\\n\\n");
            return new Response(events.slice(0, -3).join("\\n\\n") + "\\n\\n");
          } }""")
    else:
        server.gate.clear()
    browser.value(retry)
    if fate == "stopped":
        browser.wait("!document.getElementById('stop').disabled")
        assert browser.value("localStorage.getItem('mxconv.talk')") == kept  # should the page be closed now
        browser.press("Escape", 27)
        server.gate.set()
    browser.wait("document.querySelector('.refused') !== null")
    said = {"refused": "max_tokens: 0", "broken off": "The connection broke off.", "stopped": "stopped"}[fate]
    assert texts(browser, ".refused")[0].startswith(said)
    assert texts(browser, ".said") == ["before", "Zero.", "first", "One answer that stands."]
    assert browser.value("localStorage.getItem('mxconv.talk')") == kept
    answers(browser, "Another one.")
    browser.value(retry)
    browser.wait("asked.length && document.getElementById('stop').disabled")
    assert texts(browser, ".said")[2:] == ["first", "Another one."] and texts(browser, ".refused") == []
    shown = "[...document.querySelectorAll('.retry')].map((one) => one.checkVisibility())"
    (body,) = browser.value("asked")
    sent = [(one["role"], one["content"]) for one in body["messages"]]
    assert browser.value(shown) == [False, True]
    assert sent == [("user", "before"), ("assistant", "Zero."), ("user", "first")]


def test_plain_decoding_ends_where_somebody_asks_again(server: Running, browser: LiveBrowser) -> None:
    browser.open(server.url + "/")
    answers(browser, ANSWER)
    browser.value("""{ const others = window.fetch;
      window.held = [];
      window.fetch = (path, options) => {
        const { mxconv, max_tokens, seed } = JSON.parse(options.body);
        if (mxconv.drafts ?? true) return others(path, options);
        held.push({ max_tokens, seed, signal: options.signal });
        return new Promise((_, fail) => { options.signal.onabort = () => { fail(options.signal.reason); }; });
      } }""")
    send(browser, QUESTION)
    browser.wait("held.length === 1")
    assert browser.value("document.getElementById('plain').textContent") == "…"
    seed, most = browser.value("[String(held[0].seed), held[0].max_tokens]")
    assert [seed] == texts(browser, "#used") and 1 < most <= 128
    send(browser, "again")
    assert browser.value("held[0].signal.aborted") and texts(browser, ".reply .said") == [ANSWER, ANSWER]
    browser.wait("held.length === 2 && document.getElementById('plain').textContent === '…'")
    browser.value("document.getElementById('fresh').click()")
    assert browser.value("held[1].signal.aborted") and texts(browser, "#plain, #times, #compared") == ["–", "–", ""]


def test_the_talk_survives_a_reload_until_it_is_begun_anew(server: Running, browser: LiveBrowser) -> None:
    browser.open(server.url + "/")
    answers(browser, ANSWER)
    send(browser, QUESTION)
    said = "[...document.querySelectorAll('.said')].map((one) => one.innerText)"
    before = browser.value(said)
    browser.reload()
    assert browser.value(said) == before and texts(browser, ".said code") == [CODE]
    answers(browser, "Yes.")
    send(browser, "again")
    (body,) = browser.value("asked")
    assert [one["content"] for one in body["messages"]] == [QUESTION, ANSWER, "again"]
    server.gate.clear()
    browser.type("unanswered")
    browser.press("Enter", 13)
    browser.wait("!document.getElementById('stop').disabled")
    browser.reload()
    server.gate.set()
    assert browser.value("document.getElementById('question').value") == "unanswered"
    assert texts(browser, ".said") == [QUESTION, ANSWER, "again", "Yes."]
    browser.value("document.getElementById('fresh').click()")
    browser.reload()
    assert texts(browser, ".said") == [] and browser.value("localStorage.length") == 0
    browser.value('localStorage.setItem(\'mxconv.talk\', \'{"messages": [null, {"role": "user"}]}\')')
    browser.reload()
    assert texts(browser, ".said") == [] and browser.value("document.getElementById('levels').textContent") != ""
    server.wait_until_idle()


def test_a_thought_is_grey_and_folded(tmp_path: Path, browser: LiveBrowser) -> None:
    package = chat_package(tmp_path, template=TEMPLATE + "{# <think> and </think> #}")
    with running(package) as thinking:
        browser.open(thinking.url + "/")
        answers(browser, "<think>\nHm, <b>so</b>.\n</think>\n\nHello!")
        send(browser, "Hi")
        assert texts(browser, ".thought div") == ["Hm, <b>so</b>."]
        assert texts(browser, ".reply .said") == ["Hello!"]
        colour = "getComputedStyle(document.querySelector('{}')).color"
        assert browser.value(f"{colour.format('.thought div')} === {colour.format('.soft')}")
        is_shown = "document.querySelector('.thought div').checkVisibility()"
        assert not browser.value(is_shown)
        browser.value("document.querySelector('.thought summary').click()")
        browser.wait(is_shown)
        send(browser, "again")
        reply = browser.value("asked.at(-1).messages[1]")
        assert reply == {"role": "assistant", "content": "Hello!", "reasoning_content": "Hm, <b>so</b>."}
        assert texts(browser, ".problem") == []
        browser.reload()
        assert texts(browser, ".thought div") == ["Hm, <b>so</b>."] * 2
