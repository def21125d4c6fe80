// Several texts: how alike each is to each; and where a reranker is served, in which order they answer a query.

import { arrays, ask } from "./api.js";
import { fixed, folded, legend, make, shaded, table } from "./dom.js";
import { cosine } from "./session.js";

const MOST = 32;

/** Draws the fold; what it returns adds what a checkpoint can beyond that, once its tasks are known. */
export function draw(section, failed) {
  const box = make("textarea", { id: "several", rows: 5, dir: "auto" }), result = make("div", { "aria-live": "polite" });
  const button = (title, least, act) => make("button", { type: "button", onclick: async () => {
    const lines = box.value.split("\n").filter((text) => text.trim());
    if (lines.length < least || lines.length > MOST) return result.replaceChildren(make("p", { className: "bad" }, `Enter ${least} to ${MOST} texts, one per line.`));
    try {
      result.replaceChildren(await act(lines));
    } catch (error) {
      result.replaceChildren();
      failed(error, result);
    }
  } }, title);
  const ranking = make("div");
  const whole = make("div", {}, make("div", { className: "field" }, make("label", { htmlFor: "several" }, "Texts, one per line"), box), make("p", {}, button("Compare", 2, compare)), ranking, result);
  section.replaceChildren(folded("Compare several texts", () => whole));
  return (tasks) => {
    if (!tasks.includes("rerank")) return;
    const query = make("textarea", { id: "query", rows: 1, dir: "auto" });
    ranking.replaceChildren(make("div", { className: "field" }, make("label", { htmlFor: "query" }, "Query"), query), make("p", {}, button("Rank", 1, (lines) => ranked(query.value, lines))));
  };
}

async function compare(lines) {
  const { tensors } = await arrays("v1/encode", { inputs: lines });
  return heat(lines, lines.map((_, i) => tensors[`${i}.pooled`].values));
}

async function ranked(query, documents) {
  const { results } = await ask("v1/rerank", { query, documents });
  return table("Texts ranked by the query", ["Text", "score"], results.map(({ index, relevance_score }) => [documents[index], fixed(relevance_score)]));
}

function heat(lines, vectors) {
  const alike = vectors.map((a) => vectors.map((b) => cosine(a, b)));
  const rows = alike.map((row, i) => [`${i + 1}. ${lines[i]}`, ...row.map((value) => shaded(value, value))]);
  return make("div", {}, table("Cosine of each pair of texts", ["Text", ...lines.map((_, i) => String(i + 1))], rows), legend("cosine", 1));
}
