// Elements of the page. Text is only ever set as text: what people type is never read as markup.

export const at = (id) => document.getElementById(id);

/** Makes an element; properties that are no properties of it are set as attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** A token as it may stand beside others: its direction is its own, and its blanks are seen. */
export const token = (text) => make("bdi", {}, text.replace(/ /g, "\u2423") || "\u2205");

/** A labelled choice; `change` gets the chosen value. */
export function choice(label, options, value, change) {
  const select = make("select", { onchange: () => change(select.value) });
  for (const [name, text] of options) select.append(make("option", { value: name }, text));
  select.value = value;
  return make("label", {}, label, select);
}

/** A table whose first column names its rows. */
export function table(caption, columns, rows) {
  const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)));
  const body = rows.map(([name, ...cells]) =>
    make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((cell) => (cell instanceof Element && cell.tagName === "TD" ? cell : make("td", {}, cell)))));
  return scrolled(caption, make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...body)));
}

/** A box that scrolls, reachable by keyboard. */
export const scrolled = (name, ...children) => make("div", { className: "scroll", tabIndex: 0, role: "group", "aria-label": name }, ...children);

/** What is hidden until it is opened; `fill` makes it then, once. */
export function folded(title, fill) {
  const details = make("details", {}, make("summary", {}, title));
  details.addEventListener("toggle", () => details.append(fill()), { once: true });
  return details;
}

export const fixed = (value, digits = 4) => (value === null || Number.isNaN(value) ? "\u2013" : value.toFixed(digits));
