// Why a head looks where it does: what the scores of the row in focus are made of.

import { ask } from "./api.js";
import { button, fixed, folded, legend, make, shaded, table, token } from "./dom.js";
import { commands, csv, pictures, saved } from "./exports.js";
import { numbered, place } from "./session.js";

const TOP_KEYS = 5, TOP_PARTS = 4, TOP_SHARES = 3;
const MOST_IN_TABLE = 40; // keys of which every part's scores are a table
const SENTENCES = [
  "A score is a sum over what enters layer 0, of the query \u2192 of the key: its word, its position, and the rest (segments and biases).",
  "A score is a sum over what each token of the input has brought into the key, and what the biases have.",
];

/** Asks what the scores of a row are made of: parts, each with its name, its share of how all rows vary, and its scores by key. */
async function find({ item, names }, head, row) {
  const [layer, number] = place(head), keys = numbered(names);
  const request = { inputs: [item], pooled: false, attention: { form: "why", heads: head, rows: [row] } };
  const { parts, share, shuffled, rows: [{ scores }] } = (await ask("v1/encode", request)).data[0].attention.why[layer][number];
  const both = (query, key) => ({ name: `${parts[query]}\u2192${parts[key]}`, share: share?.[query][key], chance: shuffled?.[query][key], scores: scores[query][key] });
  const found = layer === 0
    ? parts.flatMap((_, query) => parts.map((_, key) => both(query, key)))
    : scores.map((scores, i) => ({ name: keys[i] ?? "biases", share: share?.[i], chance: shuffled?.[i], scores }));
  return { request, head, row: keys[row], keys, parts: found, sentence: SENTENCES[Math.min(layer, 1)] };
}

export class Why {
  /** @param words what stands around a figure, by its head; @param failed called with what did not come, and the button */
  constructor(words, failed) {
    Object.assign(this, { words, failed, box: make("div", { className: "why" }) });
  }

  /** Offers it for a row of a head; what was said of another goes. */
  offer(session, head, row) {
    if (this.of?.session === session && this.of.head === head && this.of.row === row) return;
    this.of = { session, head, row };
    this.box.replaceChildren(make("button", { type: "button", onclick: ({ target }) => this.say(target) }, "Why does '", token(session.names[row]), "' look there?"));
  }

  async say(button) {
    const { of } = this;
    button.ariaBusy = "true";
    try {
      const found = await find(of.session, of.head, of.row);
      if (this.of === of) this.show(found);
    } catch (error) {
      if (this.of === of) this.failed(error, button);
    }
    button.ariaBusy = "false";
  }

  show(found) {
    const { head, row, keys, parts, request } = found, [box, copyCurl] = commands();
    const whole = () => csv(parts.map(({ name }) => name), keys, parts.flatMap(({ scores }) => scores));
    this.box.replaceChildren(
      make("h3", {}, "Why '", make("bdi", {}, row), "' looks there"),
      make("p", { className: "note" }, `${found.sentence} Each number is without its row's mean.${shares(parts)}`),
      table(`The keys with the largest scores of ${row}`, ["Key", "score", "made of"], strongest(found)),
      ...(keys.length <= MOST_IN_TABLE ? [folded("All parts as a table", () => all(found))] : []),
      make("div", { className: "bar", role: "group", "aria-label": `Export of why ${row} looks there` },
        ...pictures("why", "", (save) => () => save(found, this.words(), `${head}-why`)),
        button("CSV", () => saved(whole(), "text/csv", `${head}-why.csv`)),
        button("Copy curl", ({ target }) => copyCurl(target, "v1/encode", request))), box);
  }
}

/** What goes with most of how the scores of all rows vary. */
function shares(parts) {
  const order = parts.filter(({ share }) => share > 0).sort((a, b) => b.share - a.share).slice(0, TOP_SHARES);
  return order.length ? ` How the scores of all rows vary goes with ${order.map(({ name, share, chance }) => `${name} by ${Math.round(100 * share)} % (with shuffled weights ${Math.round(100 * chance)} %)`).join(", ")}.` : "";
}

/** The keys with the largest scores, and what makes each. */
function strongest({ keys, parts }) {
  const total = keys.map((_, key) => parts.reduce((sum, { scores }) => sum + (scores[key] ?? -Infinity), 0));
  const order = keys.map((_, key) => key).filter((key) => total[key] > -Infinity).sort((a, b) => total[b] - total[a]).slice(0, TOP_KEYS);
  return order.map((key) => {
    const made = [...parts].sort((a, b) => Math.abs(b.scores[key]) - Math.abs(a.scores[key])), rest = made.slice(TOP_PARTS);
    const said = made.slice(0, TOP_PARTS).map(({ name, scores }) => `${fixed(scores[key], 1)} ${name}`);
    if (rest.length) said.push(`${fixed(rest.reduce((sum, { scores }) => sum + scores[key], 0), 1)} others`);
    return [keys[key], fixed(total[key], 1), make("td", { className: "said-of" }, said.join(", "))];
  });
}

/** Every part's scores, each key a column. */
function all({ row, keys, parts }) {
  const most = Math.max(...parts.flatMap(({ scores }) => scores.map(Math.abs)));
  return make("div", {},
    table(`What each part adds to the scores of ${row}`, ["Part", ...keys], parts.map(({ name, scores }) => [name, ...scores.map((score) => shaded(score, score / most))])),
    legend("part of a score, less its row's mean", most));
}
