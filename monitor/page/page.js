// The live page: a message a second from /events, the past from /history.json. All text of a run goes in as text.

import { Chart, SPANS, Store } from "./charts.js";
import { fill, table } from "./tables.js";
import * as words from "./words.js";

const { NONE } = words;
const find = (id) => document.getElementById(id);
const PEAKS = new Set(["lag_p99", "lag_max", "resident_bytes"]);
const BIG = { height: 160, zero: true, tick: words.tick };
const SMALL = { height: 88, zero: true, tick: words.tick, narrow: true };
const number = (value) => words.number(value);

const line = (name, label, colour, dash) => ({ name, label, colour: `--s${colour}`, dash });

const LIMIT = { name: "", label: "limit", colour: "--bad", dash: "dotted", constant: null };

const CHARTS = [
  { id: "steps", title: "Throughput", unit: "agent-steps/s", format: words.perSecond,
    series: [line("steps_trained", "trained", 1), line("steps_produced", "made", 2, "dashed")] },
  { id: "bytes", title: "Bandwidth", unit: "B/s, written into the rings", format: words.bytesPerSecond,
    series: [line("bytes_packed", "packed", 1), line("bytes_unpacked", "unpacked", 2, "dashed")] },
  { id: "score", title: "Score", unit: "mean of the last episodes", format: number, zero: false,
    series: [line("score_mean", "mean", 1), line("score_best", "best", 2, "dashed")] },
  { id: "lag", title: "Staleness", unit: "versions behind, of steps trained on", format: number, top: 1.2,
    series: [line("lag_mean", "mean", 1), line("lag_p99", "p99", 3, "dashed"), line("lag_max", "max", 2, "dotted"), LIMIT] },
  { id: "producer", title: "Producers' time", format: words.share, tick: words.share, stacked: true,
    series: [line("producer_simulator", "simulator", 1), line("producer_policy", "policy", 2),
      line("producer_waiting", "waiting", 4)] },
  { id: "learner", title: "Learners' time", format: words.share, tick: words.share, stacked: true,
    series: [line("learner_forward", "forward", 1), line("learner_backward", "backward", 2),
      line("learner_optimizer", "optimizer", 3), line("learner_waiting", "waiting", 4)] },
];

const MINIS = [
  { id: "loss_policy", title: "Policy loss", zero: false, series: [line("loss_policy", "policy loss", 1)] },
  { id: "loss_value", title: "Value loss", series: [line("loss_value", "value loss", 1)] },
  { id: "entropy", title: "Entropy", unit: "of uniform", series: [line("entropy_ratio", "entropy", 1)] },
  { id: "kl", title: "KL divergence", series: [line("approx_kl", "KL", 1)] },
  { id: "variance", title: "Explained variance", zero: false, floor: -1, series: [line("explained_variance", "explained variance", 1)] },
  { id: "norm", title: "Gradient norm", series: [line("grad_norm", "norm", 1)] },
  { id: "clipped", title: "Clipped", unit: "of steps", format: words.percent, tick: words.percent,
    series: [line("clipped_ratio", "clipped", 1)] },
  { id: "rate", title: "Learning rate", series: [line("learning_rate", "rate", 1)] },
  { id: "age", title: "Age of slots", unit: "s", series: [line("age_seconds", "age", 1)] },
  { id: "fill", title: "Rings", unit: "filled", format: words.share, tick: words.share, top: 1, series: [line("fill", "filled", 1)] },
  { id: "memory", title: "Memory", unit: "B, resident", format: words.bytes, series: [line("resident_bytes", "memory", 1)] },
  { id: "cores", title: "CPU", unit: "cores", series: [line("cores", "cores", 1)] },
];

const store = new Store(PEAKS);
const charts = [
  ...CHARTS.map((spec) => new Chart({ ...BIG, ...spec }, store, find("charts"))),
  ...MINIS.map((spec) => new Chart({ ...SMALL, format: number, ...spec }, store, find("minis"))),
];
const events = new Map();
let told = { state: null, alarms: new Map() };
let message = null;

// Spans of time

function remembered() {
  try { return Number(localStorage.getItem("headrace-span")) || null; } catch { return null; }
}

function offerSpans() {
  for (const [seconds, label] of SPANS) {
    const input = Object.assign(document.createElement("input"), { type: "radio", name: "span", value: seconds });
    input.checked = seconds === store.span;
    input.addEventListener("change", () => {
      try { localStorage.setItem("headrace-span", seconds); } catch { /* private windows keep nothing */ }
      show(seconds);
    });
    const choice = document.createElement("label");
    choice.append(input, Object.assign(document.createElement("span"), { textContent: label }));
    find("spans").append(choice);
  }
}

