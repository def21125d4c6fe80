// Elements and colours of the page. Text is only ever set as text: what people type is never read as markup.

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

/** Makes a button; `act` is called with its event. */
export const button = (title, act, properties = {}) => make("button", { type: "button", onclick: act, ...properties }, title);

/** Makes a token that may stand next to others: its direction is its own, and its blanks are seen. */
export const token = (text) => make("bdi", {}, marked(text));

/** A token whose blanks are seen. */
export const marked = (text) => text.replace(/ /g, "\u2423") || "\u2205";

/** Says why a part is not there, in its place. */
export const refusal = (why) => make("p", { className: "bad", role: "alert" }, why);

/** Makes a labelled choice; `change` gets the chosen value. */
export function choice(label, options, value, change) {
  const select = make("select", { onchange: () => change(select.value) });
  for (const [name, text] of options) select.append(make("option", { value: name }, text));
  select.value = value;
  return make("label", {}, label, select);
}

/** Makes a table whose first column names its rows; `over` stands over the other columns' names. */
export function table(caption, columns, rows, over) {
  const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)));
  const group = over ? [make("tr", {}, make("td"), make("th", { scope: "colgroup", colSpan: columns.length - 1, className: "over" }, over))] : [];
  const body = rows.map(([name, ...cells]) =>
    make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((cell) => (cell instanceof Element && cell.tagName === "TD" ? cell : make("td", {}, cell)))));
  return scrolled(caption, make("table", {}, make("caption", {}, caption), make("thead", {}, ...group, head), make("tbody", {}, ...body)));
}

/** Copies a text, where it can: the clipboard needs HTTPS or localhost. */
export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** Makes a box that scrolls, reachable by keyboard. */
export function scrolled(name, ...children) {
  const box = make("div", { className: "scroll", tabIndex: 0, role: "group", "aria-label": name }, ...children);
  box.prepend(more(box, children));
  return box;
}

/** Makes a line that says that a box scrolls sideways, while there is more than it shows: not every system draws its bars. */
export function more(box, children) {
  const said = make("p", { className: "more", hidden: true }, "Scroll sideways for more \u2192");
  const watch = new ResizeObserver(() => (said.hidden = box.scrollWidth <= box.clientWidth + 1));
  for (const each of [box, ...children]) watch.observe(each);
  return said;
}

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

/** Hides something until it is opened; `fill` makes it then, once. */
export function folded(title, fill) {
  const details = make("details", {}, make("summary", {}, title));
  details.addEventListener("toggle", () => details.append(fill()), { once: true });
  return details;
}

export const fixed = (value, digits = 4) => (value === null || Number.isNaN(value) ? "\u2013" : value.toFixed(digits));

// One ramp of lightness, from the paper's to a strong blue: it reads without hue. What is less than nothing has its own, in orange.

const LIGHT = [[255, 255, 255], [199, 220, 240], [108, 168, 210], [33, 104, 168], [8, 41, 92]];
const DARK = [[20, 24, 30], [27, 58, 97], [44, 107, 163], [110, 176, 219], [233, 246, 255]];
const LESS_LIGHT = [[255, 255, 255], [252, 221, 193], [246, 172, 107], [214, 108, 28], [120, 50, 5]];
const LESS_DARK = [[20, 24, 30], [87, 50, 20], [156, 87, 31], [226, 154, 88], [255, 240, 225]];

const dark = matchMedia("(prefers-color-scheme: dark)");

// A change of the theme repaints what is drawn, and leaves all else as it is
dark.addEventListener("change", () => {
  for (const canvas of document.querySelectorAll("canvas")) if (painted.has(canvas)) paint(canvas, ...painted.get(canvas));
});

/** Returns the colour of a share from 0 to 1 on a ramp, as [red, green, blue]. */
function colour(share, ramp) {
  const place = Math.min(1, Math.max(0, share || 0)) * (ramp.length - 1);
  const low = Math.min(ramp.length - 2, Math.floor(place));
  return ramp[low].map((from, i) => Math.round(from + (ramp[low + 1][i] - from) * (place - low)));
}

/** Returns the colour of a share on paper, from -1 to 1. */
export const printed = (share) => `rgb(${colour(Math.abs(share), share < 0 ? LESS_LIGHT : LIGHT).join(",")})`;

