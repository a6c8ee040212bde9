// The conversation, as this browser keeps it until somebody starts anew. Where it may not, the talk lasts as long as the page.
const kept = (() => {
  const key = "mxconv.talk";
  const isMessage = (one) => one && ["user", "assistant"].includes(one.role) && typeof one.content === "string";
  return {
    read() {
      try {
        const { model, messages } = JSON.parse(localStorage.getItem(key));
        return { model, messages: messages.filter(isMessage) };
      } catch {
        return { messages: [] };
      }
    },
    write(model, messages) {
      try {
        if (messages.length) localStorage.setItem(key, JSON.stringify({ model, messages }));
        else localStorage.removeItem(key);
      } catch { /* full, or forbidden */ }
    },
  };
})();