async function show(seconds) {
  store.span = seconds;
  const answer = await fetch(`/history.json?seconds=${seconds}`).catch(() => null);
  if (!answer?.ok || store.span !== seconds) return;  // another was chosen meanwhile
  const past = await answer.json();
  store.load(past);
  note(past.events);
  charts.forEach((chart) => { chart.summarized = chart.tabled = 0; });
  draw();
}

// What a message says

function tell(text) {
  const news = find("news");
  news.textContent = news.textContent === text ? `${text} ` : text;
}

function header(status, facts) {
  const name = status.name ?? "headrace", state = status.state ?? "starting";
  find("name").textContent = name;
  const badge = find("state");
  badge.textContent = state;
  badge.dataset.state = state;
  const bound = facts.mode === "sync" ? "on-policy: lag 0"
    : facts.mode === "lagged" ? `lag exactly ${facts.lag_limit}`
    : facts.lag_limit === null ? "no limit on the lag" : `lag limit ${facts.lag_limit}`;
  const said = [
    ["simulator", status.simulator], ["mode", `${facts.mode}, ${bound}`], ["correction", facts.correction],
    ["policy on", facts.placement], ["attempt", status.attempt],
  ].filter(([, value]) => value !== undefined && value !== null);
  fill(find("facts"), said.map(([what, value]) => [what, String(value)]));
  const count = message.alarms.length;
  document.title = `${count ? `(${count}) ` : ""}${name}: ${state}`;
  if (told.state !== state && told.state !== null) tell(`The run is ${state}`);
  told.state = state;
}

function alarms(found) {
  const list = find("alarm-list"), shown = new Map();
  for (const alarm of found) {
    const key = `${alarm.kind}/${alarm.key}`, item = told.alarms.get(key) ?? document.createElement("li");
    const parts = { severity: alarm.severity, kind: alarm.kind, text: alarm.text,
      since: `since ${words.when(alarm.since, message.time)}` };
    fill(item, Object.values(parts).map((text) => [text]));
    Object.keys(parts).forEach((name, i) => { item.children[i].className = name; });
    item.className = alarm.severity;
    if (list.children[shown.size] !== item) list.insertBefore(item, list.children[shown.size] ?? null);
    shown.set(key, item);
    if (!told.alarms.has(key)) tell(`${alarm.severity}: ${alarm.kind}. ${alarm.text}`);
  }
  for (const [key, item] of told.alarms) {
    if (shown.has(key)) continue;
    tell(`Over: ${item.children[1].textContent}`);
    item.remove();
  }
  find("calm").hidden = shown.size > 0;
  told.alarms = shown;
}

// What is left until one of the conditions that end a run.
function left(status, stop, point) {
  const each = [];
  if (stop.seconds) each.push(stop.seconds - status.seconds);
  if (stop.steps && point.steps_trained > 0) each.push((stop.steps - status.steps) / point.steps_trained);
  if (stop.versions && point.updates > 0) each.push((stop.versions - status.version) / point.updates);
  if (each.length) return `at most ${words.duration(Math.max(0, Math.min(...each)))} left`;
  return stop.steps || stop.versions || stop.score ? "" : "until it is stopped";
}

function now(status, point, disk, rings) {
  const { score = {}, lag = {}, bytes = {}, slots = {}, checkpoint = {} } = status;
  const stop = message.facts.stop, restarts = Object.values(status.restarts ?? {}).reduce((a, b) => a + b, 0);
  const working = message.processes.filter((one) => one.state === "running").length;
  const capacity = rings.reduce((sum, ring) => sum + ring.slots, 0);
  const flying = rings.reduce((sum, ring) => sum + ring.ready + ring.leased + ring.bad, 0);
  const evaluated = score.evaluated?.mean;
  const ago = checkpoint.last_unix ? `${words.duration(message.time - checkpoint.last_unix)} ago` : NONE;
  fill(find("now"), [
    ["Throughput", words.perSecond(point.steps_trained), `made ${words.perSecond(point.steps_produced)}`],
    ["Bandwidth", words.bytesPerSecond(point.bytes_packed), `unpacked ${words.bytesPerSecond(point.bytes_unpacked)}`],
    ["Steps", words.short(status.steps), stop.steps ? `of ${words.short(stop.steps)}` : `${words.whole(score.episodes)} episodes`],
    ["Bytes", words.exactBytes(bytes.packed), `unpacked ${words.exactBytes(bytes.unpacked)}`],
    ["Score", number(score.mean), evaluated !== undefined && evaluated !== null
      ? `evaluated ${number(evaluated)}` : `best ${number(score.best)}${stop.score ? ` · goal ${number(stop.score)}` : ""}`],
    ["Lag", number(lag.mean), `p99 ${lag.p99 ?? NONE} · max ${lag.max ?? NONE} · limit ${lag.limit ?? "none"}`],
    ["Version", words.whole(status.version), `${number(point.updates)} updates/s`],
    ["Running", words.duration(status.seconds), left(status, stop, point)],
    ["Rings", `${flying} of ${capacity}`, `slots in flight · ${words.short(slots.dropped)} dropped`],
    ["Checkpoint", ago, `${checkpoint.count ?? 0} written${checkpoint.failures ? ` · ${checkpoint.failures} failed` : ""}`],
    ["Processes", `${working} of ${message.processes.length}`, `${restarts} restarts · ${number(point.cores, 2)} cores`],
    ["Disk", words.bytes(disk.free_bytes), `free · run uses ${words.bytes(status.run_dir?.bytes)}`],
  ]);
}

