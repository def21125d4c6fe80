// The form: the texts, what they are to each other, and examples of them.

import { at, button } from "./dom.js";
import * as decide from "./decide.js";
import { EXAMPLE } from "./evidence.js";

// The second is drawn at first sight; each is compared, if it has two texts, but for the last two
const COMPARED = [
  ["All is well", ""],
  ["A dog ate the food because it was hungry", "A dog ate the food because it was tasty"],
  ["The animal didn't cross the street because it was too tired", "The animal didn't cross the street because it was too wide"],
  EXAMPLE,
].map(([text, other]) => ({ text, other, together: text === EXAMPLE[0] ? "evidence" : "compare" }));
const EXAMPLES = [...COMPARED, decide.EXAMPLE];
// What is drawn at first sight, by the first of a model's tasks that is here
const FIRST = [
  ["decide", decide.EXAMPLE],
  ["rerank", { text: "Why did the dog eat the food?", other: COMPARED[1].text, together: "pair" }],
  ["zero_shot", { text: COMPARED[1].text, other: "The dog was not fed", together: "pair" }],
  ["classify", { ...COMPARED[1], other: "" }],
];
let tasks = []; // of the model, once it is known

/** What is drawn at first sight. */
export const first = () => FIRST.find(([task]) => tasks.includes(task))?.[1] ?? COMPARED[1];

const together = () => document.querySelector("input[name=together]:checked").value;

/** What the form holds. */
export const read = () => ({ text: at("text").value, other: at("other").value, together: together(), kind: at("kind").value, options: at("options").value });

export function fill({ text, other, together, kind = "choice", options = "" }) {
  at("text").value = text;
  at("other").value = other;
  at("kind").value = kind;
  at("options").value = options;
  document.querySelector(`input[name=together][value=${tasks.includes("classify") && together === "compare" ? "pair" : together}]`).checked = true;
  label();
}

/** Calls the texts what they are to each other. */
function label() {
  const evidence = together() === "evidence", deciding = together() === "decide", ranked = evidence || (together() === "pair" && tasks.includes("rerank"));
  document.querySelector("label[for=text]").textContent = ranked ? "Query" : deciding ? "State" : "Text";
  document.querySelector("label[for=other]").textContent = ranked ? "Document" : deciding ? "Question" : "Other text";
  document.querySelector("label[for=options]").textContent = decide.KINDS[at("kind").value];
  at("other").rows = evidence ? 8 : 2;
  at("question").hidden = !deciding;
}

/** Offers what a model of these tasks does: to decide, or to classify in place of comparing vectors, which it has not. */
export function offer(known) {
  tasks = known;
  const classifies = tasks.includes("classify"), show = (kind, shown) => document.querySelectorAll(kind).forEach((element) => (element.hidden = !shown));
  show(".deciding", ["decide", "zero_shot"].some((task) => tasks.includes(task)));
  show(".comparing", !classifies);
  show(".classifying", classifies);
  if (classifies && together() === "compare") document.querySelector("input[name=together][value=pair]").checked = true;
  label();
}

/** Makes it work; `show` is called when the reader presses Show, or an example. */
export function open(show) {
  at("ask").onsubmit = (event) => {
    event.preventDefault();
    show();
  };
  for (const control of [...document.getElementsByName("together"), at("kind")]) control.onchange = label;
  for (const box of [at("text"), at("other")]) {
    for (const event of ["focus", "click"]) box.addEventListener(event, () => first()[box.id] === box.value && box.select(), { once: true }); // who writes, writes over it
  }
  for (const example of EXAMPLES) {
    const { text, other, together } = example;
    const swapped = other && ` / ${other.split(" ").at(-1)}`; // the source texts' pairs differ in their last word
    const act = () => (fill(example), at("ask").requestSubmit());
    at("examples").append(button(together === "compare" ? text + swapped : together === "decide" ? other : text, act, together === "decide" ? { className: "deciding", hidden: true } : {}));
  }
  document.querySelector("button[type=submit]").disabled = false;
}
