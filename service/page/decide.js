// A question about a text: how likely each option is, on which words that rests, and what each option looked at.

import { ask } from "./api.js";
import { button, choice, fixed, folded, legend, make, marked, refill, shaded, table, token } from "./dom.js";
import { commands } from "./exports.js";
import { DARKEST, equation, word, written } from "./words.js";

// The kinds of question, and what the lines of the box of options are in each
export const KINDS = {
  choice: "Options, one per line (name: description)",
  noul: "What counts as yes and as no, if need be (yes: \u2026)",
  score: "Levels, one per line, the lowest first",
};
const NAME = "asked"; // of the only question
const BOXES = { state: "text", instructions: "other", criteria: "options" }; // of the form, by what refusals call what they hold
const SAID = { true: "yes", false: "no" }; // of the API's names
const PARTS = { state: "State", instructions: "Question", option: "Options" };

export const EXAMPLE = {
  text: "I found you through a magazine. Your staff is friendly, but there are two charges of 40 euros on my statement.",
  other: "What does the customer write about?",
  together: "decide",
  kind: "choice",
  options: "billing: money that was charged\ndelivery: when and where a parcel arrives\npraise: kind words and thanks",
};

/** The id of the box that holds what was refused, if one does. */
export const boxOf = ({ loc = [] }) => BOXES[loc.find((place) => Object.hasOwn(BOXES, place))];

/** Asks it of a model with these tasks, and what the answer rests on; the request stays with the answer. */
export async function find({ text, other, kind, options }, tasks) {
  const question = { type: kind, instructions: other || null, criteria: criteria(kind, options.split("\n").map((line) => line.trim()).filter(Boolean)) };
  const attention = tasks.includes("decide") ? { attention: { layers: [-1] } } : {};
  const request = { state: text, questions: { [NAME]: question }, reason: { method: "input", level: "word" }, ...attention };
  return { request, answer: await ask("v1/systemone", request) };
}

/** What lines say, as the API takes it; of two options of one name, which it refuses, the names. */
function criteria(kind, lines) {
  if (kind === "score") return lines;
  const options = lines.map((line) => line.split(/:\s+(.*)/, 2));
  if (kind === "noul") return Object.fromEntries(options.map(([name, said]) => [Object.keys(SAID).find((key) => SAID[key] === name.toLowerCase()) ?? name, said]));
  const names = options.map(([name]) => name), described = options.some(([, said]) => said) && new Set(names).size === names.length;
  return described ? Object.fromEntries(options.map(([name, said]) => [name, said ?? null])) : names;
}

/** Draws it. */
export function draw(section, { request, answer }) {
  const { [NAME]: question } = request.questions, { [NAME]: told } = answer.answers;
  const options = read(question, told), calls = (name) => options.find((one) => one.name === name).called;
  const look = make("div"), [box, copyCurl] = commands();
  refill(section, make("h2", {}, "Decision"), ...decision(told, options),
    bars(options, told.attention && ((one) => look.replaceChildren(...looked(told.attention, one)))),
    make("p", { className: "note" }, told.attention ? "Press an option to see what it looked at." : "Nobody has calibrated this model's probabilities."), look,
    make("h3", {}, "What it rests on"), ...(told.reason ? rests(told.reason, request.state, calls) : [make("p", { className: "note" }, `Nothing to compare: ${told.reason_missing}.`)]),
    make("p", {}, button("Copy curl", ({ target }) => copyCurl(target, "v1/systemone", request))), box);
}

/** The options, each with its name in the answer, what a reader calls it, and how likely it is. */
function read({ criteria }, { type, noul, probabilities, legend }) {
  if (type === "noul") return ["true", "false"].map((name, i) => ({ name, called: SAID[name], likely: Math.abs(noul - i) }));
  const names = type === "score" ? Object.keys(legend) : Array.isArray(criteria) ? criteria : Object.keys(criteria);
  return names.map((name) => ({ name, called: legend ? `${name}: ${legend[name]}` : name, likely: probabilities[name] }));
}

function decision({ type, score, confidence }, options) {
  const { called } = options.reduce((first, one) => (one.likely > first.likely ? one : first));
  const said = [...(type === "score" ? [`expected level ${fixed(score, 2)}`] : []), ...(confidence === undefined ? [] : [`confidence ${fixed(confidence)} (0: all alike, 1: certain)`])];
  return [make("p", { className: "bar" }, make("output", { "aria-label": "Decision", className: "score" }, called), said.join(", "))];
}

