// Why two texts are alike: the cosine of their vectors, shared out over pairs of words, exactly.

import { ask } from "./api.js";
import { fixed, folded, make, shaded, table, token } from "./dom.js";
import { names, numbered, places } from "./session.js";

const SMALLER = [413, 422]; // refusals of what is asked for, where the score alone may be answered
const TOP = 10;
const MOST_IN_TABLE = 60;

/** Asks why two texts are alike; where that cannot be said, how alike they are, and the reason. */
export async function why(left, right, view) {
  const look = { level: "word", specials: view.specials === "drop" ? "drop" : "keep" };
  const texts = { left, right: [right] }, request = { ...texts, ...look, form: "full" };
  try {
    return { texts, request, answer: await ask("v1/similarity", request) };
  } catch (error) {
    if (!SMALLER.includes(error.status)) throw error;
    return { texts, answer: await ask("v1/similarity", { ...texts, form: "score" }), reason: error.message };
  }
}

/** Empties its place, for what may be said of it in words. */
export function clear(section) {
  section.hidden = false;
  section.replaceChildren(make("h2", {}, "Why alike"));
}

/** Draws it; `focus` is called with a pair's places in the matrix and its button; `sweep` for the score. */
export function draw(section, { texts: { left, right: [right] }, request, answer, reason }, focus, sweep) {
  const [found] = answer.right;
  const score = make("output", { "aria-label": "Similarity", className: "score" }, fixed(found.score));
  clear(section);
  section.append(make("p", { className: "bar" }, score, "cosine of the two vectors", make("button", { type: "button", onclick: sweep }, "Which heads make them alike?")));
  if (reason) return section.append(make("p", { className: "note" }, reason));
  const [rows, columns] = axes({ texts: { left, right: [right] }, request, answer });
  section.append(
    make("p", { className: "note" }, "Each cell is what a pair of words adds to the score; the cells and the rest sum to it. Words are taken in context: a word's vector holds what it took from the others."),
    make("div", { className: "look" }, matrix(found, rows, columns), pairs(found, rows, columns, focus)), shares(found, rows, columns));
}

/** The names of the matrix' rows and columns. */
const axes = ({ texts: { left, right: [right] }, request, answer }) =>
  [[left, answer.left], [right, answer.right[0]]].map(([item, sequence]) => numbered(names(item, sequence, places(sequence, request))));

/** What a pair of the matrix is called, and the token it begins with; null where the matrix has none such. */
export function paired(found, [i, j]) {
  if (!found?.request) return null;
  const [rows, columns] = axes(found), first = places(found.answer.left, found.request);
  return rows[i] && columns[j] ? { name: `${rows[i]} \u00b7 ${columns[j]}`, place: first.spans[first.axis[i]][0] } : null;
}

function pairs({ matrix }, rows, columns, focus) {
  const all = matrix.flatMap((row, i) => row.map((share, j) => [share, i, j])).sort((a, b) => b[0] - a[0]).slice(0, TOP);
  const list = all.map(([share, i, j]) => {
    const open = make("button", { type: "button", onclick: ({ target }) => focus(i, j, target) }, "Which heads?");
    open.setAttribute("aria-label", `Which heads carry ${rows[i]} and ${columns[j]}?`);
    return [make("span", {}, token(rows[i]), " \u00b7 ", token(columns[j])), fixed(share), make("td", {}, open)];
  });
  return table("The pairs that add most", ["Pair", "adds", "carried by"], list);
}

function matrix({ matrix, rest }, rows, columns) {
  const most = matrix.flat().reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  const fill = () => table(`What each pair adds; rest ${fixed(rest)}`, ["Text", ...columns], matrix.map((row, i) => [rows[i], ...row.map((share) => shaded(share, share / most))]));
  return rows.length * columns.length <= MOST_IN_TABLE ** 2 ? fill() : folded("All pairs as a table", fill);
}

function shares({ left_share: left, right_share: right }, rows, columns) {
  const list = [...rows.map((name, i) => [name, "text", fixed(left[i])]), ...columns.map((name, i) => [name, "other text", fixed(right[i])])];
  return folded("What each word adds, over all pairs", () => table("What each word adds", ["Word", "in", "adds"], list));
}
