// The charts that a page has, drawn again whenever a slider moves or the window changes.
"use strict";

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
const charts = Object.entries(drawers)
  .filter(([id]) => control(id) !== null)
  .map(([id, [draw, tall]]) => [new Chart(id, tall), draw]);

function update() {
  const settings = readSettings();
  showSettings(settings);
  const answers = showAnswers(settings);
  for (const [chart, draw] of charts) draw(chart, settings, answers);
}

document.addEventListener("input", update);
addEventListener("resize", update);
update();
