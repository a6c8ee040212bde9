// Settings in, numbers and charts out: everything is computed again when a slider moves.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const LENGTHS = Array.from({ length: 16 }, (_, index) => index + 1);
const ACCEPTANCES = Array.from({ length: 51 }, (_, index) => index / 50);
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
    const costs = [[a.tokensPerRound, 2], [a.draftCost, 3], [a.verifyCost, 3]];
    fillRow(body, a.name, [[a.tokensPerSecond], [a.overPlain, 2], [a.speedup, 2], [a.breakEven, 2], ...costs]);
  }
  const best = answers.reduce((one, other) => (other.tokensPerSecond > one.tokensPerSecond ? other : one));
  const gain = `${figures(best.tokensPerSecond)} tokens/s, ${best.overPlain.toFixed(2)} times ${plain.name} alone`;
  const drafted = best.levels.length > 1 ? "" : "; no draft pays here";
  control("fastest").textContent = `Fastest at these settings: ${best.name}, ${gain}${drafted}.`;
  return answers;
}

function drawAnswers(chart, answers) {
  const high = Math.max(...answers.map((a) => a.tokensPerSecond)) * 1.05;
  chart.begin({ name: "tokens a second", low: 0, high }, { name: "hierarchy", bands: answers, isHidden: true });
  const text = (a) => `${a.name}: ${figures(a.tokensPerSecond)} tokens/s`;
  chart.bars(answers.map((a) => ({ name: a.name, values: [{ value: a.tokensPerSecond, text: text(a) }] })), []);
}

function drawLengths(chart, settings) {
  const series = data.strategies.filter(({ levels }) => levels.length > 1).map((strategy) => {
    const points = LENGTHS.map((length) => {
      const lengths = [length, ...settings.lengths.slice(1)];
      const y = answer(strategy, { ...settings, lengths }).overPlain;
      return { x: length, y, text: `${strategy.name}, ${length} draft tokens: speed-up ${y.toFixed(3)}` };
    });
    return { name: strategy.name, points };
  });
  const high = Math.max(1, ...series.flatMap(({ points }) => points.map(({ y }) => y))) * 1.08;
  const x = { name: "draft tokens a round, of the first draft", low: 1, high: 16 };
  chart.begin(x, { name: `speed-up over ${plain.name}`, low: 0, high });
  add(chart.marks, "line", { class: "even", x1: chart.x(1), x2: chart.x(16), y1: chart.y(1), y2: chart.y(1) });
  chart.lines(series);
}

function drawSurface(chart, settings) {
  const strategy = data.strategies[control("surface-hierarchy").value];
  const [first, second] = strategy.levels.slice(1).map((index) => data.levels[index].name);
  const at = (acceptances, lengths) =>
    answer(strategy, { ...settings, acceptances: { ...settings.acceptances, ...acceptances }, lengths }).overPlain;
  const columns = second === undefined ? LENGTHS : ACCEPTANCES;
  const cells = [];
  for (const y of ACCEPTANCES)
    for (const x of columns) {
      const value =
        second === undefined
          ? at({ [first]: y }, [x, ...settings.lengths.slice(1)])
          : at({ [first]: y, [second]: x }, settings.lengths);
      const words = second === undefined ? `${x} draft tokens` : `${second} ${x.toFixed(2)}`;
      cells.push({ x, y, value, text: `${first} ${y.toFixed(2)}, ${words}: speed-up ${value.toFixed(3)}` });
    }
  const ticks = ACCEPTANCES.filter((_, index) => index % 10 === 0);
  const column = second === undefined
    ? { name: "draft tokens a round, of the first draft", bands: columns }
    : { name: `acceptance of ${second}`, bands: columns, ticks };
  const row = { name: `acceptance of ${first}`, bands: ACCEPTANCES, ticks };
  chart.begin(column, row);
  chart.map(cells, column, row, Math.max(...cells.map(({ value }) => value)));
  const nearest = (values, value) => values.reduce((a, b) => (Math.abs(b - value) < Math.abs(a - value) ? b : a));
  const here = second === undefined ? settings.lengths[0] : settings.acceptances[second];
  chart.frame(nearest(columns, here), nearest(ACCEPTANCES, settings.acceptances[first]), column, row);
}

