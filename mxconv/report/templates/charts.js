// Charts as SVG, drawn at the width that the page gives them, so that words keep their size on a phone.
"use strict";

const MARGIN = { left: 56, right: 26, top: 12, bottom: 46 };
const HALF_CHARACTER = 3.6; // pixels, of a digit in a tick's label
const NUM_STYLES = 7; // of .s0, .s1, ... in the page's style

function add(parent, tag, attributes = {}, text = "") {
  const child = document.createElementNS(parent.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) child.setAttribute(name, value);
  child.textContent = text;
  parent.appendChild(child);
  return child;
}

function figures(value) {
  if (value === null) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 10000
    ? Math.round(value).toLocaleString("en")
    : String(Number(value.toPrecision(size >= 1000 ? 4 : 3)));
}

function binary(value) {
  return value >= 1024 && value % 1024 === 0 ? `${value / 1024}K` : figures(value);
}

function roundTicks(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= rough);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high * (1 + 1e-9); index++) ticks.push(index * step);
  return ticks.map((tick) => Number(tick.toPrecision(12)));
}

function decadeTicks(low, high, most) {
  const powers = [];
  for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power++) powers.push(power);
  const every = Math.ceil(powers.length / most);
  if (powers.length > 2) return powers.filter((_, index) => index % every === 0).map((power) => 10 ** power);
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const part of [1, 2, 5]) all.push(part * 10 ** power);
  return all.filter((tick) => tick >= low && tick <= high);
}

// An axis: {name, low, high, isLog} or, of a map, {name, bands: [values]}; `format` makes a tick's label.
class Chart {
  constructor(id, height = 320) {
    this.figure = document.getElementById(id);
    this.svg = this.figure.querySelector("svg.plot");
    this.readout = this.figure.querySelector(".readout");
    this.legend = this.figure.querySelector(".legend");
    this.height = height;
    this.hint = this.readout.textContent;
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
  }

  begin(x, y) {
    this.width = Math.max(this.figure.clientWidth, 240);
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.setAttribute("height", this.height);
    this.targets = [];
    this.right = this.width - MARGIN.right;
    this.bottom = this.height - MARGIN.bottom;
    this.x = this.scale(x, MARGIN.left, this.right);
    this.y = this.scale(y, this.bottom, MARGIN.top);
    const wide = this.right - MARGIN.left;
    for (const tick of this.ticks(x, Math.max(Math.floor(wide / 70), 3), wide / 34)) {
      if (!x.bands)
        add(this.svg, "line", { class: "grid", x1: this.x(tick), x2: this.x(tick), y1: MARGIN.top, y2: this.bottom });
      const label = (x.format ?? figures)(tick);
      const isWhole = this.x(tick) + label.length * HALF_CHARACTER <= this.width;
      if (isWhole) add(this.svg, "text", { class: "tick", x: this.x(tick), y: this.bottom + 16 }, label);
    }
    for (const tick of this.ticks(y, 5, (this.bottom - MARGIN.top) / 18)) {
      if (!y.bands)
        add(this.svg, "line", { class: "grid", x1: MARGIN.left, x2: this.right, y1: this.y(tick), y2: this.y(tick) });
      if (!y.isHidden)
        add(
          this.svg,
          "text",
          { class: "tick end", x: MARGIN.left - 6, y: this.y(tick) + 4 },
          (y.format ?? figures)(tick),
        );
    }
    const [middle, half] = [(MARGIN.left + this.right) / 2, (MARGIN.top + this.bottom) / 2];
    add(this.svg, "text", { class: "name x", x: middle, y: this.height - 10 }, x.name);
    add(this.svg, "text", { class: "name y", transform: `translate(13 ${half}) rotate(-90)` }, y.name);
    this.marks = add(this.svg, "g", { class: "marks" });
    this.cursor = add(this.svg, "circle", { class: "cursor", r: 7, cx: -20, cy: -20 });
    this.leave();
  }

  scale(axis, from, to) {
    if (axis.bands) {
      const step = (to - from) / axis.bands.length;
      return (value) => from + (axis.bands.indexOf(value) + 0.5) * step;
    }
    if (axis.isLog)
      return (value) => from + (Math.log(value / axis.low) / Math.log(axis.high / axis.low)) * (to - from);
    return (value) => from + ((value - axis.low) / (axis.high - axis.low)) * (to - from);
  }

  ticks(axis, most, mostBands) {
    if (axis.ticks) return axis.ticks;
    if (axis.bands) {
      const every = Math.ceil(axis.bands.length / mostBands);
      return axis.bands.filter((_, index) => index % every === 0);
    }
    return axis.isLog ? decadeTicks(axis.low, axis.high, most) : roundTicks(axis.low, axis.high, most);
  }