const SLOT_KINDS = ["writing", "leased", "ready", "bad"];
const MOST_CELLS = 16;
const GONE = ["failed", "exited", "backoff"];

function cells(ring) {
  const held = SLOT_KINDS.flatMap((kind) => Array(ring[kind]).fill(kind));
  const kinds = [...held, ...Array(Math.max(0, ring.slots - held.length)).fill("free")].slice(0, ring.slots);
  const scale = Math.min(1, MOST_CELLS / ring.slots);
  const shown = Array.from({ length: Math.round(ring.slots * scale) }, (_, i) => kinds[Math.floor(i / scale)]);
  return shown.map((kind) => Object.assign(document.createElement("span"), { className: `slot ${kind}` }));
}

function tables(rings, processes) {
  table(find("rings"), "Rings", ["ring", "slots", "in flight", "committed", "consumed", "dropped", "again"],
    rings.map((ring, number) => [String(number), { nodes: cells(ring), key: SLOT_KINDS.map((kind) => ring[kind]).join() },
      `${ring.ready + ring.leased + ring.bad} of ${ring.slots}`, words.whole(ring.committed),
      words.whole(ring.consumed), words.whole(ring.dropped), words.whole(ring.redelivered)]));
  table(find("processes"), "Processes", ["process", "state", "doing", "core", "CPU", "memory", "restarts", "heard", "pid"],
    processes.map((one) => {
      const dead = GONE.includes(one.state), unheard = dead || one.silent_seconds === null;
      return [`${one.role} ${one.index}`, { text: one.state, state: one.state }, dead ? NONE : one.phase,
        one.core === null ? NONE : String(one.core), words.share(one.cpu), words.bytes(one.resident_bytes || null),
        String(one.restarts), unheard ? NONE : `${one.silent_seconds.toFixed(1)} s`, dead ? NONE : String(one.pid || NONE)];
    }));
}

function note(found) {
  for (const event of found) events.set(event.number, event);
  const newest = [...events.values()].sort((a, b) => b.number - a.number).slice(0, 200);
  events.clear();
  for (const event of newest) events.set(event.number, event);
}

function listEvents() {
  table(find("events"), "Events", ["time", "process", "event", "details"], [...events.values()].map((event) =>
    [words.when(event.time, message.time), event.who, event.what, event.text]));
}

function notes(warnings) {
  find("notes").hidden = !warnings.length;
  fill(find("notes").lastElementChild, warnings.map((text) => [text]));
}

function draw() {
  if (!document.hidden) charts.forEach((chart) => chart.draw());
}

function receive(next) {
  message = next;
  LIMIT.constant = next.facts.lag_limit;
  header(next.status, next.facts);
  alarms(next.alarms);
  notes(next.status.warnings ?? []);
  now(next.status, next.point, next.disk, next.rings);
  tables(next.rings, next.processes);
  note(next.events);
  listEvents();
  store.add(next.time, next.point);
  draw();
}

// The connection

function connect() {
  const source = new EventSource("/events"), line = find("connection");
  let lost = null;
  source.addEventListener("open", () => {
    if (lost !== null) tell("Connected again");
    lost = null;
    line.hidden = true;
    document.body.classList.remove("old");
    show(store.span);
  });
  source.addEventListener("message", (event) => receive(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    if (lost === null) {
      lost = new Date();
      tell("The connection is lost");
    }
    const over = ["done", "stopped", "failed"].includes(message?.status.state);
    line.textContent = over ? `The run is over, and its exporter with it; these are the last figures.`
      : `No connection since ${words.clock(lost / 1000)}; what is shown is of then. Trying again.`;
    line.hidden = false;
    document.body.classList.add("old");
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  });
}

offerSpans();
const wanted = remembered();
if (SPANS.some(([seconds]) => seconds === wanted)) {
  store.span = wanted;
  for (const input of find("spans").querySelectorAll("input")) input.checked = Number(input.value) === wanted;
}
document.addEventListener("visibilitychange", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
connect();