// half to even, as Python rounds
function wholeLength(length) {
  const up = Math.round(length);
  return Math.max(up - length === 0.5 && up % 2 === 1 ? up - 1 : up, 1);
}

function drawBatches(chart, settings) {
  const { target, drafts, intensity } = data.throughput;
  const length = wholeLength(settings.lengths[0]);
  const body = control("multipliers");
  body.replaceChildren();
  for (const draft of drafts) {
    const multiplier = throughputMultiplier(target, draft, settings.batch, settings.context, length, intensity);
    fillRow(body, draft.name, [[draft.acceptance, 3], [expectedTokens(draft.acceptance, length), 2], [multiplier, 2]]);
  }
  const draft = drafts[control("batch-draft").value];
  const cells = data.batches.flatMap((batch) =>
    data.contexts.map((context) => {
      const value = throughputMultiplier(target, draft, batch, context, length, intensity);
      const text = `batch ${batch}, context ${context.toLocaleString("en")}: ${value.toFixed(3)} times plain decoding`;
      return { x: context, y: batch, value, text };
    }),
  );
  const x = { name: "context (positions; K is 1,024)", bands: data.contexts, format: binary };
  const y = { name: "batch (sequences)", bands: data.batches };
  chart.begin(x, y);
  chart.map(cells, x, y, Math.max(...cells.map(({ value }) => value)));
  chart.frame(settings.context, settings.batch, x, y);
}

function drawRoofline(chart, settings) {
  const series = [];
  for (const level of data.levels.filter(({ is_free }) => !is_free)) {
    const points = data.roofline_tokens.map((tokens) =>
      passPoints(data.hardware, level, tokens, settings.batch, settings.context, data.kv_bytes_per_value),
    );
    for (const [index, kernel] of [level.kernel, "attention"].entries()) {
      if (index === 1 && series.some(({ kernel }) => kernel === "attention")) continue;
      const own = points.map((pair) => pair[index]).map(({ intensity, attainable, numTokens, seconds }) => {
        const rates = `${figures(intensity)} multiply-adds a byte, ${figures(attainable)} giga a second, ${figures(seconds * 1e3)} ms`;
        return { x: intensity, y: attainable, text: `${index ? "attention" : level.name}, ${numTokens} tokens: ${rates}` };
      });
      series.push({ name: index ? "attention" : `${level.name} (${level.codec})`, kernel, points: own, hasDots: true });
    }
  }
  const all = series.flatMap(({ points }) => points);
  const [left, right] = [Math.min(...all.map(({ x }) => x)) / 2, Math.max(...all.map(({ x }) => x)) * 3];
  const peaks = Object.values(data.peaks);
  const [low, high] = [Math.min(...all.map(({ y }) => y)) / 2, Math.max(...peaks) * 2];
  const x = { name: "multiply-adds a byte", low: left, high: right, isLog: true };
  const [unit, size] = high > 10000 ? ["tera", 1000] : ["giga", 1];
  const format = (tick) => figures(tick / size);
  chart.begin(x, { name: `${unit} multiply-adds a second`, low, high, isLog: true, format });
  const bandwidth = data.hardware.read_bandwidth;
  const roof = (peak, flat) => {
    const knee = Math.min(peak / bandwidth, right);
    const from = Math.max(low / bandwidth, left);
    if (!flat) add(chart.marks, "line", { class: "roof", x1: chart.x(from), y1: chart.y(from * bandwidth), x2: chart.x(knee), y2: chart.y(knee * bandwidth) });
    if (peak / bandwidth < right) add(chart.marks, "line", { class: "roof", x1: chart.x(knee), y1: chart.y(peak), x2: chart.x(right), y2: chart.y(peak) });
  };
  roof(Math.max(...peaks), false);
  for (const [form, peak] of Object.entries(data.peaks)) {
    roof(peak, true);
    const shared = Object.keys(data.peaks).filter((other) => data.peaks[other] === peak);
    if (shared[0] === form && peak / bandwidth < right) add(chart.marks, "text", { class: "roof-name", x: chart.right - 4, y: chart.y(peak) - 5 }, `${shared.join(", ")}: ${format(peak)}`);
  }
  chart.lines(series);
}