  // series: {name, points: [{x, y, text}], hasDots}
  lines(series) {
    series.forEach(({ points, hasDots }, index) => {
      const path = points
        .map(({ x, y }, at) => `${at ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`)
        .join("");
      add(this.marks, "path", { class: `line s${index % NUM_STYLES} d${Math.floor(index / 2) % 3}`, d: path });
      for (const { x, y, text } of points) {
        if (hasDots)
          add(this.marks, "circle", {
            class: `dot s${index % NUM_STYLES}`,
            cx: this.x(x),
            cy: this.y(y),
            r: 4,
            "data-x": x,
            "data-y": y,
          });
        this.targets.push({ x: this.x(x), y: this.y(y), text });
      }
    });
    this.key(series.map(({ name }) => name));
  }

  // cells: {x, y, value, text} on two axes with bands; values above 1 are gains
  map(cells, x, y, top) {
    const [width, height] = [(this.right - MARGIN.left) / x.bands.length, (this.bottom - MARGIN.top) / y.bands.length];
    for (const cell of cells) {
      const strength = cell.value < 1 ? 1 - cell.value : (cell.value - 1) / Math.max(top - 1, 0.2);
      const place = { x: this.x(cell.x) - width / 2, y: this.y(cell.y) - height / 2, width, height };
      const kind = cell.value < 1 ? "loss" : "gain";
      add(this.marks, "rect", {
        class: `cell ${kind}`,
        "fill-opacity": Math.min(0.08 + 0.9 * strength, 1).toFixed(3),
        "data-x": cell.x,
        "data-y": cell.y,
        "data-value": cell.value,
        ...place,
      });
      if (width > 33 && height > 15)
        add(
          this.marks,
          "text",
          { class: `figure${strength > 0.55 ? " strong" : ""}`, x: this.x(cell.x), y: this.y(cell.y) + 4 },
          cell.value.toFixed(2),
        );
      this.targets.push({ x: this.x(cell.x), y: this.y(cell.y), text: cell.text });
    }
  }

  // a frame around the cell of the present settings, at least large enough to be seen
  frame(x, y, xAxis, yAxis) {
    const width = Math.max((this.right - MARGIN.left) / xAxis.bands.length, 10);
    const height = Math.max((this.bottom - MARGIN.top) / yAxis.bands.length, 10);
    add(this.marks, "rect", { class: "here", x: this.x(x) - width / 2, y: this.y(y) - height / 2, width, height });
  }

  // groups: {name, values: [{value, text, style}]}, names above their bars; the axis x begins at 0
  bars(groups, names) {
    const step = (this.bottom - MARGIN.top) / groups.length;
    groups.forEach(({ name, values }, index) => {
      const from = MARGIN.top + index * step;
      add(this.marks, "text", { class: "bar-name", x: MARGIN.left + 4, y: from + 13 }, name);
      const height = Math.min((step - 22) / values.length, 16);
      values.forEach(({ value, text }, place) => {
        const y = from + 18 + place * height;
        add(this.marks, "rect", {
          class: `bar s${place % NUM_STYLES}`,
          x: MARGIN.left,
          y,
          width: Math.max(this.x(value) - MARGIN.left, 0),
          height: height - 2,
          "data-value": value,
        });
        this.targets.push({ x: this.x(value), y: y + height / 2 - 1, text });
      });
    });
    this.key(names, "bar");
  }

  key(names, kind = "line") {
    this.legend.replaceChildren();
    names.forEach((name, index) => {
      const item = document.createElement("span");
      const sample = add(this.svg, "svg", { class: "key", viewBox: "0 0 22 10" });
      if (kind === "bar") add(sample, "rect", { class: `bar s${index % NUM_STYLES}`, x: 4, width: 14, height: 10 });
      else
        add(sample, "line", {
          class: `line s${index % NUM_STYLES} d${Math.floor(index / 2) % 3}`,
          x1: 0,
          x2: 22,
          y1: 5,
          y2: 5,
        });
      item.append(sample, ` ${name}`);
      this.legend.appendChild(item);
    });
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const scale = this.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    let nearest = null;
    for (const target of this.targets) {
      const distance = (target.x - x) ** 2 + (target.y - y) ** 2;
      if (nearest === null || distance < nearest.distance) nearest = { ...target, distance };
    }
    if (nearest === null) return;
    this.readout.textContent = nearest.text;
    this.cursor.setAttribute("cx", nearest.x);
    this.cursor.setAttribute("cy", nearest.y);
  }

  leave() {
    this.readout.textContent = this.hint;
    this.cursor.setAttribute("cx", -20);
  }
}
