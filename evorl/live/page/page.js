// Live page: displays the data of the server's events. Text is set by textContent only.

import { drawBars, drawCurves, exact, short, swatch, unit } from "./chart.js";

const SENT = "sent"; // key of the metrics of clients, among the keys of runs
const MOST_DRAWN = 1200; // approximate maximum number of points of a curve
const MOST_CHOSEN = 4; // maximum number of runs that are drawn by default
const byId = (id) => document.getElementById(id);
const runs = new Map();
const curves = new Map(); // by "run metric": {version, curve}
const slots = new Map(); // by run: index of its color
const chosen = readChoice();
let store = { version: 0, metrics: [], histograms: [] };
let charts = [];
let busy = false;
let again = false;
let barsOf = 0; // version of the store at the last drawing of its histograms
let width = 0; // width of the charts

function made(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

// The selection is stored in the fragment of the URL, so a reload or a bookmark keeps it.
function readChoice() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const list = (name) => {
    try {
      const value = JSON.parse(fragment.get(name));
      return Array.isArray(value) ? value.map(String) : null;
    } catch {
      return null;
    }
  };
  return { runs: list("runs"), metrics: list("metrics"), smooth: Math.min(0.98, Number(fragment.get("smooth")) || 0) };
}

function keepChoice() {
  const fragment = new URLSearchParams();
  if (chosen.runs) fragment.set("runs", JSON.stringify(chosen.runs));
  if (chosen.metrics) fragment.set("metrics", JSON.stringify(chosen.metrics));
  if (chosen.smooth) fragment.set("smooth", chosen.smooth);
  history.replaceState(null, "", `#${fragment}`);
}

function shownRuns() {
  const known = [...runs.keys(), ...(store.metrics.length ? [SENT] : [])];
  if (chosen.runs) return known.filter((key) => chosen.runs.includes(key));
  const newest = [...runs.values()].filter((run) => run.metrics.length).sort((a, b) => b.updated - a.updated);
  const running = newest.filter((run) => run.state === "running").slice(0, MOST_CHOSEN);
  const picked = (running.length ? running : newest.slice(0, 1)).map((run) => String(run.index));
  return known.filter((key) => key === SENT || picked.includes(key));
}

const metricsOf = (key) => (key === SENT ? store.metrics : runs.get(key)?.metrics) ?? [];
const nameOf = (key) => (key === SENT ? "sent by clients" : runs.get(key).name);
const versionOf = (key) => (key === SENT ? store.version : runs.get(key).version);

function slotOf(key) {
  if (!slots.has(key)) slots.set(key, slots.size);
  return slots.get(key);
}

function shownMetrics(keys) {
  if (chosen.metrics) return chosen.metrics;
  const all = [...new Set(keys.flatMap(metricsOf))];
  const main = keys.filter((key) => key !== SENT).map((key) => runs.get(key).metric);
  const picked = [...main, ...all.filter((name) => /loss/.test(name)).slice(0, 1), "time/steps_per_second"];
  if (keys.includes(SENT)) picked.push(...store.metrics.slice(0, 3));
  return [...new Set(picked)].filter((name) => all.includes(name));
}

function choose(change) {
  Object.assign(chosen, change);
  keepChoice();
  render();
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const minutes = Math.floor(seconds / 60);
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  return `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(seconds % 60)}`;
}

function rowOf(key, shown) {
  const run = key === SENT ? null : runs.get(key);
  const box = made("input", { type: "checkbox", checked: shown.includes(key) });
  box.addEventListener("change", () => {
    const others = shownRuns().filter((each) => each !== key); // read now: the row may be older than the last selection
    choose({ runs: box.checked ? [...others, key] : others });
  });
  const about = run ? [run.algorithm, run.env, run.seeds > 1 ? `${run.seeds} seeds` : ""] : [`${store.metrics.length} metric${store.metrics.length === 1 ? "" : "s"}`];
  const label = made("label", {}, box, ...(shown.includes(key) ? [swatch(slotOf(key))] : []));
  label.append(made("span", { className: "name", textContent: nameOf(key) }));
  const first = made("td", { className: "run" }, label, made("span", { className: "small", textContent: about.filter(Boolean).join(" · ") }));
  const why = run?.problem ?? run?.failure;
  if (why) first.append(made("span", { className: "small problem", textContent: why }));
  if (!run) {
    const step = store.step === null || store.step === undefined ? "" : short(store.step);
    return made("tr", {}, first, made("td"), made("td", { textContent: step }), made("td"), made("td"), made("td"));
  }
  const steps = made("td", { textContent: short(run.timesteps ?? 0) });
  if (run.total) {
    steps.textContent += ` of ${short(run.total)}`;
    steps.append(made("progress", { max: run.total, value: Math.min(run.timesteps, run.total), ariaLabel: "steps done" }));
  }
  const cell = (text) => made("td", { className: "number", textContent: text });
  const number = (value) => (value === null || value === undefined ? "" : short(value));
  return made("tr", {}, first, made("td", { className: run.state, textContent: run.state }), steps,
    cell(number(run.steps_per_second)), cell(number(run.return)), cell(duration(run.seconds_left)));
}