/** Colours a cell of a table by a share from -1 to 1, with ink that can be read on it; in the reader's theme, also of a page that is kept. */
export function shade(element, share) {
  element.style.background = shadeOf(share);
  element.style.color = `light-dark(${inThemes(share).map((channels) => (luminance(...channels) > 0.179 ? "#000" : "#fff"))})`;
}

/** The colour of a share in both themes, as [red, green, blue] each, and as CSS. */
const inThemes = (share) => (share < 0 ? [LESS_LIGHT, LESS_DARK] : [LIGHT, DARK]).map((ramp) => colour(Math.abs(share), ramp));
const shadeOf = (share) => `light-dark(${inThemes(share).map((channels) => `rgb(${channels.join(" ")})`)})`;

/** Makes a number's cell in a table, coloured by a share. */
export function shaded(value, share) {
  const cell = make("td", { className: "shade" }, fixed(value));
  shade(cell, share);
  return cell;
}

export const TICKS = [0, 0.05, 0.25, 0.5, 1]; // of the scale of shares

/**
 * Makes the legend of a map: its colours, with numbers, and what these are.
 * @param largest of other numbers than shares, whose colour is that of their square root: the one of the deepest colour, with either sign
 * @param deepest how far along the ramp the deepest colour lies
 * @param least 0 where what is less than nothing has no colour
 */
export function legend(unit, largest, deepest = 1, least = -largest) {
  const linear = largest !== undefined, ticks = (linear ? [...new Set([least, 0, largest])] : TICKS).map((value) => [value, String(Number(value.toPrecision(3)))]);
  const at = (value) => (linear ? (value - least) / (largest - least || 1) : Math.sqrt(value)), from = least < 0 ? -1 : 0;
  const bar = make("span", { className: "ramp" }), numbers = make("span", { className: "ticks" });
  bar.style.background = `linear-gradient(to right, ${Array.from({ length: 17 }, (_, i) => shadeOf(deepest * (from + ((1 - from) * i) / 16))).join(", ")})`;
  for (const [value, text] of ticks) {
    const tick = make("span", {}, text);
    tick.style.left = `calc(2rem + ${at(value)} * (100% - 4rem))`; // the ramp has as much room at both ends
    numbers.append(tick);
  }
  return make("div", { className: "legend", role: "group", "aria-label": `Legend: ${unit}` }, make("span", { className: "scale" }, bar, numbers), make("span", {}, unit));
}

/** Makes an element of SVG. */
export function draw(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Returns relative luminance, by WCAG 2.2: above 0.179 black is read more easily than white. */
function luminance(...channels) {
  const [red, green, blue] = channels.map((value) => (value <= 10 ? value / 3295 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

const LEVELS = 255;
// Each level's colour as a pixel, from -LEVELS to LEVELS, of both themes
const [LIGHT_PIXELS, DARK_PIXELS] = [[LIGHT, LESS_LIGHT], [DARK, LESS_DARK]].map(([ramp, less]) => {
  const bytes = new Uint8ClampedArray(4 * (2 * LEVELS + 1));
  for (let level = -LEVELS; level <= LEVELS; level++) bytes.set([...colour(Math.abs(level) / LEVELS, level < 0 ? less : ramp), 255], 4 * (level + LEVELS));
  return new Uint32Array(bytes.buffer);
});
const painted = new WeakMap(); // what each canvas shows

/** Paints a matrix into a canvas, one pixel a value, in the colour that `scale` gives it, from -1 to 1; the square root of a share shows small ones, too. */
export function paint(canvas, { values, rows, columns }, scale = Math.sqrt, levels = dark.matches ? DARK_PIXELS : LIGHT_PIXELS) {
  painted.set(canvas, [{ values, rows, columns }, scale]);
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows), out = new Uint32Array(image.data.buffer);
  for (let i = 0; i < values.length; i++) {
    const level = Math.round(LEVELS * scale(values[i])) || 0; // of NaN, 0
    out[i] = levels[Math.max(-LEVELS, Math.min(LEVELS, level)) + LEVELS];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** A canvas as a picture that follows its reader's theme, with nothing but itself. */
export function kept(canvas) {
  const [light, night] = [LIGHT_PIXELS, DARK_PIXELS].map((levels) => {
    const copy = make("canvas");
    paint(copy, ...painted.get(canvas), levels);
    return copy.toDataURL();
  });
  const image = make("img", { src: light, alt: canvas.getAttribute("aria-label") ?? "", className: `copied ${canvas.className}` });
  return make("picture", {}, make("source", { media: "(prefers-color-scheme: dark)", srcset: night }), image);
}
