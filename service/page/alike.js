// Why two texts are alike: the cosine of their vectors, shared out over pairs of words, exactly.

import { ask } from "./api.js";
import { button, choice, fixed, folded, legend, make, refill, shaded, table, token } from "./dom.js";
import { names, numbered, places } from "./session.js";

const SMALLER = [413, 422]; // refusals of what is asked for, where the score alone may be answered
const TOP = 10;
const MOST_IN_TABLE = 60;

// What shares may be of, and what a cell then is
const KINDS = {
  layer: ["words in the last layer", "Each cell is what a pair of words adds to the score, in context: a word's vector in the last layer holds what it took from the others. The cells and the rest, which no pair of words carries, sum to the score."],
  input: ["words as they go in", "Each cell is what a pair of words adds to the score by what goes into the model, before any word has seen another; the attention between them is kept as it was. The cells, what words have with biases, and the rest, which no pair of words carries, sum to the score. Which heads carry a pair is told of the last layer alone."],
};

// Orders of the heads by what they add to the score
const WAYS = { score: "Measure by removing each", shares: "Divide by exact shares" };

/** Asks why two texts are alike; where that cannot be said, how alike they are, and the reason. */
export async function why(left, right, view) {
  const look = { level: "word", specials: view.specials === "drop" ? "drop" : "keep" };
  const texts = { left, right: [right] }, request = { ...texts, ...look, form: "full", by: view.by };
  try {
    return { texts, request, answer: await ask("v1/similarity", request) };
  } catch (error) {
    if (!SMALLER.includes(error.status)) throw error;
    return { texts, answer: await ask("v1/similarity", { ...texts, form: "score" }), reason: error.message };
  }
}

/** Draws its choice alone, and what may be said of it in words; `change` is called with what shares are to be of. */
export function clear(section, { by }, change, ...said) {
  section.hidden = false;
  const kinds = Object.entries(KINDS).map(([name, [title]]) => [name, title]);
  refill(section, make("h2", {}, "Why alike"), ...said.slice(0, 1), make("div", { className: "bar" }, choice("Shares of", kinds, by, change)), ...said.slice(1));
}

/** Draws it; `focus` is called with a pair's places in the matrix and its button; `carry` with an order of heads and its button. */
export function draw(section, { texts, request, answer, reason }, view, { change, focus, carry }) {
  const [found] = answer.right;
  const score = make("output", { "aria-label": "Similarity", className: "score" }, fixed(found.score));
  const ways = Object.entries(WAYS).map(([order, title]) => button(title, ({ target }) => carry(order, target)));
  const bar = make("div", { className: "bar" }, score, "cosine of the two vectors", make("span", { className: "bar", role: "group", "aria-label": "Which heads make them alike?" }, "Which heads make them alike?", ...ways));
  if (reason) return clear(section, view, change, bar, make("p", { className: "note" }, reason));
  const [rows, columns] = axes({ texts, request, answer });
  clear(section, view, change, bar,
    make("p", { className: "note" }, KINDS[request.by][1]),
    make("div", { className: "look" }, matrix(found, rows, columns), pairs(found, rows, columns, request.by === "layer" && focus)), shares(found, rows, columns));
}

/** The names of the matrix' rows and columns. */
const axes = ({ texts: { left, right: [right] }, request, answer }) =>
  [[left, answer.left], [right, answer.right[0]]].map(([item, sequence]) => numbered(names(item, sequence, places(sequence, request))));

/** What a pair of the matrix is called, and the token it begins with; null where the matrix has none such, or of whose pairs no heads are told. */
export function paired(found, [i, j]) {
  if (found?.request?.by !== "layer") return null;
  const [rows, columns] = axes(found), first = places(found.answer.left, found.request);
  return rows[i] && columns[j] ? { name: `${rows[i]} \u00b7 ${columns[j]}`, place: first.spans[first.axis[i]][0] } : null;
}

function pairs({ matrix }, rows, columns, focus) {
  const all = matrix.flatMap((row, i) => row.map((share, j) => [share, i, j])).sort((a, b) => b[0] - a[0]).slice(0, TOP);
  const list = all.map(([share, i, j]) => {
    const pair = [make("span", {}, token(rows[i]), " \u00b7 ", token(columns[j])), fixed(share)];
    if (!focus) return pair;
    const label = `Which heads carry ${rows[i]} and ${columns[j]}?`;
    return [...pair, make("td", {}, button("Which heads?", ({ target }) => focus(i, j, target), { "aria-label": label }))];
  });
  return table("The pairs that add most", ["Pair", "adds", ...(focus ? ["carried by"] : [])], list);
}

function matrix({ matrix, rest, bias = null, left_bias: left }, rows, columns) {
  const most = matrix.flat().reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  const fill = () => table(`What each pair adds; rest ${fixed(rest)}${bias === null ? "" : `, ${left ? "all biases" : "of which biases"} ${fixed(bias)}`}`, ["Text", ...columns], matrix.map((row, i) => [rows[i], ...row.map((share) => shaded(share, share / most))]), "Other text");
  const explained = () => make("div", {}, fill(), legend("what a pair adds to the score", most));
  return rows.length * columns.length <= MOST_IN_TABLE ** 2 ? explained() : folded("All pairs as a table", explained);
}

function shares({ left_share: left, right_share: right, left_bias: leftBias, right_bias: rightBias }, rows, columns) {
  const side = (names, text, share, bias) => names.map((name, i) => [name, text, fixed(share[i]), ...(bias ? [fixed(bias[i])] : [])]);
  const list = [...side(rows, "text", left, leftBias), ...side(columns, "other text", right, rightBias)];
  return folded("What each word adds, over all pairs", () => table("What each word adds", ["Word", "in", "adds", ...(leftBias ? ["with biases"] : [])], list));
}
