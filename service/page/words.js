// Words of a text in the colours of what each adds to a number, in their places.

import { fixed, make, shade } from "./dom.js";

export const DARKEST = 0.75; // of the ramp of colours, for the strongest

/** A word in the colour of its share of the most, from -1 to 1. */
export function word(text, value, share) {
  const element = make("span", { title: fixed(value) }, text);
  shade(element, DARKEST * share);
  return element;
}

/** Words in their places, with what stands between them where the text is known. */
export function written(units, text, most) {
  const letters = Array.from(text), known = units.every(({ text, characters }) => letters.slice(...characters).join("") === text);
  let here = 0;
  const pieces = units.flatMap(({ text, characters: [from, to], share }) => {
    const before = known ? letters.slice(here, from).join("") : here && here < from ? " " : "";
    here = to;
    return [before, word(text, share, share / most)];
  });
  return [...pieces, known ? letters.slice(here).join("") : ""];
}

/** A sum as an equation: what it is, and its terms, each with what it is called. */
export function equation(total, terms) {
  const said = terms.map(([called, share]) => `${share < 0 ? "\u2212" : "+"} ${fixed(Math.abs(share))} ${called}`).join(" ");
  return make("p", { className: "equation" }, `${fixed(total)} = ${said.replace(/^\+ /, "")}`);
}
