const byId = (id) => document.getElementById(id);
const put = (id, text) => { byId(id).textContent = text; };
const models = JSON.parse(byId("served").textContent);
const shares = byId("shares");
const NUM_COLOURS = 6;
const colour = (index) => (index ? "g" + ((index - 1) % NUM_COLOURS) : "own");
let about, guessers, rows; // of the model that is chosen
let messages = []; // role and content, what was thought, and the model that a reply is by
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

function showEnd() {
  byId("turns").lastElementChild.scrollIntoView({ block: "end" });
}

// Keeps the end of the conversation in sight while something grows, unless somebody scrolled up to read.
function grow(change) {
  const last = byId("turns").lastElementChild;
  const follows = last && last.getBoundingClientRect().bottom < byId("form").getBoundingClientRect().top + 8;
  change();
  if (follows) showEnd();
}

// A round's tokens, each in the colour of the level that guessed it, without as many characters at the beginning.
function writeRound(writer, tokens, numLeft, isFirst) {
  tokens.forEach((token, place) => {
    const text = token.text.slice(numLeft);
    numLeft -= token.text.length - text.length;
    if (!text && token.text) return;
    const index = guesserOf(token);
    const title = index === 0 ? "the target itself" : index < about.levels.length ? "guessed by " + token.guessed_by : "certain by the schema";
    writer.add(text, "token" + (place || isFirst ? "" : " begins"), index ? colour(index) : "", title);
  });
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
    ...(byId("most").value ? { max_tokens: Number(byId("most").value) } : {}),
    ...schemaAsked(),
  };
  if (!about.can_chat) return { ...body, prompt: question };
  const system = byId("system").value.trim();
  const sent = messages.map(({ role, content, reasoning_content }) => ({ role, content, reasoning_content }));
  return { ...body, messages: [...(system ? [{ role: "system", content: system }] : []), ...sent] };
}

// A seed has up to 64 bits, more than a number of JavaScript: it goes into the text as its digits.
function withSeed(body, seed) {
  return seed ? { toJSON: () => ({ ...body, seed: JSON.rawJSON ? JSON.rawJSON(BigInt(seed).toString()) : Number(seed) }) } : body;
}

// Asks a question; a retry has the reply and the message that stand until there is another answer.
async function ask(question, stood = null) {
  plain.cancel();
  for (const refused of document.querySelectorAll(".refused")) refused.remove();
  const asked = stood ? null : questionTurn(question);
  if (stood) {
    messages.pop();
    stood.reply.remove();
  } else {
    messages.push({ role: "user", content: question });
    kept.write(about.model, messages);
  }
  const reply = replyTurn(about.model);
  const writer = writerInto(reply.querySelector(".said"), about.can_chat);
  const statistics = newStatistics();
  const voice = speaker();
  let text = "", thought = "", ending = "", end, stopped = false;
  showEnd();
  running = new AbortController();
  setBusy(true);
  const path = about.can_chat ? "v1/chat/completions" : "v1/completions", key = byId("key").value;
  let body, seed = byId("seed").value.trim(), isWhole = false;
  try {
    body = bodyOf(question);
    for await (const chunk of chunksOf(path, withSeed(body, seed), key, running.signal)) {
      const choice = chunk.choices[0];
      put("used", chunk.mxconv.seed);
      seed ||= String(chunk.mxconv.seed);
      if (chunk.mxconv.sampling) put("used-sampling", sampling.told(chunk.mxconv.sampling));
      if (!choice.mxconv) continue;
      const piece = about.can_chat ? choice.delta.content || "" : choice.text;
      const thinks = (about.can_chat && choice.delta.reasoning_content) || "";
      const { tokens } = choice.mxconv;
      if (thinks) grow(() => { addThought(reply, thinks); });
      if (tokens.length) {
        grow(() => {
          // the text of a reply begins in the middle of a round where a thought ends in it
          const before = text ? 0 : tokens.reduce((sum, token) => sum + token.text.length, 0) - piece.length;
          if (piece || !thinks) writeRound(writer, tokens, before, !text);
        });
        count(statistics, choice.mxconv);
        showStatistics(statistics);
      }
      text += piece;
      thought += thinks;
      voice.hear(piece);
      ending = choice.finish_reason || ending;
    }
    const speed = tokensASecond(statistics);
    const many = (number, noun) => number + " " + noun + (number === 1 ? "" : "s");
    const fate = many(statistics.numTokens, "token") + " in " + many(statistics.numRounds, "round") + (speed ? ", " + speed.toFixed(1) + " a second" : "");
    end = element("p", "fate", fate + (ending === "length" ? "; cut at the most tokens" : ""));
    voice.finish("The reply is complete.");
    isWhole = true;
  } catch (error) {
    stopped = error.name === "AbortError";
    end = element("p", stopped ? "fate" : "problem", stopped ? "stopped" : error.message);
    voice.finish(stopped ? "Stopped." : error.message);
  }
  const stands = (text || thought) && (isWhole || stopped || !stood);
  grow(() => {
    writer.finish();
    if (stood && !stands) {
      end.classList.add("refused");
      reply.replaceWith(stood.reply);
      stood.reply.append(end);
      return;
    }
    reply.append(end);
    if (stands) addActions(reply, text);
  });
  if (stands) {
    messages.push({ role: "assistant", content: text, reasoning_content: thought || undefined, by: about.model });
  } else if (stood) {
    messages.push(stood.message);
  } else { // what was not answered stays in the field, before what was typed since
    messages.pop();
    for (const turn of [asked, reply]) turn.classList.add("refused");
    byId("question").value = [question, byId("question").value].filter(Boolean).join("\n");
    fitQuestion();
  }
  kept.write(about.model, messages);
  setBusy(false);
  byId("question").focus({ preventScroll: true });
  if (isWhole) plain.measure(path, body, seed, key, statistics);
}