function renderRuns(shown) {
  const focused = document.activeElement?.closest("#runs tr")?.dataset.key;
  const keys = [...(store.metrics.length ? [SENT] : []), ...runs.keys()];
  const order = (key) => (key === SENT ? Infinity : (runs.get(key).state === "running" ? 1e12 : 0) + (runs.get(key).updated ?? 0));
  const rows = keys.sort((a, b) => order(b) - order(a)).map((key) => {
    const row = rowOf(key, shown);
    row.dataset.key = key;
    return row;
  });
  document.querySelector("#runs tbody").replaceChildren(...rows);
  if (focused !== undefined) rows.find((row) => row.dataset.key === focused)?.querySelector("input").focus();
}

function renderServing(shown) {
  const serving = shown.filter((key) => key !== SENT && Object.keys(runs.get(key).serving).length);
  byId("serving").hidden = !serving.length;
  byId("tiles").replaceChildren(...serving.flatMap((key) => Object.entries(runs.get(key).serving).map(([name, value]) => {
    const title = name.replace(/^serving\//, "").replaceAll("_", " ");
    const owner = serving.length > 1 ? ` (${nameOf(key)})` : "";
    return made("div", { className: "tile" }, made("b", { textContent: short(value) }), made("span", { textContent: title + owner }));
  })));
}

function renderPictures(shown) {
  const seen = shown.filter((key) => key !== SENT && runs.get(key).picture).slice(0, MOST_CHOSEN);
  byId("pictures").hidden = !seen.length;
  const source = (key) => `/api/runs/${key}/picture?version=${runs.get(key).picture.version}`;
  const now = seen.map(source).join();
  if (byId("figures").dataset.shown === now) return;
  byId("figures").dataset.shown = now;
  byId("figures").replaceChildren(...seen.map((key) => {
    const { name, type } = runs.get(key).picture;
    const caption = `${nameOf(key)}: ${name}`;
    const film = { src: source(key), controls: true, loop: true, muted: true, autoplay: true };
    const media = type.startsWith("video") ? made("video", film) : made("img", { src: source(key), alt: caption });
    return made("figure", {}, media, made("figcaption", { textContent: caption }));
  }));
}

async function renderHistograms() {
  if (barsOf === store.version) return;
  barsOf = store.version;
  const names = store.histograms.slice(0, 6);
  byId("histograms").hidden = !names.length;
  const answers = await Promise.all(names.map((name) => asked(`/api/histograms?${new URLSearchParams({ name })}`)));
  const drawn = names.map((name, i) => {
    const last = answers[i]?.histograms.at(-1);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("class", "chart");
    return { last, svg, box: made("article", {}, made("h3", { textContent: `${name} at ${short(last?.x ?? 0)}` }), svg) };
  });
  byId("bars").replaceChildren(...drawn.map(({ box }) => box));
  for (const { last, svg } of drawn) if (last) drawBars(svg, last);
}

function newChart() {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "chart");
  svg.setAttribute("role", "img");
  const chart = { svg, metric: null, options: "", select: made("select", { ariaLabel: "metric" }) };
  chart.tip = made("div", { className: "tip", hidden: true });
  const remove = made("button", { type: "button", textContent: "remove" });
  const at = () => charts.indexOf(chart);
  const metrics = () => charts.map((each) => each.metric);
  chart.select.addEventListener("change", () => choose({ metrics: metrics().with(at(), chart.select.value) }));
  remove.addEventListener("click", () => choose({ metrics: metrics().toSpliced(at(), 1) }));
  chart.box = made("article", {}, made("div", { className: "bar" }, chart.select, remove), svg, chart.tip);
  return chart;
}

function offer(chart, names) {
  const listed = JSON.stringify(names);
  if (chart.options !== listed) {
    chart.options = listed;
    const groups = Map.groupBy(names, (name) => (name.includes("/") ? name.split("/")[0] : ""));
    chart.select.replaceChildren(...[...groups].map(([label, members]) => {
      const options = members.map((name) => made("option", { value: name, textContent: name }));
      return made("optgroup", { label: label || "others" }, ...options);
    }));
  }
  chart.select.value = chart.metric;
}

