// Charts as SVG: curves, with a band for the spread and thin lines for seeds, and histograms. Text is set by textContent only.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 250;
const MARGIN = { left: 58, right: 14, top: 22, bottom: 34 };
const DASHES = ["", "7 3", "2 3"];
export const COLORS = 8;

export function node(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

/** Legend swatch: a line in the color and dash pattern of a run. */
export function swatch(slot) {
  const made = node("svg", { class: "swatch", viewBox: "0 0 24 10", "aria-hidden": "true" });
  made.append(line("mean", slot, [[1, 5], [23, 5]]));
  return made;
}

/** Format a number briefly: 1500 as 1.5k. */
export function short(number) {
  const size = Math.abs(number);
  for (const [least, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= least) return `${+(number / least).toPrecision(4)}${unit}`;
  }
  return size > 0 && size < 1e-3 ? number.toExponential(1) : `${+number.toPrecision(4)}`;
}

export function exact(number) {
  const size = Math.abs(number);
  if (size >= 1e15 || (size > 0 && size < 1e-4)) return number.toExponential(4);
  return number.toLocaleString("en", { maximumSignificantDigits: Math.max(5, Math.ceil(Math.log10(size + 1))) });
}

/** Unit of a metric, inferred from its name; empty if unknown. */
export function unit(metric) {
  const known = [
    [/steps_per_second$/, "steps/s"], [/per_second$/, "1/s"], [/(^|[_/])(milliseconds|ms)$/, "ms"],
    [/(^|[_/])seconds$/, "s"], [/bytes$/, "bytes"], [/episode_length(_std)?$/, "steps"], [/return|reward/, "reward"],
  ];
  const found = known.find(([pattern]) => pattern.test(metric));
  return found ? found[1] : "";
}

/** Exponential moving average with bias correction. */
export function smoothed(points, weight) {
  let sum = 0;
  let total = 0;
  return points.map(([x, y]) => {
    sum = weight * sum + (1 - weight) * y;
    total = weight * total + (1 - weight);
    return [x, sum / total];
  });
}

function ticks(low, high, about) {
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function range(values, pad) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (!(low <= high)) return [0, 1];
  const room = high > low ? (high - low) * pad : Math.abs(low) * 0.1 || 1;
  return [low - room, high + room];
}

function line(kind, slot, points) {
  const path = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  const dash = DASHES[Math.floor(slot / COLORS) % DASHES.length];
  return node("path", { class: `${kind} k${slot % COLORS}`, d: path, fill: "none", "stroke-dasharray": dash || "none" });
}

function* every(series, axis) {
  for (const each of series) {
    for (const point of each.points) yield point[axis];
    for (const seed of each.seeds) for (const point of seed) yield point[axis];
    if (axis === 1) for (const [, low, high] of each.spread) yield* [low, high];
  }
}

function frame(svg, scale, label) {
  const { width, toX, toY, xs, ys } = scale;
  const bottom = HEIGHT - MARGIN.bottom;
  for (const y of ticks(...ys, 5)) {
    svg.append(node("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: toY(y), y2: toY(y) }));
    svg.append(node("text", { x: MARGIN.left - 6, y: toY(y) + 4, "text-anchor": "end" }, short(y)));
  }
  for (const x of ticks(...xs, Math.max(2, Math.floor(width / 110)))) {
    svg.append(node("line", { class: "axis", x1: toX(x), x2: toX(x), y1: bottom, y2: bottom + 4 }));
    svg.append(node("text", { x: toX(x), y: bottom + 16, "text-anchor": "middle" }, short(x)));
  }
  svg.append(node("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
  svg.append(node("text", { x: width - MARGIN.right, y: HEIGHT - 4, "text-anchor": "end" }, label.x));
  svg.append(node("text", { x: 4, y: 12 }, label.y));
}

function drawSeries(svg, each, { toX, toY }, weight) {
  const place = ([x, y]) => [toX(x), toY(y)];
  if (each.spread.length > 1) {
    const edge = [...each.spread.map(([x, , high]) => [x, high]), ...each.spread.map(([x, low]) => [x, low]).reverse()];
    const d = edge.map((point, i) => `${i ? "L" : "M"}${place(point).map((v) => v.toFixed(1)).join(" ")}`).join("");
    svg.append(node("path", { class: `band f${each.slot % COLORS}`, d: `${d}Z` }));
  }
  for (const seed of each.seeds) svg.append(line("seed", each.slot, seed.map(place)));
  if (weight > 0) svg.append(line("raw", each.slot, each.points.map(place)));
  const drawn = weight > 0 ? smoothed(each.points, weight) : each.points;
  svg.append(line("mean", each.slot, drawn.map(place)));
  if (drawn.length <= 40) {
    for (const point of drawn) {
      const [cx, cy] = place(point);
      svg.append(node("circle", { class: `f${each.slot % COLORS}`, cx, cy, r: 2.5 }));
    }
  }
}

/** For each series with points, return the point nearest to step x. */
function nearest(series, x) {
  return series.filter((each) => each.points.length).map((each) => {
    let [low, high] = [0, each.points.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (each.points[middle][0] < x) low = middle + 1;
      else high = middle;
    }
    const before = each.points[Math.max(0, low - 1)];
    const point = Math.abs(before[0] - x) < Math.abs(each.points[low][0] - x) ? before : each.points[low];
    return { each, point };
  });
}

function tell(box, svg, series, scale, label, event) {
  const { toX, toStep, width } = scale;
  const at = event.clientX - svg.getBoundingClientRect().left;
  const found = nearest(series, toStep(at));
  svg.querySelector(".cross")?.remove();
  if (!found.length) return;
  const closest = found.reduce((a, b) => (Math.abs(toX(a.point[0]) - at) <= Math.abs(toX(b.point[0]) - at) ? a : b));
  const x = toX(closest.point[0]);
  svg.append(node("line", { class: "cross", x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
  const rows = found.map(({ each, point }) => {
    const row = document.createElement("p");
    const [name, value] = [document.createElement("span"), document.createElement("b")];
    name.textContent = found.length > 1 && point[0] !== closest.point[0] ? `${each.label} at ${short(point[0])}` : each.label;
    value.textContent = `${exact(point[1])} ${label.unit}`.trim();
    row.append(swatch(each.slot), name, value);
    return row;
  });
  const head = document.createElement("p");
  head.textContent = `${exact(closest.point[0])} ${label.x}`;
  box.replaceChildren(head, ...rows);
  box.hidden = false;
  box.style.top = `${svg.offsetTop + MARGIN.top}px`;
  box.style.left = x < width / 2 ? `${svg.offsetLeft + x + 12}px` : "auto";
  box.style.right = x < width / 2 ? "auto" : `${width - x + 22}px`;
}

/**
 * Draw curves.
 * series: [{label, slot (index of color and dashes), points: [[x, y]], seeds: [points], spread: [[x, low, high]]}]
 * label: {x, y, unit}; weight: smoothing weight in [0, 1), 0 for no smoothing; box: element for the values under the pointer.
 */
export function drawCurves(svg, series, label, weight, box) {
  const width = Math.max(240, Math.floor(svg.getBoundingClientRect().width));
  const [xs, ys] = [range(every(series, 0), 0), range(every(series, 1), 0.06)];
  const [right, bottom] = [width - MARGIN.right, HEIGHT - MARGIN.bottom];
  const scale = {
    width, xs, ys,
    toX: (x) => MARGIN.left + ((x - xs[0]) / (xs[1] - xs[0])) * (right - MARGIN.left),
    toY: (y) => bottom - ((y - ys[0]) / (ys[1] - ys[0])) * (bottom - MARGIN.top),
    toStep: (at) => xs[0] + ((at - MARGIN.left) / (right - MARGIN.left)) * (xs[1] - xs[0]),
  };
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.setAttribute("height", HEIGHT);
  if (!series.some((each) => each.points.length)) {
    svg.append(node("text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "nothing recorded yet"));
  } else {
    frame(svg, scale, label);
    for (const each of series.filter((each) => each.points.length)) drawSeries(svg, each, scale, weight);
  }
  svg.onpointermove = (event) => tell(box, svg, series, scale, label, event);
  svg.onpointerleave = () => {
    box.hidden = true;
    svg.querySelector(".cross")?.remove();
  };
  box.hidden = true;
}

/** Draw a histogram with K + 1 bin edges and K counts. */
export function drawBars(svg, { edges, counts }) {
  const width = Math.max(240, Math.floor(svg.getBoundingClientRect().width));
  const [low, high] = edges[0] < edges.at(-1) ? [edges[0], edges.at(-1)] : [edges[0] - 0.5, edges[0] + 0.5];
  const most = Math.max(...counts);
  const toX = (value) => 10 + ((value - low) / (high - low)) * (width - 20);
  svg.setAttribute("viewBox", `0 0 ${width} 120`);
  svg.setAttribute("height", 120);
  const bars = counts.map((count, i) => {
    const [x, end] = edges[0] < edges.at(-1) ? [toX(edges[i]), toX(edges[i + 1])] : [toX(low), toX(high)];
    const height = (count / most) * 90;
    return node("rect", { class: "histogram", x, y: 100 - height, width: Math.max(1, end - x - 1), height });
  });
  const label = (x, anchor, value) => node("text", { x, y: 114, "text-anchor": anchor }, short(value));
  svg.replaceChildren(...bars, label(10, "start", edges[0]), label(width - 10, "end", edges.at(-1)));
}
