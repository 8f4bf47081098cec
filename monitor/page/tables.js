// Tables and lists that change in place, so that a selection, a scroll position and a screen reader stay where they are.

// A table of texts in `place`. A cell is a text, {text, state}, or {nodes, key}: nodes are put in when the key changes.
export function table(place, caption, heads, rows) {
  let body = place.querySelector("tbody");
  if (!body) {
    const made = document.createElement("table"), row = document.createElement("tr");
    made.append(cell("caption", caption, "unseen"));
    row.append(...heads.map((text) => Object.assign(cell("th", text), { scope: "col" })));
    made.createTHead().append(row);
    body = made.createTBody();
    place.append(made);
  }
  resize(body, rows.length, () => {
    const row = document.createElement("tr");
    row.append(...heads.map((_, i) => (i ? cell("td", "") : Object.assign(cell("th", ""), { scope: "row" }))));
    return row;
  });
  rows.forEach((row, at) => row.forEach((value, i) => write(body.children[at].children[i], value)));
}

// The children of `place`: a row of spans each, or for a <dl> a group of name, value and remark.
export function fill(place, rows) {
  const list = place.tagName === "DL";
  const tags = list ? ["dt", "dd", "dd"] : ["span", "b"];
  const wrap = list ? "div" : place.tagName === "UL" ? "li" : "span";
  resize(place, rows.length, () => {
    const group = document.createElement(wrap);
    group.append(...rows[0].map((_, i) => cell(tags[i], "")));
    return group;
  });
  rows.forEach((row, at) => row.forEach((value, i) => write(place.children[at].children[i], value)));
}

function cell(tag, text, className = "") {
  return Object.assign(document.createElement(tag), { textContent: text, className });
}

function resize(place, count, make) {
  while (place.children.length > count) place.lastElementChild.remove();
  while (place.children.length < count) place.append(make());
}

function write(element, value) {
  if (typeof value === "string") {
    if (element.textContent !== value) element.textContent = value;
  } else if (value.nodes) {
    if (element.dataset.key !== value.key) element.replaceChildren(...value.nodes);
    element.dataset.key = value.key;
  } else {
    write(element, value.text);
    element.dataset.state = value.state;
  }
}
