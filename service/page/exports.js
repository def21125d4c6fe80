// What the page shows, taken away: numbers, pictures, the request, a page that stands alone.

import { at, button, copied, kept, make, scrolled } from "./dom.js";
import { curl } from "./api.js";
import { figure, pngOf, svgOf } from "./figure.js";
import { tell } from "./said.js";

/** Makes the buttons that need no head; `taken` gives {texts, answers} of what is shown now. */
const whole = (taken) => [
  button("JSON of the answers", () => saved(JSON.stringify(taken().answers, null, 1), "application/json", "headlight.json")),
  button("HTML of the page", () => saved(standalone(taken().texts), "text/html", "headlight.html"))];

/** Draws the buttons of a view without heads, which has a curl command of its own. */
export function drawWhole(section, taken) {
  section.hidden = false;
  section.replaceChildren(make("h2", {}, "Export"), make("div", { className: "bar" }, ...whole(taken)));
}

/** Draws the buttons of heads; `taken` gives {heads: [Head]} too. What it returns turns on those that can act by now. */
export function draw(section, taken) {
  const first = () => taken().heads.find((head) => head.map);
  const needs = (act) => ({ target }) => act(first(), target);
  const [box, copyCurl] = commands();
  const ofHead = [
    ...["matrix", "lines"].flatMap((kind) => pictures(kind, ` of the ${kind}`, (save) => needs((head) => save(head, head.words(), `${head.name}-${kind}`)))),
    button("CSV of the matrix", needs(({ name, labels, map }) => saved(csv(labels, labels, map.values), "text/csv", `${name}.csv`)))];
  const copy = button("Copy curl", needs((head, target) => copyCurl(target, "v1/encode", head.map.request)));
  const missing = make("p", { className: "note" }, "Pictures, CSV and curl are of an open head.");
  section.hidden = false;
  section.replaceChildren(make("h2", {}, "Export"), make("div", { className: "bar" }, ...ofHead, ...whole(taken), copy), missing, box);
  const turn = () => {
    missing.hidden = !!first();
    for (const control of [...ofHead, copy]) control.disabled = !first();
  };
  turn();
  return turn;
}

/**
 * Makes the buttons of a figure.
 * @param title what follows each one's format
 * @param acts makes a button's action of what saves a figure: (what is drawn, what stands around it, name)
 */
export const pictures = (kind, title, acts) => Object.entries({ PNG: pngOf, SVG: svgOf }).map(([format, render]) =>
  button(format + title, acts(async (shown, words, name) =>
    save(await render(figure(kind, shown, { ...words, model: at("model").textContent })), `${name}.${format.toLowerCase()}`))));

/** Makes a box for a curl command, hidden until there is one, and the function that copies one, shows it there, and tells so next to a control. */
export function commands() {
  const command = make("pre"), box = scrolled("The curl command", command);
  box.hidden = true;
  return [box, async (control, path, body) => {
    command.textContent = curl(path, body);
    box.hidden = false;
    tell(control, (await copied(command.textContent)) ? "Copied the curl command to the clipboard." : "The curl command is below.");
  }];
}

/** Saves a text as a file. */
export const saved = (text, type, name) => save(new Blob([text], { type }), name);

function save(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// What a spreadsheet would run, or a part of it, if a cell began with it. Source: OWASP, "CSV Injection"
const FORMULA = /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/;

const quoted = (text) => `"${text.replace(FORMULA, "'$&").replaceAll('"', '""')}"`;

/** A matrix as a spreadsheet reads it. */
export function csv(names, columns, values) {
  const rows = names.map((name, i) => [quoted(name), ...values.slice(i * columns.length, (i + 1) * columns.length)].join(","));
  return [["", ...columns.map(quoted)].join(","), ...rows].join("\r\n");
}

/** Puts something else in the place of what a copy of the views has of a kind, made from what is shown: a clone has no state. */
function swap(copy, kind, make) {
  const shown = [...at("views").querySelectorAll(kind)];
  [...copy.querySelectorAll(kind)].forEach((element, i) => element.replaceWith(make(shown[i])));
}

/** The texts, and the views as they stand: tables, matrices as pictures; no script, and nothing to operate. */
function standalone(texts) {
  const copy = at("views").cloneNode(true);
  swap(copy, "canvas", kept);
  swap(copy, "label:has(select)", (label) => make("span", {}, `${label.firstChild.textContent}: ${label.querySelector("select").selectedOptions[0]?.textContent ?? ""}`));
  swap(copy, "label:has(input)", (label) => make("span", {}, `${label.firstChild.textContent}: ${label.querySelector("input").value}`));
  swap(copy, ".steps", (list) => make("h3", {}, list.querySelector("[aria-current]").textContent));
  for (const details of copy.querySelectorAll("details")) details.children.length > 1 ? (details.open = true) : details.remove();
  for (const button of copy.querySelectorAll(":is(.lines, .options) button")) button.replaceWith(make("span", { className: button.ariaPressed === "true" ? "chosen" : "" }, ...button.childNodes));
  for (const row of copy.querySelectorAll("table:has(td > button) tr")) row.lastChild.remove();
  for (const control of copy.querySelectorAll("button, .more, .help")) control.remove();
  for (const said of copy.querySelectorAll(".value")) said.textContent = "Queries down, keys across.";
  for (const section of copy.querySelectorAll("section")) if (section.children.length < 2) section.remove();
  for (const cell of copy.querySelectorAll("[tabindex='-1']")) cell.removeAttribute("tabindex");
  const style = [...document.styleSheets].flatMap(({ cssRules }) => [...cssRules]).map(({ cssText }) => cssText).join("\n");
  const quotes = texts.filter(Boolean).map((text) => make("blockquote", { dir: "auto" }, text));
  const page = document.implementation.createHTMLDocument("Headlight");
  page.documentElement.lang = "en";
  page.head.append(make("meta", { charset: "utf-8" }), make("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }));
  page.body.append(make("header", {}, make("h1", {}, "Headlight"), make("p", {}, at("model").textContent)), make("main", {}, ...quotes, copy));
  const text = page.documentElement.outerHTML.replace("</head>", `<style>${style}</style></head>`);
  return `<!doctype html>\n${text}`;
}
