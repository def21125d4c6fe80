// What each head is worth: what changes when it alone is removed.

import { ask } from "./api.js";
import { headName } from "./session.js";

const AT_ONCE = 4; // requests under way

/** What a sweep says of each head, by its name. */
const named = (numbers, worth) =>
  Object.fromEntries(Object.entries(numbers).flatMap(([layer, heads]) => Object.entries(heads).map(([head, number]) => [headName(layer, head), worth(number)])));

/** How far the encoding moves without each head: 1 less the cosine to the untouched one. */
export async function ofEncoding({ item }) {
  const { data: [{ sweep }] } = await ask("v1/encode", { inputs: [item], sweep: "heads" });
  return named(sweep.cosine, (cosine) => 1 - cosine);
}

/** What each head adds to the score of two texts. */
export async function ofScore(texts) {
  const { right: [{ sweep }] } = await ask("v1/similarity", { ...texts, form: "score", sweep: "heads" });
  return named(sweep.change, (change) => -change);
}

/**
 * What each head adds to a pair of words of two texts: the pair's share with the head, less that without it.
 * A sweep has the score alone, so this asks once for each head.
 */
export async function ofPair(heads, request, [i, j], progress) {
  const share = async (gates) => (await ask("v1/similarity", { ...request, ...(gates && { gates }) })).right[0].matrix[i][j];
  const whole = await share(), worth = {}, waiting = [...heads];
  let failed = false; // then the others are not told of, and no more is asked
  const work = async () => {
    for (let head = waiting.shift(); head && !failed; head = waiting.shift()) {
      worth[head.name] = whole - (await share([{ layer: head.layer, head: head.head, scale: 0 }]));
      if (!failed) progress(Object.keys(worth).length, heads.length);
    }
  };
  try {
    await Promise.all(Array.from({ length: AT_ONCE }, work));
  } finally {
    failed = true;
  }
  return worth;
}
