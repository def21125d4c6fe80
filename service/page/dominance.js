// Who dominates whom: for each token, whose value is the largest part of what each head mixes.

import { fixed, folded, make, table, token } from "./dom.js";
import { dominance, numbered } from "./session.js";

/** Draws the fold; it asks when it is opened, and where that failed when it is opened again. */
export function draw(section, session, focus, failed) {
  const place = make("div");
  const fold = folded("Who dominates whom, over all heads", () => place);
  fold.addEventListener("toggle", async () => {
    if (!fold.open || place.querySelector("table")) return;
    place.replaceChildren();
    try {
      const found = await dominance(session);
      show(place, session, found, focus);
    } catch (error) {
      failed(error, place);
    }
  });
  section.replaceChildren(fold);
  return () => place.refocus?.();
}

function show(place, session, found, focus) {
  const labels = numbered(session.names), count = found.heads.length;
  const wins = labels.map((label, i) => [i, label, found.wins[i]]).sort((a, b) => b[2] - a[2]);
  const rows = labels.map((label, i) => {
    const leaders = new Map();
    for (const head of found.heads) leaders.set(head.dominant[i], (leaders.get(head.dominant[i]) ?? 0) + 1);
    const [leader, heads] = [...leaders].sort((a, b) => b[1] - a[1])[0];
    const own = found.heads.reduce((sum, head) => sum + head.own[i], 0) / count;
    return [label, labels[leader], `${heads} of ${count}`, fixed(own), String(found.wins[i])];
  });
  const chosen = make("div", { "aria-live": "polite" });
  place.refocus = () => {
    const i = Math.min(focus.place, labels.length - 1);
    const list = found.heads.map((head) => [head.name, labels[head.dominant[i]], fixed(head.share[i]), fixed(head.own[i])]);
    chosen.replaceChildren(make("h3", {}, "Who dominates ", token(labels[i]), " in each head"), table(`Each head's strongest part of ${labels[i]}`, ["Head", "dominated by", "its share", "own share"], list));
  };
  place.replaceChildren(
    make("p", { className: "note" }, `A head's output for a token is a sum of values. Shares are of their norms. '${wins[0][1]}' is most often the largest part (${wins[0][2]} times).`),
    table("For each token: the token whose value is most often the largest part", ["Token", "dominated by", "heads", "mean own share", "dominates others"], rows), chosen);
  place.refocus();
}
