// What was asked with one press of Show, and what the service answered for its heads.

import { arrays, ask, Refused } from "./api.js";

export const headName = (layer, head) => `L${layer}H${head}`;

/** Splits "L5H11" into [5, 11]. */
export const place = (name) => name.slice(1).split("H").map(Number);

/**
 * All heads' small maps for one input, with their statistics if there are such. Their measured roles and mechanisms,
 * for which a model is surveyed once, may be later: a head's role is undefined until `named` has settled.
 * `lacks` has the reason for what did not come, by its name.
 */
export async function open(item) {
  const attention = { form: "blocks", size: 32, dtype: "float16" };
  const lacks = {}, roles = optional(ask("v1/heads"), lacks, "roles");
  const [blocks, stats] = await Promise.all([
    arrays("v1/encode", { inputs: [item], pooled: true, attention }),
    optional(ask("v1/encode", { inputs: [item], pooled: false, attention: { form: "stats" } }), lacks, "statistics"),
  ]);
  const sequence = blocks.answer.data[0], maps = Object.entries(blocks.tensors).filter(([name]) => name.startsWith("0.attention."));
  const all = maps.map(([name, { shape, values }]) => {
    const [layer, head] = name.split(".").slice(2).map(Number);
    return { name: headName(layer, head), layer, head, stats: statsOf(stats, layer, head), map: { rows: shape[0], columns: shape[1], values } };
  });
  all.sort((a, b) => a.layer - b.layer || a.head - b.head);
  const named = roles.then((answer) => {
    const of = new Map(answer?.heads.map((measured) => [headName(measured.layer, measured.head), measured]));
    for (const head of all) ({ role: head.role, mechanism: head.mechanism } = of.get(head.name) ?? {});
  });
  return { item, sequence, names: names(item, sequence), pooled: blocks.tensors["0.pooled"].values, all, lacks, named, maps: new Maps(), answers: { blocks: blocks.answer, stats } };
}

/** What is asked, or null where it is refused, with the reason. */
async function optional(asking, lacks, name) {
  try {
    return await asking;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    lacks[name] = error.message;
    return null;
  }
}

function statsOf(answer, layer, head) {
  if (!answer) return null;
  const { fields, values } = answer.data[0].attention.stats;
  return Object.fromEntries(fields.map((field, i) => [field, values[layer][head][i]]));
}

const MOST_MAPS = 24; // kept; of 512 tokens one is 1 MiB

/** The exact maps that were asked last, so that a head seen before is there at once. */
class Maps {
  kept = new Map();

  get(head, view) {
    return this.kept.get(keyOf(head, view));
  }

  keep(head, view, map) {
    this.kept.set(keyOf(head, view), map);
    if (this.kept.size > MOST_MAPS) this.kept.delete(this.kept.keys().next().value);
  }
}

const keyOf = (head, { level, specials, weight }) => [head, level, specials, weight].join();

/** One head's exact map for a view: its values, its axis' names and tokens, and the request it came by. */
export async function mapOf({ item, sequence, maps }, name, view) {
  const [layer, head] = place(name);
  const common = { layers: [layer], heads: [head], level: view.level, specials: view.specials };
  const normed = view.weight === "value_norm";
  const form = normed ? { form: "top", weight: "value_norm", k: sequence.tokens.length } : { form: "full" };
  const request = { inputs: [item], pooled: false, attention: { ...form, ...common } };
  const { answer, tensors } = await arrays("v1/encode", request);
  const about = answer.data[0].attention;
  const labels = names(item, answer.data[0], about);
  const values = normed ? spread(tensors, `0.attention.${layer}.${head}`, about.axis, labels.length) : tensors[`0.attention.${layer}.${head}`].values;
  const { special } = sequence, all = about.spans ?? special.map((_, i) => [i, i + 1]);
  const spans = (about.axis ?? [...all.keys()]).map((place) => all[place]);
  const map = { names: labels, size: labels.length, values, request, spans, special: spans.map(([from]) => special[from]) };
  maps.keep(name, view, map);
  return map;
}

/** The strongest keys of every row, all of them, as a matrix. */
function spread(tensors, name, axis, size) {
  const keys = tensors[`${name}.keys`], values = new Float32Array(size * size);
  const column = new Map((axis ?? Array.from({ length: size }, (_, i) => i)).map((key, i) => [key, i]));
  const width = keys.shape[1];
  keys.values.forEach((key, i) => (values[Math.floor(i / width) * size + column.get(key)] = tensors[`${name}.values`].values[i]));
  return values;
}

/** Who dominates each token in each head, by value norm. */
export async function dominance({ item, all }) {
  const { answer, tensors } = await arrays("v1/encode", { inputs: [item], pooled: false, attention: { form: "dominance" } });
  const of = (name, kind) => tensors[`0.dominance.${place(name).join(".")}.${kind}`].values;
  const heads = all.map(({ name }) => ({ name, dominant: of(name, "dominant"), share: of(name, "share"), own: of(name, "own") }));
  return { heads, wins: tensors["0.dominance.wins"].values, sequence: answer.data[0] };
}

/** The pooled vector with some heads scaled. */
export async function gated({ item }, gates) {
  const { tensors } = await arrays("v1/encode", { inputs: [item], gates });
  return tensors["0.pooled"].values;
}

export function cosine(a, b) {
  let ab = 0, aa = 0, bb = 0;
  for (let i = 0; i < a.length; i++) { ab += a[i] * b[i]; aa += a[i] * a[i]; bb += b[i] * b[i]; }
  return ab / Math.sqrt(aa * bb);
}

// Names of a sequence's tokens and words, as a reader knows them from the text.

/**
 * The name of each place of a map's axis: a token or a word as the text has it. A vocabulary's own
 * names stand for what is no part of the text alone: in one of bytes "\u4f60" is three letters of others.
 */
export function names(item, { tokens, words, offsets, segments }, view = {}) {
  const { spans = tokens.map((_, i) => [i, i + 1]) } = view;
  const axis = view.axis ?? spans.map((_, i) => i);
  const texts = [item.text, item.pair ?? ""].map((text) => Array.from(text));
  return axis.map((place) => {
    const [from, to] = spans[place];
    if (words[from] === null) return tokens[from];
    const text = texts[segments?.[from] ?? 0].slice(offsets[from][0], offsets[to - 1][1]).join("");
    return text.trim() || text.replace(/\s/g, "\u2423") || "\u2205"; // some vocabularies count the blank before a word as its own
  });
}

/** The places of a similarity's axis: its tokens, or its words, special tokens apart or left out. */
export function places({ words, special, segments }, { level, specials }) {
  const spans = [];
  words.forEach((word, i) => {
    const same = level === "word" && word !== null && i && words[i - 1] === word && segments?.[i - 1] === segments?.[i];
    if (same) spans.at(-1)[1] = i + 1;
    else spans.push([i, i + 1]);
  });
  const kept = spans.flatMap(([from], i) => (specials === "drop" && special[from] ? [] : [i]));
  return { spans, axis: kept };
}

/** The same with a number behind each name that comes more than once. */
export function numbered(list) {
  const seen = new Map();
  return list.map((name) => {
    seen.set(name, (seen.get(name) ?? 0) + 1);
    return list.indexOf(name) === list.lastIndexOf(name) ? name : `${name} (${seen.get(name)})`;
  });
}
