// What the page shows, kept in the address behind the # so that it can be sent to a colleague.
// Opening such an address fills the boxes; nothing is sent before the reader presses Show.

export const MOST_HEADS = 4; // open at once

export const VIEW = { level: "token", specials: "keep", weight: "probability", direction: "to" };
const CHOICES = {
  level: ["token", "word"],
  specials: ["keep", "drop", "renormalize"],
  weight: ["probability", "value_norm"],
  direction: ["to", "by"],
};

export function read() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const view = { ...VIEW };
  for (const name of Object.keys(VIEW)) if (CHOICES[name].includes(fields.get(name))) view[name] = fields.get(name);
  const heads = [...new Set((fields.get("heads") ?? "").match(/L\d+H\d+/g))].slice(0, MOST_HEADS);
  return { text: fields.get("text") ?? "", other: fields.get("other") ?? "", together: fields.get("together") === "pair" ? "pair" : "compare", heads, view };
}

export function write({ text, other, together, heads, view }) {
  const fields = new URLSearchParams({ text });
  if (other) fields.set("other", other);
  if (other && together === "pair") fields.set("together", together);
  if (heads.length) fields.set("heads", heads.join(","));
  for (const [name, value] of Object.entries(view)) if (value !== VIEW[name]) fields.set(name, value);
  history.replaceState(null, "", `#${fields}`);
}
