"""The page in headless Chromium, as somebody uses it: keys, a reply in colours, and what a screen reader hears."""

import re
from collections.abc import Iterator

import pytest
from http_servers import NAME, Running
from live_browser import LiveBrowser, live_browser

QUESTION = "Which module reads files?"
MOST = 160  # tokens: more than a screen


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
    assert counts == [guessers.count(name) for name in ("", *levels[1:])]
    assert browser.value("document.getElementById('min-p').placeholder") == "0.05"  # the server's default
    used = browser.value("document.getElementById('used-sampling').textContent")
    assert used == "temperature 0.5 (request)"  # what others would add is off
    assert float(browser.value("document.getElementById('a-round').textContent")) >= 1
    assert re.fullmatch(r"[\d.]+", browser.value("document.getElementById('plain').textContent"))
    ends = [f"document.getElementById('{name}').getBoundingClientRect().top" for name in ("form", "turns")]
    fate = browser.value("document.querySelector('.fate').getBoundingClientRect().bottom")
    assert browser.value(ends[1]) < 0 < fate <= browser.value(ends[0])  # the end of a long reply is in sight
    assert "complete" in browser.value("document.getElementById('spoken').textContent")
    assert browser.value("document.activeElement.id") == "question"
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    assert browser.console == []
    assert all(url.startswith((server.url, "data:")) for url in browser.requested)


def test_colours_of_tokens_can_be_told_apart_and_text_on_them_read(server: Running, browser: LiveBrowser) -> None:
    contrast = """
      const luminance = ([r, g, b]) => {
        const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
      };
      const parse = (text) => text.match(/[\\d.]+/g).map(Number);
      const over = ([r, g, b, a = 1], under) => [r, g, b].map((v, i) => a * v + (1 - a) * under[i]);
      const ratio = (one, two) => {
        const [low, high] = [luminance(one), luminance(two)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
      };
      const paper = parse(getComputedStyle(document.body).backgroundColor);
      const ink = parse(getComputedStyle(document.body).color);
      const found = [];
      for (let index = 0; index < 6; index++) {
        const token = document.createElement('span');
        token.className = 'token g' + index;
        document.querySelector('#turns').append(token);
        found.push(ratio(ink, over(parse(getComputedStyle(token).backgroundColor), paper)));
        found.push(1.5 * ratio(parse(getComputedStyle(token).boxShadow), paper));
        token.remove();
      }
      for (const name of ['#levels', '.soft', '#hint', 'label'])
        found.push(ratio(parse(getComputedStyle(document.querySelector(name)).color), paper));
      const send = getComputedStyle(document.querySelector('#send'));
      found.push(ratio(parse(send.color), parse(send.backgroundColor)));
      return Math.min(...found);
    """
    for scheme in ("light", "dark"):
        browser.open(server.url + "/", scheme=scheme)
        assert browser.value(f"(() => {{ {contrast} }})()") >= 4.5, scheme


def test_everything_has_a_name_and_can_be_reached_by_keys(server: Running, browser: LiveBrowser) -> None:
    browser.open(server.url + "/")
    browser.value("document.querySelector('details').open = true")
    reached = []
    for _ in range(25):
        browser.press("Tab", 9)
        reached.append(browser.value("document.activeElement.id || document.activeElement.className"))
    order = [
        "send", "fresh", "marks", "system", "temperature", "top-k", "top-p", "min-p", "repetition-penalty",
        "presence-penalty", "frequency-penalty", "most", "seed", "key", "skip", "talk", "question",
    ]  # fmt: skip
    assert [name for name in reached if name in order][: len(order)] == order
    named = {"textbox", "button", "checkbox", "spinbutton", "link", "region", "table", "image"}
    unnamed = [role for role, name in browser.accessible_names() if role in named and not name]
    assert unnamed == []
    roles = [role for role, _ in browser.accessible_names()]
    assert {"main", "banner", "complementary", "status", "heading"} <= set(roles)


def test_stop_ends_a_reply_and_frees_its_sequence(server: Running, browser: LiveBrowser) -> None:
    browser.open(server.url + "/")
    server.gate.clear()
    browser.type(QUESTION)
    browser.press("Enter", 13)
    browser.wait("!document.getElementById('stop').disabled")
    browser.value("document.getElementById('stop').click()")
    browser.wait("document.querySelector('.fate') !== null")
    assert browser.value("document.querySelector('.fate').textContent") == "stopped"
    server.gate.set()
    server.wait_until_idle()


def test_an_error_of_the_server_is_shown_and_said(server: Running, browser: LiveBrowser) -> None:
    browser.open(server.url + "/")
    ask(browser, 1, most=5000)
    problem = browser.value("document.querySelector('.problem').textContent")
    assert problem.startswith("max_tokens: 5000")
    assert browser.value("document.getElementById('spoken').textContent").strip() == problem


def test_the_policy_allows_nothing_from_elsewhere(server: Running) -> None:
    response = server.get("/")
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "*" not in policy
    assert NAME in response.text
    assert not re.search(r"(src|href)=[\"'](?!#|data:)", response.text)
