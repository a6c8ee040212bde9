// Where the sliders stand, and what the models answer there.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const plain = data.strategies[0];
const control = (id) => document.getElementById(id);

function readSettings() {
  const acceptances = {};
  data.drafts.forEach(({ name }, index) => (acceptances[name] = Number(control(`acceptance-${index}`).value)));
  return {
    acceptances,
    lengths: data.lengths.map((_, index) => Number(control(`length-${index}`).value)),
    batch: data.batches[control("batch").value],
    context: data.contexts[control("context").value],
  };
}

function showSettings(settings) {
  const show = (id, value) => (document.querySelector(`output[for="${id}"]`).textContent = value);
  data.drafts.forEach(({ name }, index) => show(`acceptance-${index}`, settings.acceptances[name].toFixed(3)));
  settings.lengths.forEach((length, index) => show(`length-${index}`, figures(length)));
  show("batch", settings.batch.toLocaleString("en"));
  show("context", settings.context.toLocaleString("en"));
}

function costsOf(strategy, settings) {
  const levels = strategy.levels.map((index) => data.levels[index]);
  const acceptances = levels.slice(1).map(({ name }) => settings.acceptances[name]);
  const lengths = settings.lengths.slice(0, levels.length - 1);
  const { batch, context } = settings;
  return levelCosts(data.hardware, levels, acceptances, lengths, batch, context, data.kv_bytes_per_value);
}

function answer(strategy, settings) {
  const passes = costsOf(strategy, settings);
  const seconds = hierarchySeconds(passes);
  const found = { tokensPerSecond: settings.batch / seconds, speedup: passes[0].seconds / seconds };
  found.overPlain = costsOf(plain, settings)[0].seconds / seconds;
  if (passes.length === 1) return found;
  found.draftCost = hierarchySeconds(passes.slice(1)) / passes[0].seconds;
  found.verifyCost = passes[0].verifySeconds / passes[0].seconds;
  found.tokensPerRound = expectedTokens(passes[1].acceptance, passes[1].length);
  found.breakEven = breakEven(passes[1].length, found.draftCost, found.verifyCost);
  return found;
}

// cells: [value, decimals]; without decimals, three figures
function fillRow(body, head, cells) {
  const row = body.insertRow();
  const name = document.createElement("th");
  name.className = "left";
  name.scope = "row";
  name.textContent = head;
  row.appendChild(name);
  for (const [value = null, decimals] of cells) {
    const cell = row.insertCell();
    cell.textContent = value === null || decimals === undefined ? figures(value) : value.toFixed(decimals);
    if (value !== null) cell.dataset.value = value;
  }
}

function showAnswers(settings) {
  const answers = data.strategies.map((strategy) => ({ ...strategy, ...answer(strategy, settings) }));
  const body = control("answers");
  body.replaceChildren();
  for (const a of answers) {
    const costs = [
      [a.tokensPerRound, 2],
      [a.draftCost, 3],
      [a.verifyCost, 3],
    ];
    fillRow(body, a.name, [[a.tokensPerSecond], [a.overPlain, 2], [a.speedup, 2], [a.breakEven, 2], ...costs]);
  }
  const best = answers.reduce((one, other) => (other.tokensPerSecond > one.tokensPerSecond ? other : one));
  const gain = `${figures(best.tokensPerSecond)} tokens/s, ${best.overPlain.toFixed(2)} times ${plain.name} alone`;
  const drafted = best.levels.length > 1 ? "" : "; no draft pays here";
  control("fastest").textContent = `Fastest at these settings: ${best.name}, ${gain}${drafted}.`;
  return answers;
}
