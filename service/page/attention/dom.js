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

/** Why a part is not there, in its place. */
export const refusal = (why) => make("p", { className: "bad", role: "alert" }, why);

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

/** Makes a place hold these elements; those that it holds in this order already are not touched. */
export function arrange(place, elements) {
  if (place.children.length !== elements.length || elements.some((element, i) => place.children[i] !== element)) place.replaceChildren(...elements);
}

/** Fills a place anew; the control in focus keeps it, or leaves it to the current step; what was open stays open. */
export function refill(place, ...children) {
  const focus = place.contains(document.activeElement) && nameOf(document.activeElement);
  const open = [...place.querySelectorAll("details[open] > summary")].map(nameOf);
  place.replaceChildren(...children);
  for (const summary of place.querySelectorAll("summary")) summary.parentElement.open ||= open.includes(nameOf(summary));
  const controls = [...place.querySelectorAll("button:not(:disabled), select, summary")];
  if (focus) (controls.find((control) => nameOf(control) === focus) ?? place.querySelector("[aria-current]"))?.focus({ preventScroll: true });
}

const nameOf = (control) => control.ariaLabel ?? control.labels?.[0]?.firstChild.textContent ?? control.textContent;

/** What is hidden until it is opened; `fill` makes it then, once. */
export function folded(title, fill) {
  const details = make("details", {}, make("summary", {}, title));
  details.addEventListener("toggle", () => details.append(fill()), { once: true });
  return details;
}

export const fixed = (value, digits = 4) => (value === null || Number.isNaN(value) ? "\u2013" : value.toFixed(digits));
