// What each chart of the cost page shows.
"use strict";

const LENGTHS = Array.from({ length: 16 }, (_, index) => index + 1);
const ACCEPTANCES = Array.from({ length: 51 }, (_, index) => index / 50);

// what each equation calls acceptance, and what a probability comes to in it
const EQUATIONS = {
  "ml-specqd": { tokens: acceptedTokens, axis: (name) => `share of tokens of ${name} accepted`, of: acceptedShare },
  leviathan: { tokens: expectedTokens, axis: (name) => `acceptance of ${name}`, of: (acceptance) => acceptance },
};

function drawAnswers(chart, answers) {
  const high = Math.max(...answers.map((a) => a.tokensPerSecond)) * 1.05;
  chart.begin({ name: "tokens a second", low: 0, high }, { name: "hierarchy", bands: answers, isHidden: true });
  const text = (a) => `${a.name}: ${figures(a.tokensPerSecond)} tokens/s`;
  chart.bars(
    answers.map((a) => ({ name: a.name, values: [{ value: a.tokensPerSecond, text: text(a) }] })),
    [],
  );
}

function drawLengths(chart, settings) {
  const series = data.strategies
    .filter(({ levels }) => levels.length > 1)
    .map((strategy) => {
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
  const equation = EQUATIONS[control("surface-equation").value];
  const [first, second] = strategy.levels.slice(1).map((index) => data.levels[index].name);
  const plainSeconds = costsOf(plain, settings)[0].seconds;
  const at = (acceptances, lengths) => {
    const own = { ...settings, acceptances: { ...settings.acceptances, ...acceptances }, lengths };
    return plainSeconds / hierarchySeconds(costsOf(strategy, own), equation.tokens);
  };
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
  const column =
    second === undefined
      ? { name: "draft tokens a round, of the first draft", bands: columns }
      : { name: equation.axis(second), bands: columns, ticks };
  const row = { name: equation.axis(first), bands: ACCEPTANCES, ticks };
  chart.begin(column, row);
  chart.map(cells, column, row, Math.max(...cells.map(({ value }) => value)));
  const nearest = (values, value) => values.reduce((a, b) => (Math.abs(b - value) < Math.abs(a - value) ? b : a));
  const place = (name, depth) => equation.of(settings.acceptances[name], settings.lengths[depth]);
  const here = second === undefined ? settings.lengths[0] : place(second, 1);
  chart.frame(nearest(columns, here), nearest(ACCEPTANCES, place(first, 0)), column, row);
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
    fillRow(body, draft.name, [
      [draft.acceptance, 3],
      [expectedTokens(draft.acceptance, length), 2],
      [multiplier, 2],
    ]);
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
      const own = points
        .map((pair) => pair[index])
        .map(({ intensity, attainable, numTokens, seconds }) => {
          const rates = `${figures(intensity)} multiply-adds a byte, ${figures(attainable)} giga a second`;
          return {
            x: intensity,
            y: attainable,
            text: `${index ? "attention" : level.name}, ${numTokens} tokens: ${rates}, ${figures(seconds * 1e3)} ms`,
          };
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
    if (!flat)
      add(chart.marks, "line", {
        class: "roof",
        x1: chart.x(from),
        y1: chart.y(from * bandwidth),
        x2: chart.x(knee),
        y2: chart.y(knee * bandwidth),
      });
    if (peak / bandwidth < right)
      add(chart.marks, "line", {
        class: "roof",
        x1: chart.x(knee),
        y1: chart.y(peak),
        x2: chart.x(right),
        y2: chart.y(peak),
      });
  };
  roof(Math.max(...peaks), false);
  for (const [form, peak] of Object.entries(data.peaks)) {
    roof(peak, true);
    const shared = Object.keys(data.peaks).filter((other) => data.peaks[other] === peak);
    if (shared[0] === form && peak / bandwidth < right)
      add(
        chart.marks,
        "text",
        { class: "roof-name", x: chart.right - 4, y: chart.y(peak) - 5 },
        `${shared.join(", ")}: ${format(peak)}`,
      );
  }
  chart.lines(series);
}

function drawTraceLevels(chart) {
  const groups = data.traces
    .filter(({ acceptance }) => acceptance.length)
    .map(({ name, levels, acceptance }) => ({
      name: `${name}: ${levels.slice(1).join(", ")}`,
      values: acceptance.map((value, index) => ({
        value,
        text: `${name}, ${levels[index + 1]}: ${value.toFixed(3)} accepted`,
      })),
    }));
  chart.begin({ name: "acceptance, measured", low: 0, high: 1 }, { name: "trace", bands: groups, isHidden: true });
  chart.bars(
    groups,
    ["first draft", "second draft", "third draft", "fourth draft"].slice(
      0,
      Math.max(...groups.map(({ values }) => values.length)),
    ),
  );
}

function drawTracePositions(chart) {
  const series = data.traces
    .filter(({ by_position }) => by_position.length)
    .map(({ name, levels, by_position }) => ({
      name: `${name}: ${levels[1]}`,
      hasDots: true,
      points: by_position.map((y, index) => ({
        x: index + 1,
        y,
        text: `${name}, draft token ${index + 1}: ${y.toFixed(3)} accepted`,
      })),
    }));
  const longest = Math.max(2, ...series.map(({ points }) => points.length));
  const ticks = LENGTHS.filter((length) => length <= longest);
  chart.begin(
    { name: "draft token of a round", low: 1, high: longest, ticks },
    { name: "acceptance, measured", low: 0, high: 1 },
  );
  chart.lines(series);
}

function drawPredictions(chart) {
  const names = ["measured", "predicted by the models", "Leviathan's equation on its passes"];
  const groups = data.traces.map(({ name, measured, predicted, equation }) => ({
    name,
    values: [measured, predicted, equation].map((value, index) => ({
      value,
      text: `${name}, ${names[index]}: ${figures(value)} tokens/s`,
    })),
  }));
  const high = Math.max(...groups.flatMap(({ values }) => values.map(({ value }) => value))) * 1.05;
  chart.begin({ name: "tokens a second", low: 0, high }, { name: "trace", bands: groups, isHidden: true });
  chart.bars(groups, names);
}
