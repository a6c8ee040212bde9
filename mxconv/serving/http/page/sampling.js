// The fields of Settings that say how tokens are chosen. An empty one is left to the server, whose default it shows.
const sampling = (() => {
  const idOf = (name) => name.replaceAll("_", "-");
  const names = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"];
  const field = (name) => document.getElementById(idOf(name));
  return {
    // Of a request: what somebody has typed.
    asked() {
      const typed = names.filter((name) => field(name).value.trim() !== "");
      return Object.fromEntries(typed.map((name) => [name, Number(field(name).value)]));
    },
    // The server's defaults, beside where each comes from.
    show(defaults) {
      for (const name of names) {
        field(name).placeholder = field(name).title = "";
        if (!(name in defaults)) continue; // of no meaning where the likeliest token is taken
        field(name).placeholder = String(defaults[name]);
        field(name).title = "by default " + defaults[name] + ", from " + (defaults.from[name] === "default" ? "mxconv" : defaults.from[name]);
      }
    },
    // What an answer says that it was sampled with.
    told(used) {
      const off = { top_k: 0, top_p: 1, min_p: 0, repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0 };
      const said = Object.keys(used.from).filter((name) => used[name] !== off[name] && name !== "logit_bias");
      return said.map((name) => name + " " + used[name] + " (" + used.from[name] + ")").join(", ");
    },
  };
})();
