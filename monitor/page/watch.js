// The agent at play: frames from /watch while somebody wants to see them, and wishes to it. All who watch see the same.

import { fill, table } from "./tables.js";
import * as words from "./words.js";

const { NONE } = words;
const SPEEDS = [1, 2, 5, 10, 15, 30, 60];
const RETRY_MS = 3000;
const MINE_MS = 1500;  // so long a control shows what was chosen here, whatever the last frame says
const LETTER_WIDTH = 0.61;  // of a monospaced font, in parts of its size
const LABEL_MS = 2000;  // between two descriptions of a picture that moves, which a screen reader may read

const section = document.getElementById("watch");
const parts = {};
let source = null, wanted = false, frame = null, drawn = 0, chosen = 0, labelled = 0;

// What stands there

function make(tag, properties = {}, ...children) {
  const { label, ...rest } = properties;
  const made = Object.assign(document.createElement(tag), rest);
  if (label) made.setAttribute("aria-label", label);
  made.append(...children);
  return made;
}

function named(text, control) {
  return make("label", {}, make("span", { textContent: text }), control);
}

function choice(values, name, change) {
  const options = values.map(([value, text]) => make("option", { value, textContent: text }));
  const made = make("select", { onchange: () => change(made.value) }, ...options);
  parts[name] = made;
  return made;
}

function button(text, name, press, keys) {
  const made = make("button", { type: "button", textContent: text, onclick: press });
  if (keys) made.setAttribute("aria-keyshortcuts", keys);
  parts[name] = made;
  return made;
}

function build() {
  const title = make("h2", { id: "watch-title", textContent: "The agent at play" });
  section.setAttribute("aria-labelledby", "watch-title");
  section.className = "watch";
  parts.agent = make("input", { type: "number", min: 0, value: 0,
    onchange: () => ask({ agent: Math.max(0, Math.round(Number(parts.agent.value)) || 0) }) });
  parts.greedy = make("input", { type: "checkbox", onchange: () => ask({ greedy: parts.greedy.checked }) });
  parts.controls = make("div", { className: "controls", hidden: true },
    button("Pause", "pause", () => ask({ paused: parts.pause.getAttribute("aria-pressed") !== "true" }), "p"),
    button("Step", "step", () => ask({ step: 1 }), "."),
    named("world", choice([], "world", (value) => ask({ world: Number(value) }))),
    named("agent", parts.agent),
    named("speed", choice(SPEEDS.map((speed) => [speed, `${speed} steps/s`]), "speed",
      (value) => ask({ speed: Number(value) }))),
    named("show", choice([["picture", "picture"], ["text", "text"]], "show", () => frame && draw(frame))),
    named("likeliest action", parts.greedy),
    make("span", { className: "hint", textContent: "p pauses, . steps" }));
  parts.note = make("p", { className: "note", hidden: true });
  parts.note.setAttribute("role", "status");
  parts.canvas = make("canvas", { width: 1, height: 1, label: "The world" });
  parts.canvas.setAttribute("role", "img");
  parts.text = make("pre", { tabIndex: 0, label: "What the simulator draws, as text" });
  parts.text.setAttribute("role", "region");
  parts.figures = make("dl", { className: "figures" });
  parts.heads = make("div", { className: "heads scroll", tabIndex: 0, label: "The policy's choices" });
  parts.heads.setAttribute("role", "region");
  parts.stage = make("div", { className: "stage-of-agent", hidden: true },
    make("div", { className: "screen" }, parts.canvas, parts.text),
    make("div", { className: "thoughts" }, parts.figures, parts.heads));
  button("Watch", "watch", toggle);
  parts.watch.setAttribute("aria-pressed", "false");
  section.append(make("div", { className: "head" }, title, parts.watch), parts.controls, parts.note, parts.stage);
  section.addEventListener("keydown", shortcut);
  document.addEventListener("visibilitychange", settle);
}

function shortcut(event) {
  if (!wanted || event.ctrlKey || event.metaKey || event.altKey || event.target.type === "number") return;
  const press = { p: parts.pause, ".": parts.step }[event.key];
  if (!press || event.target.tagName === "SELECT") return;
  event.preventDefault();
  press.click();
}

// Coming and going

function toggle() {
  wanted = !wanted;
  parts.watch.setAttribute("aria-pressed", String(wanted));
  parts.watch.textContent = wanted ? "Stop watching" : "Watch";
  parts.controls.hidden = !wanted;
  parts.stage.hidden = true;
  if (wanted) note("Waiting for the evaluator");
  else note("");
  settle();
}

// Nobody looks at a page that is hidden, and then nobody plays for it.
function settle() {
  const wants = wanted && !document.hidden;
  if (wants && !source) connect();
  if (!wants && source) {
    source.close();
    source = null;
  }
}

function connect() {
  const mine = new EventSource("/watch");
  source = mine;
  mine.addEventListener("message", (event) => receive(JSON.parse(event.data)));
  mine.addEventListener("error", () => {
    if (source !== mine) return;
    note("No connection to the evaluator; trying again");
    if (mine.readyState !== EventSource.CLOSED) return;
    source = null;
    setTimeout(() => { if (!source) settle(); }, RETRY_MS);
  });
}

