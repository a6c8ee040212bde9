const byId = (id) => document.getElementById(id);
const put = (id, text) => { byId(id).textContent = text; };
const models = JSON.parse(byId("served").textContent);
const shares = byId("shares");
const NUM_COLOURS = 6;
const colour = (index) => (index ? "g" + ((index - 1) % NUM_COLOURS) : "own");
let about, guessers, rows; // of the model that is chosen
let messages = [];
let running = null;

// A level's row of counts, and its share of the bar.
function rowOf(name, index) {
  const row = byId("rows").insertRow();
  const head = document.createElement("th");
  head.scope = "row";
  const label = document.createElement("span");
  label.className = "name " + (index ? colour(index) : "");
  label.textContent = index ? name : name + " itself";
  head.append(label);
  row.append(head);
  for (let cell = 0; cell < 3; cell++) row.insertCell().textContent = "–";
  const share = document.createElement("i");
  share.className = colour(index);
  share.style.width = "0";
  shares.append(share);
  row.hidden = index === about.levels.length;
  return row;
}

function turn(kind, title) {
  const element = document.createElement("article");
  element.className = "turn " + kind + (about.can_chat ? "" : " code");
  const head = document.createElement("h3");
  head.textContent = title;
  const said = document.createElement("div");
  said.className = "said";
  element.append(head, said);
  byId("turns").append(element);
  byId("hint").hidden = true;
  return element;
}

function note(element, kind, text) {
  const paragraph = document.createElement("p");
  paragraph.className = kind;
  paragraph.textContent = text;
  element.append(paragraph);
}

// Keeps the end of a reply in sight while it grows, unless somebody scrolled up to read.
function grow(element, add) {
  const follows = element.getBoundingClientRect().bottom < innerHeight + 80;
  add();
  if (follows) element.scrollIntoView({ block: "end" });
}

// A round's tokens, each in the colour of the level that guessed it.
function roundOf(tokens) {
  const round = document.createElement("span");
  round.className = "round";
  for (const token of tokens) {
    const index = guesserOf(token);
    const piece = document.createElement("span");
    piece.className = "token " + (index ? colour(index) : "");
    piece.title = index === 0 ? "the target itself" : index < about.levels.length ? "guessed by " + token.guessed_by : "certain by the schema";
    piece.textContent = token.text;
    round.append(piece);
  }
  return round;
}

// Readers of screens hear whole sentences, not tokens.
function speaker() {
  let waiting = "";
  const say = (text) => { put("spoken", text); };
  return {
    hear(text) {
      waiting += text;
      const end = Math.max(waiting.lastIndexOf(". "), waiting.lastIndexOf("\n"));
      if (end > 40) {
        say(waiting.slice(0, end + 1));
        waiting = waiting.slice(end + 1);
      }
    },
    finish(text) { say(waiting + " " + text); },
  };
}

// What the reply must look like, where somebody has typed a schema.
function schemaAsked() {
  const typed = byId("schema").value.trim();
  if (!typed) return {};
  try {
    return { response_format: { type: "json_schema", json_schema: { schema: JSON.parse(typed) } } };
  } catch (error) {
    throw new Error("JSON Schema: " + error.message, { cause: error });
  }
}

function bodyOf(question) {
  const body = {
    model: about.model,
    stream: true,
    mxconv: { trace: true },
    ...sampling.asked(),
    max_tokens: Number(byId("most").value),
    ...schemaAsked(),
  };
  if (!about.can_chat) return { ...body, prompt: question };
  const system = byId("system").value.trim();
  return { ...body, messages: [...(system ? [{ role: "system", content: system }] : []), ...messages] };
}

// A seed has up to 64 bits, more than a number of JavaScript: it goes into the text as its digits.
function withSeed(body) {
  const seed = byId("seed").value.trim();
  return seed ? { toJSON: () => ({ ...body, seed: JSON.rawJSON ? JSON.rawJSON(BigInt(seed).toString()) : Number(seed) }) } : body;
}

