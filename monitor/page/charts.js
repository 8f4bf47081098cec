// Charts over time, and a table beside each. Drawing is uPlot's (uplot.js); colours are the page's variables.
/* global uPlot */

import { clock, dated, day, minute, NONE } from "./words.js";

const TABLE_ROWS = 15;
const TABLE_SECONDS = 5;
const SUMMARY_SECONDS = 30;
const DASHES = { solid: undefined, dashed: [7, 4], dotted: [2, 3] };

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function element(tag, properties = {}, children = []) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// One figure: heading, legend with values, picture, table. `spec`: {id, title, unit, format, series: [{name, label,
// colour, dash}], stacked, zero, top, floor,
// tick, narrow, height}.
export class Chart {
  constructor(spec, store, place) {
    this.spec = spec;
    this.store = store;
    this.summarized = this.tabled = 0;
    this.build(place);
    this.plot = new uPlot(this.options(), this.data(), this.picture);
    this.plot.chart = this;
    new ResizeObserver(() => this.resize()).observe(this.picture);
  }

  build(place) {
    const { spec } = this;
    this.values = spec.series.map(() => element("span", { className: "value", textContent: NONE }));
    const legend = spec.series.map((one, i) => {
      const swatch = element("span", { className: `swatch ${spec.stacked ? "area" : one.dash ?? "solid"}` });
      swatch.style.setProperty("--c", `var(${one.colour})`);
      return element("li", {}, [swatch, element("span", { textContent: one.label }), this.values[i]]);
    });
    this.when = element("li", { className: "when" });
    this.picture = element("div", { className: "picture" });
    this.picture.setAttribute("role", "img");
    this.frame = element("div", { className: "frame", tabIndex: 0 }, [this.picture]);
    this.frame.setAttribute("role", "group");
    this.frame.setAttribute("aria-label", `${spec.title}: arrow keys move through time`);
    this.frame.addEventListener("keydown", (event) => this.key(event));
    this.frame.addEventListener("blur", () => this.point(null));
    this.frame.addEventListener("mousemove", () => { this.store.pointed = null; }, { capture: true });
    this.empty = element("p", { className: "empty", textContent: "no figures yet" });
    this.body = element("tbody");
    const heads = ["time", ...spec.series.map((one) => one.label)];
    const head = element("tr", {}, heads.map((text) => element("th", { scope: "col", textContent: text })));
    const table = element("table", {}, [
      element("caption", { className: "unseen", textContent: spec.title }), element("thead", {}, [head]), this.body,
    ]);
    const scroll = element("div", { className: "scroll", tabIndex: 0 }, [table]);
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `${spec.title} as a table`);
    this.details = element("details", {}, [element("summary", {}, [element("span", { textContent: "Table" })]), scroll]);
    this.details.firstChild.setAttribute("aria-label", `Table of ${spec.title}`);
    this.details.addEventListener("toggle", () => { this.tabled = 0; this.tabulate(); });
    const unit = spec.unit ? [element("span", { className: "unit", textContent: spec.unit })] : [];
    place.append(element("figure", { className: "chart", id: `chart-${spec.id}` }, [
      element("figcaption", {}, [element("h3", { textContent: spec.title }), ...unit]),
      element("ul", { className: "legend" }, [...legend, this.when]),
      element("div", { className: "stage" }, [this.frame, this.empty]), this.details,
    ]));
  }

  options() {
    const { spec, store } = this;
    const stroke = (name) => () => colour(name);
    const axis = { stroke: stroke("--muted"), font: "11px system-ui, sans-serif", ticks: { show: false } };
    const series = spec.series.map((one) => ({
      stroke: stroke(one.colour), width: spec.stacked ? 0 : 1.5, dash: DASHES[one.dash ?? "solid"],
      points: { show: false }, fill: spec.stacked ? stroke(one.colour) : undefined,
    }));
    return {
      ...this.size(), series: [{}, ...(spec.stacked ? series.reverse() : series)],
      legend: { show: false },
      cursor: { sync: { key: "run" }, y: false, drag: { x: false, y: false }, points: { show: !spec.stacked, size: 6 } },
      scales: { x: { time: true, range: () => store.range() }, y: { range: (_, low, high) => this.range(low, high) } },
      axes: [
        { ...axis, space: spec.narrow ? 56 : 70, size: 22, gap: 3, grid: { show: false }, values: (_, marks) => marks.map((t) => this.mark(t, marks)) },
        { ...axis, space: spec.narrow ? 26 : 32, size: spec.narrow ? 42 : 44, gap: 4, grid: { stroke: stroke("--line"), width: 1 },
          values: (_, marks) => marks.map((value) => (this.empty.hidden ? spec.tick(value) : "")) },
      ],
      padding: [6, 16, 0, 0],
      hooks: { setCursor: [() => this.label()] },
    };
  }

  mark(time, marks) {
    const step = marks.length > 1 ? marks[1] - marks[0] : 60;
    return step >= 86400 ? day(time) : step >= 60 ? minute(time) : clock(time);
  }

  range(low, high) {
    const { spec } = this;
    if (spec.stacked) return [0, 1];
    if (low === null || high === null) return [0, spec.top ?? 1];
    if (spec.floor !== undefined) low = Math.max(low, spec.floor);  // one outlier would flatten the rest
    if (spec.zero) return [0, Math.max(1.08 * high, spec.top ?? 0) || 1];
    if (low === high) return low === 0 ? [-1, 1] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
    return [low - 0.06 * (high - low), high + 0.06 * (high - low)];
  }

  // [times, a list a series]; where areas are stacked, the highest sum comes first, so that the lower ones cover it.
  data() {
    const lists = this.spec.series.map((one) => this.list(one));
    if (!this.spec.stacked) return [this.store.times, ...lists];
    let below = this.store.times.map(() => 0);
    const sums = lists.map((list) => (below = list.map((value, i) => (value === null ? null : value + below[i]))));
    return [this.store.times, ...sums.reverse()];
  }

  size() {
    return { width: Math.max(120, this.picture.clientWidth), height: this.spec.height };
  }

  resize() {
    const { width } = this.size();
    if (width !== this.plot.width) this.plot.setSize(this.size());
  }

  draw() {
    this.empty.hidden = this.spec.series.some((one) => (this.store.series[one.name] ?? []).some((v) => v !== null));
    this.plot.setData(this.data());
    if (this.store.pointed !== null) this.aim();
    this.label();
    this.tabulate();
    this.summarize();
  }

  // Which point of time is looked at, by key or by mouse; null: none.
  at() {
    const { times, pointed } = this.store;
    if (pointed !== null) return times.includes(pointed) ? times.indexOf(pointed) : null;
    return this.plot.cursor.left >= 0 ? this.plot.cursor.idx ?? null : null;
  }

  // What the legend says: the values there, or the newest.
  label() {
    if (!this.plot) return;
    const at = this.at();
    this.spec.series.forEach((one, i) => {
      const list = this.list(one), value = at === null ? list[list.length - 1] : list[at];
      this.values[i].textContent = this.say(value);
    });
    this.when.textContent = at === null ? "" : dated(this.store.times[at]);
  }

  list(one) { return this.store.series[one.name] ?? this.store.constant(one.constant); }

  say(value) { return value === null || value === undefined ? NONE : this.spec.format(value); }

  key(event) {
    const { times } = this.store, now = this.at() ?? times.length;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 20, PageDown: now + 20, Home: 0, End: times.length - 1 };
    if (event.key === "Escape") this.point(null);
    if (!(event.key in to) || !times.length) return;
    event.preventDefault();
    this.point(times[Math.min(times.length - 1, Math.max(0, to[event.key]))]);
  }

  // Has all charts look at a time; null: at none.
  point(time) {
    this.store.pointed = time;
    for (const { chart } of uPlot.sync("run").plots) {
      chart.aim();
      chart.label();
    }
  }

  // Puts the line there.
  aim() {
    const { pointed } = this.store, nowhere = { left: -10, top: -10 };
    this.plot.setCursor(pointed === null ? nowhere : { left: this.plot.valToPos(pointed, "x"), top: 10 }, true, false);
  }

  tabulate() {
    const now = this.store.now();
    if (!this.details.open || now - this.tabled < TABLE_SECONDS) return;
    this.tabled = now;
    const { times } = this.store, step = Math.max(1, Math.floor(times.length / TABLE_ROWS)), rows = [];
    for (let at = times.length - 1; at >= 0 && rows.length < TABLE_ROWS; at -= step) {
      const cells = this.spec.series.map((one) => element("td", { textContent: this.say(this.list(one)[at]) }));
      rows.push(element("tr", {}, [element("th", { scope: "row", textContent: dated(times[at]) }), ...cells]));
    }
    this.body.replaceChildren(...rows);
  }

  // The picture in a sentence, for who cannot see it.
  summarize() {
    const now = this.store.now();
    if (now - this.summarized < SUMMARY_SECONDS) return;
    this.summarized = now;
    const parts = this.spec.series.map((one) => {
      const list = (this.store.series[one.name] ?? []).filter((value) => value !== null && value !== undefined);
      if (!list.length) return `${one.label}: none yet`;
      const low = list.reduce((a, b) => Math.min(a, b)), high = list.reduce((a, b) => Math.max(a, b));
      const [from, to, is] = [low, high, list[list.length - 1]].map(this.spec.format);
      return `${one.label} is ${is}, between ${from} and ${to}`;
    });
    this.picture.setAttribute("aria-label", `${this.spec.title} over the last ${this.store.words()}: ${parts.join("; ")}`);
  }
}

