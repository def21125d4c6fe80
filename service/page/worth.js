// What each head is worth, as numbers by its name: what changes when it alone is removed, or its exact share.

import { ask } from "./api.js";
import { headName } from "./session.js";

/** What is told of each head, by its name. */
const named = (numbers, worth = (number) => number) =>
  Object.fromEntries(Object.entries(numbers).flatMap(([layer, heads]) => Object.entries(heads).map(([head, number]) => [headName(layer, head), worth(number)])));

/** How far the encoding moves without each head: 1 less the cosine to the untouched one. */
export async function ofEncoding({ item }) {
  const { data: [{ sweep }] } = await ask("v1/encode", { inputs: [item], sweep: "heads" });
  return { title: "moves the encoding", meaning: "1 less the cosine between the encoding with the head and without it.", numbers: named(sweep.cosine, (cosine) => 1 - cosine) };
}

/** What each head adds to the score of two texts, by removing it. */
export async function ofScore(texts) {
  const { right: [{ sweep }] } = await ask("v1/similarity", { ...texts, form: "score", sweep: "heads" });
  return {
    title: "adds to the score, measured by removing it",
    meaning: "What the score loses when the head is removed from both texts; later heads see the change, and may make up for it.",
    numbers: named(sweep.change, (change) => -change),
  };
}

/** What each head adds to the score of two texts, by its exact shares. */
export async function ofShares(texts) {
  const { right: [{ worth, left_heads: left, right_heads: right }] } = await ask("v1/similarity", { ...texts, by: "head" });
  return {
    title: "adds to the score, with attention patterns kept",
    meaning: "How fast the score falls as the head is scaled down in both texts while all attention patterns, norms and activations stay as they are: its shares on both sides, less what it adds to the vectors' lengths.",
    numbers: named(worth),
    parts: { "share, text": named(left), "share, other text": named(right) },
  };
}

/** What each head adds to a pair of words of two texts: the pair's share with the head, less that without it. */
export async function ofPair(request, pair, name) {
  const { right: [{ sweep }] } = await ask("v1/similarity", { ...request, sweep: "heads", sweep_pair: pair });
  return { title: `adds to ${name}`, meaning: "What the pair's share of the score loses when the head is removed from both texts.", numbers: named(sweep.share, (change) => -change) };
}