function drawChart(chart, keys) {
  const series = keys.filter((key) => metricsOf(key).includes(chart.metric)).map((key) => {
    const curve = curves.get(`${key} ${chart.metric}`)?.curve ?? { points: [] };
    return { label: nameOf(key), slot: slotOf(key), points: curve.points, seeds: curve.seeds ?? [], spread: curve.spread ?? [] };
  });
  const measured = unit(chart.metric);
  const label = { x: "environment steps", y: measured ? `${chart.metric} (${measured})` : chart.metric, unit: measured };
  const last = series.filter((each) => each.points.length).map((each) => `${each.label}: ${exact(each.points.at(-1)[1])}`);
  chart.svg.setAttribute("aria-label", `${chart.metric}, newest values: ${last.join(", ") || "none"}`);
  drawCurves(chart.svg, series, label, chosen.smooth, chart.tip);
}

function renderCharts(keys) {
  const metrics = shownMetrics(keys);
  while (charts.length < metrics.length) charts.push(newChart());
  charts = charts.slice(0, metrics.length);
  const boxes = charts.map((chart) => chart.box);
  if (boxes.length !== byId("charts").children.length) byId("charts").replaceChildren(...boxes);
  const names = [...new Set([...keys.flatMap(metricsOf), ...metrics])].sort();
  charts.forEach((chart, i) => {
    chart.metric = metrics[i];
    offer(chart, names);
    drawChart(chart, keys);
  });
}

async function asked(address) {
  const answer = await fetch(address);
  return answer.ok ? answer.json() : null;
}

/** Request the displayed curves that have changed. */
async function refreshCurves(keys) {
  const wanted = keys.flatMap((key) => charts.map((chart) => [key, chart.metric]));
  await Promise.all(wanted.map(async ([key, metric]) => {
    const place = `${key} ${metric}`;
    const version = versionOf(key);
    if (!metricsOf(key).includes(metric) || curves.get(place)?.version === version) return;
    const query = new URLSearchParams({ name: metric, ...(key === SENT ? {} : { run: key }), most: MOST_DRAWN });
    const curve = await asked(`/api/scalars?${query}`);
    curve?.points.sort((a, b) => a[0] - b[0]); // clients may send steps in any order
    if (curve) curves.set(place, { version, curve });
  }));
}

async function render() {
  if (busy) {
    again = true; // render again with the data received meanwhile
    return;
  }
  busy = true;
  try {
    do {
      again = false;
      const keys = shownRuns();
      renderRuns(keys);
      renderServing(keys);
      renderPictures(keys);
      renderCharts(keys);
      await refreshCurves(keys);
      for (const chart of charts) drawChart(chart, keys);
      await renderHistograms();
    } while (again);
  } finally {
    busy = false;
  }
}

function say(state, text) {
  byId("live").className = state;
  byId("live").textContent = text;
}

function take(changes) {
  for (const run of changes.runs) runs.set(String(run.index), run);
  for (const key of [...runs.keys()]) if (!changes.indices.includes(Number(key))) runs.delete(key);
  store = changes.store;
  byId("places").textContent = changes.places;
  const nothing = changes.ready && !runs.size && !store.metrics.length;
  const notes = nothing ? ["No runs here yet: they appear as soon as they start."] : changes.notes;
  byId("note").hidden = !notes.length;
  byId("note").textContent = notes.join(" ");
  say("live", changes.ready ? "live" : "reading the runs");
  render();
}

function connect() {
  const source = new EventSource("/events");
  source.onopen = () => {
    runs.clear(); // the server may have been restarted; its first event contains everything
    curves.clear();
    barsOf = -1;
  };
  source.onmessage = (event) => take(JSON.parse(event.data));
  source.onerror = () => {
    say("lost", "connection lost, trying again");
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  };
}

byId("smooth").value = chosen.smooth;
byId("smooth").addEventListener("input", () => choose({ smooth: Number(byId("smooth").value) }));
byId("add").addEventListener("click", () => {
  const keys = shownRuns();
  const shown = shownMetrics(keys);
  const next = keys.flatMap(metricsOf).find((name) => !shown.includes(name)) ?? shown[0];
  if (next) choose({ metrics: [...shown, next] });
});
new ResizeObserver(([entry]) => {
  if (entry.contentRect.width === width) return;
  width = entry.contentRect.width;
  render();
}).observe(byId("charts"));
connect();