async function ask(wish) {
  chosen = performance.now();
  const headers = { "Content-Type": "application/json" };
  try {
    const answer = await fetch("/watch", { method: "POST", headers, body: JSON.stringify(wish) });
    if (!answer.ok) note((await answer.text()).trim());
  } catch {
    note("No connection to the evaluator; trying again");
  }
}

function note(text) {
  if (parts.note.textContent !== text) parts.note.textContent = text;
  parts.note.hidden = !text;
}

// What a message says

function receive(message) {
  if (!wanted) return;
  controls(message);
  if (message.kind !== "frame") {
    note(message.text);
    return;
  }
  note(message.note ?? "");
  frame = message;
  parts.stage.hidden = false;
  draw(message);
  figures(message);
  heads(message.heads);
}

function controls({ wish, worlds, agents }) {
  if (parts.world.options.length !== worlds) {
    parts.world.replaceChildren(...Array.from({ length: worlds }, (_, i) => make("option", { value: i, textContent: i })));
  }
  if (agents !== undefined) {
    parts.agent.max = agents - 1;
    parts.agent.parentElement.hidden = agents === 1;
  }
  parts.pause.setAttribute("aria-pressed", String(wish.paused));
  parts.pause.textContent = wish.paused ? "Play" : "Pause";
  if (performance.now() - chosen < MINE_MS) return;
  const set = (control, value) => { if (control !== document.activeElement) control.value = value; };
  set(parts.world, wish.world);
  set(parts.agent, wish.agent);
  if (![...parts.speed.options].some((one) => Number(one.value) === wish.speed)) {
    parts.speed.append(make("option", { value: wish.speed, textContent: `${words.number(wish.speed)} steps/s` }));
  }
  set(parts.speed, wish.speed);
  parts.greedy.checked = wish.greedy;
}

async function draw(message) {
  const both = message.png !== null && message.text !== null;
  parts.show.parentElement.hidden = !both;
  const text = message.png === null || (both && parts.show.value === "text");
  parts.canvas.hidden = text;
  parts.text.hidden = !text;
  if (text) {
    write(message.text ?? "");
    return;
  }
  drawn += 1;
  const mine = drawn;
  const bytes = Uint8Array.from(atob(message.png), (letter) => letter.charCodeAt(0));
  const picture = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  if (mine !== drawn) return;  // a newer one has come meanwhile
  const { canvas } = parts;
  if (canvas.width !== picture.width || canvas.height !== picture.height) {
    canvas.width = picture.width;
    canvas.height = picture.height;
  }
  canvas.getContext("2d").drawImage(picture, 0, 0);
  if (!message.wish.paused && performance.now() - labelled < LABEL_MS) return;
  labelled = performance.now();
  canvas.setAttribute("aria-label",
    `World ${message.world}${message.agents > 1 ? `, around agent ${message.agent}` : ""}, step ${message.step}`);
}

// As large as there is room for most of its lines; a longer one, of figures, is scrolled to.
function write(text) {
  const lengths = text.split("\n").map((line) => [...line].length).sort((a, b) => a - b);
  const columns = Math.max(1, lengths[lengths.length >> 1]);
  const size = Math.min(15, Math.max(6, parts.text.clientWidth / columns / LETTER_WIDTH));
  parts.text.style.fontSize = `${size.toFixed(1)}px`;
  parts.text.textContent = text;
}

function figures(message) {
  const last = message.last;
  fill(parts.figures, [
    ["Reward", words.number(message.reward), "of the last step"],
    ["Return", words.number(message.return), `in ${words.whole(message.step)} steps`],
    ["Value", words.number(message.value), "what the policy expects, as it was trained to"],
    ["Action", message.heads.map((head) => words.number(head.action)).join(", "), "that comes next"],
    ["Version", words.whole(message.version), "of the weights that play"],
    ["Episode", words.whole(message.episode + 1), "of this world since it was chosen"],
    ["Last episode", last ? words.number(last.return) : NONE,
      last ? `return, ${words.whole(last.length)} steps; ${message.score} ${words.number(last.score)}` : "return"],
  ]);
}

function heads(found) {
  found.forEach((head, number) => {
    const name = found.length > 1 ? `Head ${number}` : "Actions";
    let place = parts.heads.children[number];
    if (!place) {
      place = make("div");
      parts.heads.append(place);
    }
    if (head.probabilities) discrete(place, name, head);
    else table(place, name, ["action", "mean", "deviation", "taken"],
      [[String(number), words.number(head.mean), words.number(head.std), words.number(head.action)]]);
  });
  while (parts.heads.children.length > found.length) parts.heads.lastElementChild.remove();
}

function discrete(place, name, head) {
  table(place, name, ["action", "probability", "as a bar", "taken"], head.probabilities.map((chance, action) =>
    [String(action), words.percent(chance), { nodes: [make("span", { className: "bar" })], key: "bar" },
      action === head.action ? "taken" : ""]));
  [...place.querySelectorAll("tbody tr")].forEach((row, action) => {
    row.classList.toggle("taken", action === head.action);
    row.querySelector(".bar").style.width = `${100 * (head.probabilities[action] ?? 0)}%`;
  });
}

if (!section.hidden) build();
