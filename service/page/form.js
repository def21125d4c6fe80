// The form: the texts, what they are to each other, and examples of them.

import { at, button } from "./dom.js";
import { EXAMPLE } from "./evidence.js";

// The second is drawn at first sight; each is compared, if it has two texts, but for the last
const EXAMPLES = [
  ["All is well", ""],
  ["A dog ate the food because it was hungry", "A dog ate the food because it was tasty"],
  ["The animal didn't cross the street because it was too tired", "The animal didn't cross the street because it was too wide"],
  EXAMPLE,
].map(([text, other]) => ({ text, other, together: text === EXAMPLE[0] ? "evidence" : "compare" }));
export const FIRST = EXAMPLES[1];

const together = () => document.querySelector("input[name=together]:checked").value;

/** What the form holds. */
export const read = () => ({ text: at("text").value, other: at("other").value, together: together() });

export function fill({ text, other, together }) {
  at("text").value = text;
  at("other").value = other;
  document.querySelector(`input[name=together][value=${together}]`).checked = true;
  label();
}

/** Calls the texts what they are to each other. */
function label() {
  const evidence = together() === "evidence";
  document.querySelector("label[for=text]").textContent = evidence ? "Query" : "Text";
  document.querySelector("label[for=other]").textContent = evidence ? "Document" : "Other text";
  at("other").rows = evidence ? 8 : 2;
}

/** Makes it work; `show` is called when the reader presses Show, or an example. */
export function open(show) {
  at("ask").onsubmit = (event) => {
    event.preventDefault();
    show();
  };
  for (const radio of document.getElementsByName("together")) radio.onchange = label;
  for (const box of [at("text"), at("other")]) {
    for (const event of ["focus", "click"]) box.addEventListener(event, () => FIRST[box.id] === box.value && box.select(), { once: true }); // who writes, writes over it
  }
  for (const example of EXAMPLES) {
    const { text, other, together } = example;
    const swapped = other && ` / ${other.split(" ").at(-1)}`; // the source texts' pairs differ in their last word
    const act = () => (fill(example), at("ask").requestSubmit());
    at("examples").append(button(together === "evidence" ? text : text + swapped, act));
  }
  document.querySelector("button[type=submit]").disabled = false;
}
