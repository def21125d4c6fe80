// What the page shows, kept in the address behind the # so that it can be sent to a colleague.
// Opening such an address fills the boxes; nothing is sent before the reader presses Show.

import { KINDS } from "./decide.js";
import { CHOICES as EVIDENCE } from "./evidence.js";
import { ORDERS } from "./overview.js";

export const MOST_HEADS = 4; // open at once

const VIEW = { level: "token", specials: "keep", weight: "probability", direction: "to", lines: "one", by: "layer", method: "model", unit: "sentence", top: "3", prune: "0.3" };
const CHOICES = {
  level: ["token", "word"],
  specials: ["keep", "drop", "renormalize"],
  weight: ["probability", "value_norm"],
  direction: ["to", "by"],
  lines: ["one", "all"],
  by: ["layer", "input"],
  ...EVIDENCE,
};
const TOGETHER = ["compare", "pair", "evidence", "decide"];

export const PAIR = /^pair (\d+) (\d+)$/;
/** Tells whether an order is one that is asked of the service; its name stands in the address. */
export const found = (order) => ["worth", "score", "shares"].includes(order) || PAIR.test(order);

/** Returns what the address holds, and the default for what it does not. */
export function read() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const view = { ...VIEW };
  for (const name of Object.keys(VIEW)) if (CHOICES[name].includes(fields.get(name))) view[name] = fields.get(name);
  const order = fields.get("order") ?? "place";
  const heads = [...new Set((fields.get("heads") ?? "").match(/L\d+H\d+/g))].slice(0, MOST_HEADS);
  const question = { kind: Object.keys(KINDS).find((kind) => kind === fields.get("kind")) ?? "choice", options: fields.get("options") ?? "" };
  return { text: fields.get("text") ?? "", other: fields.get("other") ?? "", ...question, together: TOGETHER.find((name) => name === fields.get("together")) ?? "compare", heads, view, order: Object.hasOwn(ORDERS, order) || found(order) ? order : "place" };
}

/** Keeps what is shown in the address. */
export function write({ text, other, together, kind, options, heads, view, order }) {
  const fields = new URLSearchParams({ text });
  if (other) fields.set("other", other);
  if (together === "decide") for (const [name, value] of Object.entries({ together, kind, options })) fields.set(name, value);
  else if (other && together !== "compare") fields.set("together", together);
  if (heads.length) fields.set("heads", heads.join(","));
  for (const [name, value] of Object.entries(view)) if (value !== VIEW[name]) fields.set(name, value);
  if (order !== "place") fields.set("order", order);
  history.replaceState(null, "", `#${fields}`);
}
