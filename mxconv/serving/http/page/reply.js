function element(name, kind, text = "") {
  const made = document.createElement(name);
  made.className = kind;
  made.textContent = text;
  return made;
}

// Pages that come over plain HTTP from another machine have no navigator.clipboard.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = element("textarea", "hidden");
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (!copied) throw new Error("The browser does not allow it.");
}

// A button whose caption is in the style sheet, so that it is no part of a reply's text.
function copyButton(label, textOf) {
  const button = element("button", "copy");
  button.type = "button";
  button.setAttribute("aria-label", label);
  button.addEventListener("click", async () => {
    let said = "Copied.";
    await copy(textOf()).catch((error) => { said = "Nothing was copied: " + error.message; });
    button.classList.toggle("done", said === "Copied.");
    put("spoken", said);
    button.focus({ preventScroll: true });
    setTimeout(() => { button.classList.remove("done"); }, 1500);
  });
  return button;
}

// Appends text to a reply. Lines between fences (``` or ~~~) become a block of code as soon as a fence's line is whole.
function writerInto(said, knowsFences) {
  let place = said, open = "", line = "", pieces = [];
  function endLine() {
    const [, mark, rest] = (knowsFences && line.match(/^\s*(`{3,}|~{3,})([^`\n]*)\n?$/)) || [];
    if (mark && (!open || (mark.startsWith(open) && !rest.trim()))) {
      const fence = element("span", "fence");
      fence.append(...pieces);
      if (open) {
        place.parentElement.append(fence);
        place = said;
        open = "";
      } else {
        const block = element("pre", ""), code = element("code", "");
        block.append(fence, copyButton("Copy the code", () => code.textContent), code);
        said.append(block);
        place = code;
        open = mark;
      }
    }
    line = "";
    pieces = [];
  }
  return {
    // A token that holds several lines is a piece each: they may go to different places.
    add(text, kind = "", colours = "", title = "") {
      (text.match(/[^\n]*\n|[^\n]+/g) || [""]).forEach((part, index) => {
        const piece = element("span", (index ? "" : kind + " ") + colours, part);
        piece.title = title;
        place.append(piece);
        pieces.push(piece);
        line += part;
        if (part.endsWith("\n")) endLine();
      });
    },
    finish() { if (open) endLine(); },
  };
}

function turn(kind, title) {
  const made = element("article", "turn " + kind + (about.can_chat ? "" : " code"));
  made.append(element("h3", "", title), element("div", "said"));
  byId("turns").append(made);
  byId("hint").hidden = true;
  return made;
}

function questionTurn(question) {
  const made = turn("user", about.can_chat ? "You" : "Text");
  made.querySelector(".said").textContent = question;
  return made;
}

const replyTurn = (by) => turn("reply", about.can_chat ? by : "How it goes on");

// A thought is folded above what is said.
function addThought(reply, text) {
  if (!reply.querySelector(".thought")) {
    const thought = element("details", "thought");
    thought.append(element("summary", "", "Thought"), element("div", ""));
    reply.querySelector(".said").before(thought);
  }
  reply.querySelector(".thought div").append(text);
}

// What can be done with a reply that is whole; the style sheet shows Retry below the last one alone.
function addActions(reply, text) {
  const retry = element("button", "retry", "Retry");
  retry.type = "button";
  retry.addEventListener("click", () => { if (!running) ask(messages.at(-2).content, { reply, message: messages.at(-1) }); });
  const actions = element("div", "actions");
  actions.append(copyButton("Copy the answer", () => text), retry);
  reply.append(actions);
}
