"use strict";

// The objects of a stream of server-sent events, until it says [DONE].
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection broke off.");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith(":")) continue; // a comment, which keeps the connection open
      const text = event.replace(/^data: ?/, "");
      if (text === "[DONE]") return;
      const members = JSON.parse(text);
      if (members.error) throw new Error(members.error.message);
      yield members;
    }
  }
}

// Ask for a reply; its chunks, each with the round that a step of the target was.
async function* chunksOf(path, body, key, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = "Bearer " + key;
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) {
    const said = await response.json().catch(() => null);
    throw new Error(said && said.error ? said.error.message : "The server answered " + response.status + ".");
  }
  yield* eventsOf(response);
}
