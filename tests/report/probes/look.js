// What each chart shows, where its words lie, and what a pointer over its middle says.
const box = (element) => {
  const { left, right, top, bottom } = element.getBoundingClientRect();
  return { left, right, top, bottom };
};
const charts = [...document.querySelectorAll("figure")].map((figure) => {
  const svg = figure.querySelector("svg.plot");
  const readout = figure.querySelector(".readout");
  const hint = readout.textContent;
  const { left, top, width, height } = svg.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent("pointermove", { clientX: left + width / 2, clientY: top + height / 2 }));
  return {
    id: figure.id,
    svg: box(svg),
    marks: figure.querySelectorAll(".marks > *").length,
    hint,
    said: readout.textContent,
    x: figure.querySelector(".name.x").textContent,
    y: figure.querySelector(".name.y").textContent,
    words: [...svg.querySelectorAll(".tick, .name, .bar-name, .figure")].map((word) => ({
      text: word.textContent,
      ...box(word),
    })),
  };
});
return { wide: document.documentElement.scrollWidth - window.innerWidth, charts };