async function ask(question) {
  turn("user", about.can_chat ? "You" : "Text").querySelector(".said").textContent = question;
  messages.push({ role: "user", content: question });
  const reply = turn("reply", about.can_chat ? about.model : "How it goes on");
  const said = reply.querySelector(".said");
  const statistics = newStatistics();
  const voice = speaker();
  let text = "";
  let ending = "";
  running = new AbortController();
  setBusy(true);
  try {
    const path = about.can_chat ? "v1/chat/completions" : "v1/completions";
    for await (const chunk of chunksOf(path, withSeed(bodyOf(question)), byId("key").value, running.signal)) {
      const choice = chunk.choices[0];
      put("used", chunk.mxconv.seed);
      if (chunk.mxconv.sampling) put("used-sampling", sampling.told(chunk.mxconv.sampling));
      if (!choice.mxconv) continue;
      const piece = about.can_chat ? choice.delta.content || "" : choice.text;
      text += piece;
      if (choice.mxconv.tokens.length) {
        grow(reply, () => said.append(roundOf(choice.mxconv.tokens)));
        count(statistics, choice.mxconv);
        showStatistics(statistics);
      }
      voice.hear(piece);
      ending = choice.finish_reason || ending;
    }
    const speed = tokensASecond(statistics);
    const many = (number, noun) => number + " " + noun + (number === 1 ? "" : "s");
    const fate = many(statistics.numTokens, "token") + " in " + many(statistics.numRounds, "round") + (speed ? ", " + speed.toFixed(1) + " a second" : "");
    grow(reply, () => note(reply, "fate", fate + (ending === "length" ? "; cut at the most tokens" : "")));
    voice.finish("The reply is complete.");
  } catch (error) {
    const stopped = error.name === "AbortError";
    grow(reply, () => note(reply, stopped ? "fate" : "problem", stopped ? "stopped" : error.message));
    voice.finish(stopped ? "Stopped." : error.message);
  }
  if (text) messages.push({ role: "assistant", content: text });
  else messages.pop();
  setBusy(false);
  byId("question").focus({ preventScroll: true });
}

function setBusy(busy) {
  byId("send").disabled = busy;
  byId("stop").disabled = !busy;
  byId("fresh").disabled = byId("models").disabled = busy;
  if (!busy) running = null;
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = byId("question").value;
  if (running || !question.trim()) return;
  byId("question").value = "";
  ask(question);
});
byId("settings").addEventListener("submit", (event) => { event.preventDefault(); });
byId("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("form").requestSubmit();
});
byId("stop").addEventListener("click", () => { if (running) running.abort(); });
byId("fresh").addEventListener("click", () => {
  messages = [];
  byId("turns").replaceChildren();
  byId("hint").hidden = false;
  showStatistics(newStatistics());
  byId("question").focus();
});
byId("marks").addEventListener("change", (event) => { byId("turns").classList.toggle("marked", event.target.checked); });

byId("models").addEventListener("change", (event) => {
  choose(models[event.target.selectedIndex]);
  showStatistics(newStatistics());
});

// Shows a model, whose answers come from now on; what was said stays.
function choose(model) {
  about = model;
  // the levels, and a constraint, which has a row as soon as it makes a token certain
  guessers = [...about.levels, "constraint"];
  byId("rows").replaceChildren();
  shares.replaceChildren();
  rows = guessers.map(rowOf);
  document.title = about.model + " · mxconv";
  put("model", models.length > 1 ? "" : about.model);
  put("levels", about.levels.join(" ← "));
  put("plain", about.plain_tokens_per_second ? about.plain_tokens_per_second.toFixed(about.plain_tokens_per_second < 10 ? 2 : 0) : "–");
  put("hint", about.can_chat
    ? "Ask something. Every token has the colour of the level that guessed it; those without one the target wrote itself."
    : "This model has no chat template: it goes on with the text that you give. Every token has the colour of the level that guessed it; those without one the target wrote itself.");
  sampling.show(about.sampling);
  put("question-label", about.can_chat ? "Message" : "Text to go on with");
  byId("system").hidden = byId("system-label").hidden = !about.can_chat;
}

byId("models").append(...models.map((model) => new Option(model.model)));
byId("models").hidden = models.length < 2;
choose(models[0]);
byId("question").focus();