/** How likely each option is; `look` is called with one that is pressed. */
function bars(options, look) {
  const press = (one) => ({ target }) => {
    for (const other of target.closest("table").querySelectorAll("button")) other.ariaPressed = String(other === target);
    look(one);
  };
  const rows = options.map((one) => {
    const bar = make("span", { className: "meter" });
    bar.style.width = `${100 * one.likely}%`;
    return [look ? button(one.called, press(one), { ariaPressed: "false" }) : one.called, fixed(one.likely), make("td", { className: "likely" }, bar)];
  });
  const bars = table("How likely each option is", ["Option", "probability", "0 to 1"], rows);
  bars.classList.add("options");
  return bars;
}

/** What an option's mark looked at in the last layer, in each head or all. */
function looked({ options, tokens, layers }, { name, called }) {
  const [[layer, heads]] = Object.entries(layers), rows = heads.map((head) => head[options.indexOf(name)]);
  const rowOf = (head) => rows[head] ?? tokens.map((_, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length);
  const box = make("div"), title = `What '${called}' looked at`, show = (head) => {
    const row = rowOf(head).map((weight) => [weight, Math.sqrt(weight)]); // with its place on the scale of shares
    box.replaceChildren(
      make("p", { className: "words" }, ...pieces(tokens).flatMap(([before, text], i) => [before, word(text, ...row[i])])),
      legend("share of attention", undefined, DARKEST),
      folded(`${title}, as a table`, () => table(title, ["Token", "weight"], tokens.map((one, i) => [token(one), shaded(row[i][0], DARKEST * row[i][1])]))));
  };
  show("mean");
  return [make("h3", {}, title),
    make("div", { className: "bar" }, choice("Heads of the last layer", [["mean", "mean of all"], ...rows.map((_, i) => [String(i), `L${layer}H${i}`])], "mean", show)), box];
}

/** Tokens as a text has them, each with the blank before it: some vocabularies mark where words begin, others where they go on. */
function pieces(tokens) {
  const texts = tokens.map((one) => one.replace(/^##/, "").replace(/[\u0120\u2581]/g, " ").replace(/\u010a/g, "\u21b5"));
  const begins = texts.some((text) => /^ /.test(text)), special = (one) => /^(\[\w+\]|<\w+>)$/.test(one);
  return tokens.map((one, i) => {
    const starts = begins ? /^ /.test(texts[i]) : texts[i] === one;
    return [i && (starts || special(one) || special(tokens[i - 1])) ? " " : "", marked(texts[i].trim() || " ")];
  });
}

/** On which words the first option is ahead of the second. */
function rests({ first, second, margin, parts, special, rest }, state, calls) {
  const ordered = Object.keys(PARTS).flatMap((kind) => parts.filter(({ part }) => part === kind));
  const most = Math.max(...parts.flatMap(({ units }) => units.map(({ share }) => Math.abs(share))));
  const title = ({ part, name }) => (part === "option" ? `Option '${calls(name)}'` : PARTS[part]);
  const sums = Object.entries(PARTS).map(([kind, said]) => [said.toLowerCase(), parts.filter(({ part }) => part === kind).reduce((sum, { share }) => sum + share, 0)]);
  const fill = () => table("What each word adds to the margin", ["Word", "in", "adds"], ordered.flatMap((part) => part.units.map(({ text, share }) => [make("bdi", {}, text), title(part), shaded(share, (DARKEST * share) / most)])));
  return [
    make("p", { className: "words" }, `The margin of '${calls(first)}' over '${calls(second)}' is ${fixed(margin)}, the difference of their logits. Each word pulls `, word(`toward '${calls(first)}'`, most, 1), " or ", word(`toward '${calls(second)}'`, -most, -1), "."),
    equation(margin, [...sums, ["special tokens", special], ["rest", rest]]),
    make("p", { className: "note" }, "Special tokens are marks such as [CLS] around the texts; the rest is what biases add."),
    make("dl", { className: "words" }, ...ordered.flatMap((part) => [make("dt", {}, `${title(part)}: ${fixed(part.share)}`), make("dd", { dir: "auto" }, ...written(part.units, part.part === "state" ? state : "", most))])),
    legend("what a word adds to the margin", most, DARKEST),
    folded("All words as a table", fill)];
}
