// What in a document carries its score for a query: marked in its text, in order, next to a control.

import { ask } from "./api.js";
import { button, choice, copied, fixed, legend, make, refill, scrolled, shade } from "./dom.js";
import { commands } from "./exports.js";
import { tell } from "./said.js";

// How units are found strong; the exact parts of a score have two names, by how a model scores
const METHODS = { model: "the model's default", alone: "each one's own score", occlusion: "leaving each out", exact: "exact shares of the score" };
export const CHOICES = { method: Object.keys(METHODS), unit: ["sentence", "word", "token"], top: ["1", "3", "5", "10"], prune: ["0.1", "0.3", "0.5", "0.7"] };
const DARKEST = 0.75; // of the ramp of colours, for the strongest

// Lincoln's address at Gettysburg, 1863, as far as most models read
export const EXAMPLE = [
  "What will the world remember?",
  "Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, and dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war, testing whether that nation, or any nation so conceived and so dedicated, can long endure. We are met on a great battle-field of that war. We have come to dedicate a portion of that field, as a final resting place for those who here gave their lives that that nation might live. It is altogether fitting and proper that we should do this. But, in a larger sense, we can not dedicate \u2013 we can not consecrate \u2013 we can not hallow \u2013 this ground. The brave men, living and dead, who struggled here, have consecrated it, far above our poor power to add or detract. The world will little note, nor long remember what we say here, but it can never forget what they did here.",
];

/** Asks for it of a model with these tasks; the request stays with the answer, for who wants to repeat it. */
export async function find(query, document, { method, unit, top, prune }, tasks) {
  const exact = tasks.includes("multi_vector") ? "maxsim" : "sum", how = method === "model" ? {} : { method: method === "exact" ? exact : method };
  const request = { query, documents: [document], ...how, unit, top: Number(top), prune: Number(prune) };
  return { request, answer: await ask("v1/highlight", request) };
}

/** Draws it; `change` is called with the name of a choice and its new value. */
export function draw(section, { request, answer }, view, change) {
  const [result] = answer.results, [document] = request.documents, ranked = result.highlights;
  const marks = ranked.map((found, i) => mark(found, i, ranked[0].share));
  const [box, copyCurl] = commands();
  refill(section, ...heading(view, change),
    make("p", { className: "bar" }, make("output", { "aria-label": "Score", className: "score" }, fixed(result.score)), "score of the document for the query"),
    make("p", {}, control(result, request.unit)),
    scrolled("The document with its evidence", make("blockquote", { className: "whole", dir: "auto" }, ...pieces(document, ranked, marks))),
    legend("share, as in the list below; of 0 and less no colour", Math.max(0, ranked[0]?.share ?? 0), DARKEST, 0),
    make("h3", {}, "Strongest first"), list(ranked, marks),
    make("p", { className: "note" }, meaning(result, request)),
    make("h3", {}, "Shortened"), ...shortened(result.pruned, view, change),
    make("p", {}, button("Copy curl", ({ target }) => copyCurl(target, "v1/highlight", request))), box);
}

/** Draws the choices alone, for what may be said in words. */
export function clear(section, view, change) {
  refill(section, ...heading(view, change));
}

const heading = ({ method, unit, top }, change) => [
  make("h2", {}, "Evidence"),
  make("div", { className: "bar", role: "group", "aria-label": "What is marked" },
    choice("Mark the strongest", CHOICES.top.map((most) => [most, most]), top, (value) => change("top", value)),
    choice("Unit", CHOICES.unit.map((each) => [each, `${each}s`]), unit, (value) => change("unit", value)),
    choice("Found by", Object.entries(METHODS), method, (value) => change("method", value))),
];

/** What the score is without what is marked, next to what it is without as much that was drawn at random. */
export function control({ score, highlights, without, control }, unit) {
  const count = highlights.length, marked = count === 1 ? `the marked ${unit}` : `the ${count} marked ${unit}s`;
  if (without === null) return `Without ${marked}, nothing is left to score.`;
  const found = `Removing ${marked} takes the score from ${fixed(score)} to ${fixed(without)}`;
  if (!control) return `${found}; there are too few ${unit}s for a control.`;
  const drawn = count === 1 ? "another one" : `${count} others`;
  return `${found}; removing ${drawn} at random takes it to ${fixed(control.without_random)} on average (standard deviation ${fixed(control.deviation)}).`;
}

/** A piece of evidence in its text, as dark as its share is large, with its place in the order. */
function mark({ text, share }, i, most) {
  const element = make("mark", { title: `${fixed(share)}, number ${i + 1}`, tabIndex: -1 }, text);
  element.dataset.rank = i + 1;
  shade(element, share > 0 ? (DARKEST * share) / most : 0);
  return element;
}

/** The text, with its marks in their places. */
function pieces(document, ranked, marks) {
  const letters = Array.from(document), order = ranked.map((_, i) => i).sort((a, b) => ranked[a].characters[0] - ranked[b].characters[0]);
  let here = 0;
  const parts = order.flatMap((i) => {
    const [from, to] = ranked[i].characters, before = letters.slice(here, from).join("");
    here = to;
    return [before, marks[i]];
  });
  return [...parts, letters.slice(here).join("")];
}

function list(ranked, marks) {
  return make("ol", { className: "ranked" }, ...ranked.map(({ text, share }, i) => {
    const show = button("Show", () => seen(marks[i]), { "aria-label": `Show number ${i + 1} in the document` });
    return make("li", {}, make("b", {}, fixed(share)), " ", make("bdi", {}, text), " ", show);
  }));
}

function seen(mark) {
  mark.scrollIntoView({ block: "center" });
  mark.focus({ preventScroll: true });
}

function meaning({ method, rest }, { unit }) {
  if (method === "alone") return `Each share is the score of that ${unit} by itself.`;
  if (method === "occlusion") return "A share is what the score loses without it alone, so shares need not sum to the score.";
  return `Each share is what that ${unit} adds to the score. The rest adds ${fixed(rest)}: all that is not marked. All sum to the score.`;
}

/** The document with only its strongest units, to be copied. */
function shortened(pruned, { prune }, change) {
  const copy = async ({ target }) => tell(target, (await copied(pruned)) ? "Copied the shortened text to the clipboard." : "This browser lets the page copy nothing: select the shortened text.");
  return [
    make("div", { className: "bar" },
      choice("Keep", CHOICES.prune.map((share) => [share, `${100 * share} %`]), prune, (value) => change("prune", value)),
      button("Copy the shortened text", copy)),
    scrolled("The shortened text", make("blockquote", { className: "whole", dir: "auto" }, pruned)),
  ];
}