function drawTraceLevels(chart) {
  const groups = data.traces.filter(({ acceptance }) => acceptance.length).map(({ name, levels, acceptance }) => ({
    name: `${name}: ${levels.slice(1).join(", ")}`,
    values: acceptance.map((value, index) => ({ value, text: `${name}, ${levels[index + 1]}: ${value.toFixed(3)} accepted` })),
  }));
  chart.begin({ name: "acceptance, measured", low: 0, high: 1 }, { name: "trace", bands: groups, isHidden: true });
  chart.bars(groups, ["first draft", "second draft", "third draft", "fourth draft"].slice(0, Math.max(...groups.map(({ values }) => values.length))));
}

function drawTracePositions(chart) {
  const series = data.traces.filter(({ by_position }) => by_position.length).map(({ name, levels, by_position }) => ({
    name: `${name}: ${levels[1]}`,
    hasDots: true,
    points: by_position.map((y, index) => ({ x: index + 1, y, text: `${name}, draft token ${index + 1}: ${y.toFixed(3)} accepted` })),
  }));
  const longest = Math.max(2, ...series.map(({ points }) => points.length));
  const ticks = LENGTHS.filter((length) => length <= longest);
  chart.begin({ name: "draft token of a round", low: 1, high: longest, ticks }, { name: "acceptance, measured", low: 0, high: 1 });
  chart.lines(series);
}

function drawPredictions(chart) {
  const names = ["measured", "predicted by the models", "Eq. (1) of its passes"];
  const groups = data.traces.map(({ name, measured, predicted, equation }) => ({
    name,
    values: [measured, predicted, equation].map((value, index) => ({ value, text: `${name}, ${names[index]}: ${figures(value)} tokens/s` })),
  }));
  const high = Math.max(...groups.flatMap(({ values }) => values.map(({ value }) => value))) * 1.05;
  chart.begin({ name: "tokens a second", low: 0, high }, { name: "trace", bands: groups, isHidden: true });
  chart.bars(groups, names);
}

const height = (count, each) => 58 + count * each;
const drawers = {
  "chart-answers": [(chart, settings, answers) => drawAnswers(chart, answers), height(data.strategies.length, 38)],
  "chart-lengths": [drawLengths, 320],
  "chart-surface": [drawSurface, 340],
  "chart-batches": [drawBatches, 320],
  "chart-roofline": [drawRoofline, 360],
  "chart-trace-levels": [drawTraceLevels, height(data.traces.length, 62)],
  "chart-trace-positions": [drawTracePositions, 300],
  "chart-predictions": [drawPredictions, height(data.traces.length, 72)],
};
const charts = Object.entries(drawers).filter(([id]) => control(id) !== null).map(([id, [draw, tall]]) => [new Chart(id, tall), draw]);

function update() {
  const settings = readSettings();
  showSettings(settings);
  const answers = showAnswers(settings);
  for (const [chart, draw] of charts) draw(chart, settings, answers);
}

document.addEventListener("input", update);
let width = 0;
new ResizeObserver(([entry]) => {
  if (Math.round(entry.contentRect.width) === width) return;
  width = Math.round(entry.contentRect.width);
  update();
}).observe(document.querySelector("main"));
update();