// What the charts draw: the past as the server keeps it, and a point a second.
export class Store {
  constructor(peaks) {
    this.peaks = peaks;
    this.span = 300;
    this.step = 1;
    this.times = [];
    this.series = {};
    this.latest = Date.now() / 1000;
    this.pointed = null;  // a time
  }

  now() { return this.latest; }

  range() { return [this.latest - this.span, this.latest]; }

  words() { return SPANS.find(([seconds]) => seconds === this.span)[2]; }

  constant(value) { return this.times.map(() => value ?? null); }

  load(past) {
    const names = Object.keys(past.series);
    this.step = past.step;
    this.times = [];
    this.series = Object.fromEntries(names.map((name) => [name, []]));
    past.times.forEach((time, i) => this.push(time, Object.fromEntries(names.map((name) => [name, past.series[name][i]]))));
  }

  add(time, point) {
    this.latest = time;
    const slot = Math.floor(time / this.step) * this.step, end = this.times.length - 1;
    if (slot !== this.times[end]) this.push(slot, point);
    else this.blend(end, point, time - slot);
    while (this.times.length && this.times[0] < time - this.span - this.step) {
      this.times.shift();
      for (const list of Object.values(this.series)) list.shift();
    }
  }

  push(time, point) {
    const end = this.times.length - 1;
    // Nobody looked in between: a gap, and no line across it.
    if (end >= 0 && time - this.times[end] > Math.max(5, 3 * this.step)) this.row(this.times[end] + this.step, {});
    this.row(time, point);
  }

  row(time, point) {
    for (const name of Object.keys(point)) this.series[name] ??= this.times.map(() => null);
    this.times.push(time);
    for (const [name, list] of Object.entries(this.series)) list.push(point[name] ?? null);
  }

  // A further second of a point that stands for several.
  blend(at, point, seconds) {
    for (const [name, value] of Object.entries(point)) {
      const list = (this.series[name] ??= this.times.map(() => null)), before = list[at];
      if (before === null) list[at] = value;
      else list[at] = this.peaks.has(name) ? Math.max(before, value) : before + (value - before) / (seconds + 1);
    }
  }
}

export const SPANS = [
  [300, "5 min", "5 minutes"], [3600, "1 h", "hour"], [21600, "6 h", "6 hours"], [86400, "24 h", "24 hours"],
  [604800, "7 d", "7 days"],
];
