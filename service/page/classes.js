// What a classifier says of a text, or a reranker of a query and a document, and on which words that rests.

import { ask } from "./api.js";
import { button, fixed, folded, legend, make, refill, shaded, table } from "./dom.js";
import { commands } from "./exports.js";
import { DARKEST, equation, word, written } from "./words.js";

const UNEXPLAINED = [413, 422]; // refusals of the reason, where the score alone may be answered

/** Asks for it; where the reason cannot be told, for the score alone, and why. The request stays with the answer. */
export async function find(item) {
  const request = { inputs: [item], pooled: false, classify: true }, explained = { ...request, reason: { level: "word" } };
  try {
    return { request: explained, answer: await ask("v1/encode", explained) };
  } catch (error) {
    if (!UNEXPLAINED.includes(error.status)) throw error;
    return { request, answer: await ask("v1/encode", request), missing: error.message };
  }
}

/** Draws it; `ranks` tells whether the only class says how well a document answers a query. */
export function draw(section, { request, answer, missing }, ranks) {
  const [{ classes, reason }] = answer.data, [item] = request.inputs, [box, copyCurl] = commands();
  const first = classes.reduce((best, one) => (one.logit > best.logit ? one : best));
  const one = classes.length === 1, said = one ? fixed(first.score) : first.label;
  const about = one ? `${ranks && item.pair ? "score of the document for the query" : "score"}, from a logit of ${fixed(first.logit)}` : `score ${fixed(first.score)}`;
  refill(section, make("h2", {}, one ? "Score" : "Classes"),
    make("p", { className: "bar" }, make("output", { "aria-label": one ? "Score" : "Class", className: "score" }, said), about),
    ...(one ? [] : [bars(classes)]),
    make("h3", {}, "What it rests on"), ...(reason ? rests(reason, item, ranks) : [make("p", { className: "note" }, missing)]),
    make("p", {}, button("Copy curl", ({ target }) => copyCurl(target, "v1/encode", request))), box);
}

/** Every class with its score, as a number and as a bar. */
function bars(classes) {
  const most = Math.max(1, ...classes.map(({ score }) => Math.abs(score)));
  const bars = table("What each class scores", ["Class", "score", "logit", `0 to ${most === 1 ? 1 : fixed(most, 2)}`], classes.map(({ label, score, logit }) => {
    const bar = make("span", { className: "meter" });
    bar.style.width = `${(100 * Math.max(0, score)) / most}%`;
    return [label, fixed(score), fixed(logit), make("td", { className: "likely" }, bar)];
  }));
  bars.classList.add("options");
  return bars;
}

/** On which words the first class's logit rests, less the next one's where there is one. */
function rests({ target, against, margin, logit, units, rest }, { text, pair }, ranks) {
  const most = Math.max(...units.map(({ share }) => Math.abs(share))) || 1, total = margin ?? logit;
  const names = pair === undefined ? ["Text"] : ranks ? ["Query", "Document"] : ["Text", "Other text"];
  const of = (segment) => units.filter((unit) => unit.segment === segment), sum = (some) => some.reduce((all, { share }) => all + share, 0);
  const parts = names.map((name, segment) => [name, of(segment), [text, pair][segment]]), marks = of(null);
  const what = against === undefined ? "The logit" : `The margin of '${target}' over '${against}'`;
  const more = against === undefined ? ["for it", "against it"] : [`toward '${target}'`, `toward '${against}'`];
  const title = (segment) => names[segment] ?? "special token";
  const fill = () => table("What each word adds", ["Word", "in", "adds"], units.map(({ text, segment, share }) => [make("bdi", {}, text), title(segment), shaded(share, (DARKEST * share) / most)]));
  return [
    make("p", { className: "words" }, `${what} is ${fixed(total)}${against === undefined ? "" : ", the difference of their logits"}. Each word speaks `, word(more[0], most, 1), " or ", word(more[1], -most, -1), "."),
    equation(total, [...parts.map(([name, some]) => [name.toLowerCase(), sum(some)]), ["special tokens", sum(marks)], ["biases", rest]]),
    make("dl", { className: "words" }, ...parts.flatMap(([name, some, whole]) => [make("dt", {}, `${name}: ${fixed(sum(some))}`), make("dd", { dir: "auto" }, ...written(some, whole, most))])),
    legend("what a word adds", most, DARKEST),
    folded("All words as a table", fill)];
}
