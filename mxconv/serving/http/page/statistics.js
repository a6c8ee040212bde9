// The number of who guessed a token: 0 is the target itself, the one after all levels a constraint.
function guesserOf(token) {
  return token.guessed_by === null ? 0 : Math.max(0, guessers.indexOf(token.guessed_by));
}

// What is known of the reply that is written now, and how the panel shows it.
function newStatistics() {
  return { began: 0, last: 0, first: 0, numTokens: 0, numRounds: 0, guessed: guessers.map(() => 0), levels: [], ids: [] };
}

function count(statistics, trace) {
  const now = performance.now();
  if (!statistics.began) {
    statistics.began = now;
    statistics.first = trace.tokens.length;
  }
  statistics.last = now;
  statistics.numTokens = trace.num_tokens;
  statistics.numRounds = trace.num_rounds;
  statistics.levels = trace.levels;
  for (const token of trace.tokens) {
    statistics.guessed[guesserOf(token)] += 1;
    statistics.ids.push(token.id);
  }
}

// The time of the prompt is left out, and with it the tokens of the first chunk.
function tokensASecond(statistics) {
  const seconds = (statistics.last - statistics.began) / 1000;
  return seconds > 0.02 ? (statistics.numTokens - statistics.first) / seconds : null;
}

const rate = (speed) => (speed === null ? "–" : speed.toFixed(speed < 10 ? 2 : 0));

function showStatistics(statistics) {
  const total = Math.max(statistics.numTokens, 1);
  const said = [];
  guessers.forEach((name, index) => {
    const guessed = statistics.guessed[index];
    if (index === about.levels.length) rows[index].hidden = !guessed;
    const level = statistics.levels.find((one) => one.name === name);
    const cells = rows[index].cells;
    cells[1].textContent = guessed;
    cells[2].textContent = index && level ? level.num_proposed : "–";
    cells[3].textContent = level && level.num_proposed ? Math.round((100 * level.num_accepted) / level.num_proposed) + " %" : "–";
    shares.children[index].style.width = (100 * guessed) / total + "%";
    if (guessed) said.push(Math.round((100 * guessed) / total) + " % " + (index ? name : "the target itself"));
  });
  shares.setAttribute("aria-label", said.join(", ") || "No tokens yet");
  put("a-round", statistics.numRounds ? (statistics.numTokens / statistics.numRounds).toFixed(2) : "–");
  put("a-second", rate(tokensASecond(statistics)));
}
