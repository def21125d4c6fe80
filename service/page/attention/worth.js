// What each head is worth: what changes when it alone is removed.

import { ask } from "./api.js";
import { cosine, gated } from "./session.js";

const AT_ONCE = 4; // requests under way

/** Asks for every head of a model by itself; `ask` gets its gates, and gives a number. */
async function each(heads, one, progress) {
  const worth = {}, waiting = [...heads];
  const work = async () => {
    for (let head = waiting.shift(); head; head = waiting.shift()) {
      worth[head.name] = await one([{ layer: head.layer, head: head.head, scale: 0 }]);
      progress(Object.keys(worth).length, heads.length);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return worth;
}

/** What each head adds to a pair of words of two texts: the pair's share with the head, less that without it. */
export async function ofPair(heads, request, [i, j], progress) {
  const share = async (gates) => (await ask("v1/similarity", { ...request, form: "full", ...(gates && { gates }) })).right[0].matrix[i][j];
  const whole = await share();
  return each(heads, async (gates) => whole - (await share(gates)), progress);
}

/** How far the encoding moves without each head: 1 less the cosine to the untouched one. */
export const ofEncoding = (session, progress) =>
  each(session.all, async (gates) => 1 - cosine(session.pooled, await gated(session, gates)), progress);