// The field is as high as its text, up to the most that the style sheet allows.
function fitQuestion() {
  grow(() => {
    byId("question").style.height = "auto";
    byId("question").style.height = byId("question").scrollHeight + "px";
    byId("turns").style.setProperty("--form-height", byId("form").offsetHeight + "px");
  });
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
  fitQuestion();
  ask(question);
});
byId("settings").addEventListener("submit", (event) => { event.preventDefault(); });
byId("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("form").requestSubmit();
});
const stop = () => { if (running) running.abort(); };
byId("question").addEventListener("input", fitQuestion);
byId("stop").addEventListener("click", stop);
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !event.isComposing) stop(); });
byId("fresh").addEventListener("click", () => {
  plain.cancel();
  messages = [];
  kept.write(about.model, messages);
  byId("turns").replaceChildren();
  byId("hint").hidden = false;
  showStatistics(newStatistics());
  byId("question").focus();
});
byId("marks").addEventListener("change", (event) => { byId("turns").classList.toggle("marked", event.target.checked); });

byId("models").addEventListener("change", (event) => {
  plain.cancel();
  choose(models[event.target.selectedIndex]);
  kept.write(about.model, messages);
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
  put("hint", about.can_chat
    ? "Ask something. Every token has the colour of the level that guessed it; those without one the target wrote itself."
    : "This model has no chat template: it goes on with the text that you give. Every token has the colour of the level that guessed it; those without one the target wrote itself.");
  sampling.show(about.sampling);
  put("question-label", about.can_chat ? "Message" : "Text to go on with");
  byId("system").hidden = byId("system-label").hidden = !about.can_chat;
}

// What was said before the page was loaded; a question without a reply is to be asked again.
function showEarlier(found) {
  if (found.length && found.at(-1).role === "user") byId("question").value = found.pop().content;
  messages = found;
  for (const message of messages) {
    if (message.role === "user") questionTurn(message.content);
    else {
      const reply = replyTurn(message.by);
      const writer = writerInto(reply.querySelector(".said"), about.can_chat);
      if (message.reasoning_content) addThought(reply, message.reasoning_content);
      writer.add(message.content);
      writer.finish();
      addActions(reply, message.content);
    }
  }
  if (messages.length) showEnd();
}

byId("models").append(...models.map((model) => new Option(model.model)));
byId("models").hidden = models.length < 2;
const earlier = kept.read();
choose(models.find((model) => model.model === earlier.model) || models[0]);
byId("models").selectedIndex = models.indexOf(about);
showEarlier(earlier.messages);
fitQuestion();
byId("question").focus();
