// Plain decoding of a question that has its answer: its first tokens once more, without drafts, until somebody asks again.
const plain = (() => {
  const MOST = 128; // tokens
  let measuring = null;
  function show(speed, times, compared) {
    put("plain", speed);
    put("times", times);
    put("compared", compared);
  }
  return {
    cancel() {
      if (measuring) measuring.abort();
      measuring = null;
      show("–", "–", "");
    },
    async measure(path, body, seed, key, answered) {
      const speed = tokensASecond(answered), found = newStatistics();
      if (about.levels.length < 2 || !answered.numTokens) return;
      const mine = measuring = new AbortController();
      const plainly = { ...body, max_tokens: Math.min(MOST, answered.numTokens), mxconv: { trace: true, drafts: false } };
      show("…", "–", "");
      let told = "";
      try {
        for await (const { choices: [choice] } of chunksOf(path, withSeed(plainly, seed), key, mine.signal)) {
          if (choice.mxconv) count(found, choice.mxconv);
        }
        const isSame = found.ids.every((id, place) => id === answered.ids[place]);
        told = found.numTokens + " tokens, " + (isSame ? "the same." : "and not the same: please report this.");
      } catch { /* somebody asks, or the server has no room */ }
      if (measuring !== mine) return;
      const alone = told ? tokensASecond(found) : null;
      show(rate(alone), speed === null || alone === null ? "–" : (speed / alone).toFixed(2), told);
    },
  };
})();
