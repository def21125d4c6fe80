// A head as a figure for print: its matrix or its lines with the tokens, the scale, the texts and the model,
// on white, in one theme's colours whatever the reader's is.

import { stroke } from "./columns.js";
import { draw, fixed, marked, printed, TICKS } from "./dom.js";

const INK = "#1c2430", PALE = "#566070", ACCENT = "#1f5fae";
const MARGIN = 24, LINE = 18; // pixels
const TOKEN = { "font-size": 12, "font-family": "monospace", fill: INK };
const SAYING = { "font-size": 13, "font-family": "sans-serif" };
const LEAST_WIDTH = 520; // so that a text has room next to few tokens
const LONGEST = 24; // characters of a token; what is longer ends in an ellipsis
const SIDE = 480, CELL = [4, 40]; // of a matrix, and the least and largest of its cells
const LARGEST = 16_000; // of a bitmap's side, which browsers draw

const ruler = document.createElement("canvas").getContext("2d");
const widthOf = (text, { "font-size": size, "font-family": family }) => ((ruler.font = `${size}px ${family}`), ruler.measureText(text).width);

// What XML 1.0 has no character for
const FORBIDDEN = /[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu;

/** Makes a line of text. */
function written(text, attributes) {
  const element = draw("text", attributes);
  element.textContent = text.replace(FORBIDDEN, "\ufffd");
  return element;
}

/** Breaks a text at its blanks, or anywhere where a word is wider than the figure. */
function broken(text, style, width) {
  const lines = [""];
  for (const part of text.split(/(?<=\s)/u).flatMap((word) => (widthOf(word, style) > width ? Array.from(word) : [word]))) {
    if (widthOf(lines.at(-1) + part.trimEnd(), style) > width) lines.push("");
    lines[lines.length - 1] += part;
  }
  return lines;
}

/** A token as it stands at an axis. */
function short(name) {
  const letters = Array.from(marked(name));
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}\u2026` : letters.join("");
}

/** Every how many places a name has room, `step` pixels apart. */
export const thinned = (step, room = 14) => Math.max(1, Math.ceil(room / step));

const widest = (names) => Math.max(...names.map((name) => widthOf(name, TOKEN))) + 6;

/** A matrix of shares and what its rows are, its keys across; a path for each colour, as one for each cell would be long. */
function grid(down, across, kind, colours) {
  const cell = Math.min(CELL[1], Math.max(CELL[0], SIDE / across.length)), [wide, high] = [cell * across.length, cell * down.length];
  const [rows, columns] = [down.map(short), across.map(short)], [left, above] = [widest(rows), widest(columns) + LINE], every = thinned(cell), paths = new Map();
  colours.forEach((colour, i) => {
    if (colour) paths.set(colour, `${paths.get(colour) ?? ""}M${i % across.length} ${Math.floor(i / across.length)}h1v1h-1z`);
  });
  const group = draw("g", {}), cells = draw("g", { transform: `translate(${left} ${above}) scale(${cell})`, "shape-rendering": "crispEdges" });
  for (const [fill, d] of paths) cells.append(draw("path", { d, fill }));
  group.append(cells, draw("rect", { x: left, y: above, width: wide, height: high, fill: "none", stroke: PALE }));
  group.append(written("keys", { x: left, y: 12, fill: PALE, ...SAYING }), written(kind, { x: 0, y: above - 6, fill: PALE, ...SAYING }));
  const middle = (i) => cell * (i + 0.5) + 4;
  rows.forEach((name, i) => i % every || group.append(written(name, { x: left - 6, y: above + middle(i), "text-anchor": "end", ...TOKEN })));
  columns.forEach((name, i) => i % every || group.append(written(name, { transform: `translate(${left + middle(i)} ${above - 6}) rotate(-90)`, ...TOKEN })));
  return { group, width: left + wide + 1, height: above + high + 1, notes: every > 1 ? [`Every ${every}th token is named.`] : [] };
}

/** The matrix, its queries down. */
function matrix({ map: { names, values } }) {
  const colours = Array.from(values, (value) => Math.round(255 * Math.sqrt(value || 0))).map((level) => level > 0 && printed(level / 255));
  return grid(names, names, "queries", colours);
}

/** The parts of a row's scores, down: what adds to a score in the colours of shares, what takes from it in their opposite. */
function why({ row, keys, parts }) {
  const values = parts.flatMap(({ scores }) => scores), most = Math.max(...values.map(Math.abs));
  const { notes, ...drawn } = grid(parts.map(({ name }) => name), keys, "parts", values.map((value) => value !== null && printed(value / most)));
  return { ...drawn, notes: [`What each part adds to the scores of ${short(row)}, less its mean.`, ...notes], most };
}

/** The lines of the token in focus, or of all. */
function lines(head) {
  const { names } = head.map, row = head.row(), step = 20, gap = 220;
  const all = head.view.lines === "all", here = all ? -1 : head.here();
  const shown = names.map(short), edge = widest(shown), group = draw("g", {});
  const y = (place) => step * (place + 0.5);
  for (const { from, to, share, faint } of head.lines()) group.append(draw("line", { x1: edge, x2: edge + gap, y1: y(from), y2: y(to), stroke: ACCENT, ...stroke(share, faint), "stroke-linecap": "round" }));
  shown.forEach((name, i) => {
    const weight = i === here ? { "font-weight": "bold" } : {};
    group.append(written(name, { x: edge - 6, y: y(i) + 4, "text-anchor": "end", ...TOKEN, ...weight }));
    if (!all) group.append(draw("rect", { x: edge + gap + 6, y: step * i + 2, width: 10, height: step - 4, fill: printed(Math.sqrt(row[i])), stroke: PALE, "stroke-width": 0.5 }));
    group.append(written(name, { x: edge + gap + (all ? 6 : 22), y: y(i) + 4, ...TOKEN }));
  });
  return { group, width: 2 * edge + gap + 22, height: step * names.length, notes: [`What ${all ? "each token" : short(names[here])} ${head.direction()}.`] };
}

/** What a colour stands for: a share, the square root of which shows small ones, too; or a number with its sign, up to `most`. */
function scale(unit, most) {
  const group = draw("g", {}), width = 256, steps = 64, ticks = most === undefined ? TICKS.map((tick) => [Math.sqrt(tick), String(tick)]) : [[0, fixed(-most, 1)], [0.5, "0"], [1, fixed(most, 1)]];
  const share = (i) => (most === undefined ? i / (steps - 1) : (2 * i) / (steps - 1) - 1);
  for (let i = 0; i < steps; i++) group.append(draw("rect", { x: (i * width) / steps, y: 0, width: width / steps, height: 10, fill: printed(share(i)), "shape-rendering": "crispEdges" }));
  group.append(draw("rect", { x: 0, y: 0, width, height: 10, fill: "none", stroke: PALE, "stroke-width": 0.5 }));
  for (const [place, tick] of ticks) group.append(written(tick, { x: width * place, y: 23, "text-anchor": place ? "middle" : "start", "font-size": 11, "font-family": "sans-serif", fill: INK }));
  group.append(written(unit, { x: width + 12, y: 10, fill: INK, ...SAYING }));
  return group;
}

const PARTS = { matrix, lines, why };

/**
 * Makes the figure of a head.
 * @param kind "matrix" or "lines", or of why it looks there "why"
 * @param said {title, how, unit, texts, model}: what stands around it
 */
export function figure(kind, head, { title, how, unit, texts, model }) {
  const part = PARTS[kind](head), room = Math.max(LEAST_WIDTH, part.width), style = { fill: INK, ...SAYING };
  const root = draw("svg", {}), placed = [];
  let y = MARGIN;
  const line = (text, attributes, height = LINE) => placed.push(written(text, { x: MARGIN, y: (y += height), ...attributes }));
  const put = (group, height) => {
    placed.push(draw("g", { transform: `translate(${MARGIN} ${(y += LINE)})` }));
    placed.at(-1).append(group);
    y += height;
  };
  for (const text of broken(title, { "font-size": 17, "font-family": "sans-serif" }, room)) line(text, { "font-size": 17, "font-family": "sans-serif", "font-weight": "bold", fill: INK });
  for (const text of [...texts, ...how].flatMap((text) => broken(text, style, room))) line(text, style);
  put(part.group, part.height);
  put(scale(part.most === undefined ? unit : "part of a score", part.most), 24);
  for (const text of [...part.notes, model].flatMap((text) => broken(text, style, room))) line(text, { ...style, fill: PALE });
  const [width, height] = [Math.ceil(room + 2 * MARGIN), Math.ceil(y + MARGIN)];
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) root.setAttribute(name, value);
  root.append(draw("rect", { width: "100%", height: "100%", fill: "#fff" }), ...placed);
  return root;
}

export const svgOf = (root) => new Blob([new XMLSerializer().serializeToString(root)], { type: "image/svg+xml" });

/** Draws a figure as a bitmap, two pixels for one where that is not too large. */
export async function pngOf(root) {
  const url = URL.createObjectURL(svgOf(root)), image = new Image();
  try {
    image.src = url;
    await image.decode();
    const size = [Number(root.getAttribute("width")), Number(root.getAttribute("height"))], times = Math.min(2, LARGEST / Math.max(...size));
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = size.map((side) => Math.ceil(times * side));
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob(done));
  } finally {
    URL.revokeObjectURL(url);
  }
}
