// Moves the sliders as a reader does, and reads the tables and marks behind each move.
const read = (id) => {
  const rows = [...document.querySelectorAll(`#${id} tr`)].map((row) => {
    const values = [...row.cells].slice(1).map((cell) => (cell.dataset.value ? Number(cell.dataset.value) : null));
    return [row.cells[0].textContent, values];
  });
  return Object.fromEntries(rows);
};
const numbers = ({ dataset }) => Object.fromEntries(Object.entries(dataset).map(([key, value]) => [key, Number(value)]));
const marks = (chart, mark) => [...document.querySelectorAll(`#${chart} ${mark}`)].map(numbers);
return MOVES.map((move) => {
  const controls = Object.entries(move).map(([id, value]) => {
    const control = document.getElementById(id);
    control.value = value;
    return control;
  });
  controls.at(-1).dispatchEvent(new Event("input", { bubbles: true }));
  return {
    answers: read("answers"),
    multipliers: read("multipliers"),
    words: document.getElementById("fastest").textContent,
    surface: marks("chart-surface", ".cell"),
    map: marks("chart-batches", ".cell"),
    roofline: marks("chart-roofline", ".dot"),
  };
});
