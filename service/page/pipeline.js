// One layer, step by step: every intermediate that POST /v1/explain gives, with its shape and values.

import { ask } from "./api.js";
import { button, choice, fixed, legend, make, paint, refill, table } from "./dom.js";
import { names, numbered } from "./session.js";

const TURNED = "With rotary position embeddings each is then rotated by its position.";
// Each with its title and what is done; of layers that normalise first (pre-norm) something else is.
const STEPS = [
  ["x", "X'", () => "The layer's input: the embedding with its position, or the output of the layer below."],
  ["entered", "Norm", ({ same }) => (same ? "X' as it is: this layer has no norm before its attention." : "X' normalised: this layer's attention reads it in place of X'.")],
  ["q", "Q", ({ source }) => `Each head's queries: ${source} times its W_Q. ${TURNED}`],
  ["k", "K", ({ source }) => `Each head's keys: ${source} times its W_K. ${TURNED}`],
  ["v", "V", ({ source }) => `Each head's values: ${source} times its W_V.`],
  ["scores", "Scores", ({ hidden }) => `Each query times each key, divided by the square root of the head's width.${hidden ? " \u2013 stands for keys beyond the layer's window." : ""}`],
  ["probabilities", "Softmax", () => "Each row of scores, normalised to sum to 1."],
  ["z", "Z", () => "Each head's output: the values, mixed by those shares."],
  ["concat", "Concat", () => "All heads' outputs side by side."],
  ["projected", "W_O", () => "Concat times W_O."],
  ["normed", "Add & norm", ({ first }) => `W_O's result is added to X', and ${first ? "what the feed-forward block reads of it is normalised" : "normalised"}.`],
  ["feed_forward", "Feed-forward", () => "The output of the block's linear maps and their activation."],
  ["output", "Output", ({ first, last }) => (first ? `X', W_O's result and the feed-forward block's, added up${last ? " and, as this layer is the last, normalised" : ""}: what ` : "Added and normalised again: what ") + (last ? "the model answers." : "the next layer gets.")],
];
const PREFIX = 8; // columns of a row that the table shows
const MOST_KEYS = 40; // of a map whose table has every key

export class Pipeline {
  constructor(section, failed) {
    Object.assign(this, { section, failed, layer: 0, head: 0, step: "x" });
  }

  show(session) {
    this.session = session;
    this.layers = new Set(session.all.map(({ layer }) => layer)).size;
    this.explained = null;
    this.draw();
  }

  async load() {
    const { session, layer } = this;
    try {
      const explained = await ask("v1/explain", { ...session.item, layer });
      if (session !== this.session || layer !== this.layer) return; // another text or layer meanwhile
      this.explained = explained;
      this.draw();
    } catch (error) {
      if (session !== this.session || layer !== this.layer) return;
      this.explained = null; // which may be of another layer
      this.draw();
      this.failed(error, this.section);
    }
  }

  draw() {
    const heading = make("h2", {}, "One layer, step by step");
    const layers = Array.from({ length: this.layers }, (_, i) => [String(i), String(i)]);
    const bar = make("div", { className: "bar" }, choice("Layer", layers, String(this.layer), (value) => ((this.layer = Number(value)), this.load())));
    if (!this.explained) {
      bar.append(button("Walk through it", () => this.load()));
      return refill(this.section, heading, bar);
    }
    const steps = STEPS.filter(([name]) => name in this.explained.shapes);
    const here = Math.max(0, steps.findIndex(([name]) => name === this.step));
    const go = (i) => () => ((this.step = steps[i][0]), this.draw());
    const current = (i) => (i === here ? { "aria-current": "step" } : {});
    const list = make("ol", { className: "steps" }, ...steps.map(([, title], i) => make("li", {}, button(title, go(i), current(i)))));
    bar.append(
      button("Previous step", go(Math.max(0, here - 1)), { disabled: here === 0 }),
      button("Next step", go(Math.min(steps.length - 1, here + 1)), { disabled: here === steps.length - 1 }));
    refill(this.section, heading, bar, list, ...this.values(steps[here]));
  }

  /** What the steps' sentences turn on. */
  facts() {
    const { x, entered, scores } = this.explained;
    const same = entered?.every((row, i) => row.every((value, j) => value === x[i][j]));
    return { first: !!entered, same, source: entered ? "Norm" : "X'", last: this.layer === this.layers - 1, hidden: scores[0].some((row) => row.includes(null)) };
  }

  values([name, title, sentence]) {
    const shape = this.explained.shapes[name], byHead = shape.length === 3;
    const rows = byHead ? this.explained[name][this.head] : this.explained[name];
    const labels = numbered(names(this.session.item, this.explained)), square = byHead && shape[1] === shape[2];
    const columns = square && labels.length <= MOST_KEYS ? labels : Array.from({ length: Math.min(PREFIX, shape.at(-1)) }, (_, i) => (square ? labels[i] : String(i)));
    const parts = [make("p", {}, `${sentence(this.facts())} Shape ${shape.join(" \u00d7 ")}.`)];
    if (byHead) {
      const heads = Array.from({ length: shape[0] }, (_, i) => [String(i), String(i)]);
      parts.push(make("div", { className: "bar" }, choice("Head", heads, String(this.head), (value) => ((this.head = Number(value)), this.draw()))));
    }
    const cut = columns.length < shape.at(-1) ? `, the first ${PREFIX} of ${shape.at(-1)} ${square ? "keys" : "numbers"} of each token` : "";
    parts.push(...picture(rows, title, name === "probabilities"), table(`${title}${byHead ? ` of head ${this.head}` : ""}${cut}`, ["Token", ...columns], rows.map((row, i) => [labels[i], ...row.slice(0, columns.length).map((value) => fixed(value))])));
    return parts;
  }
}

/** All of a step's numbers as a picture and its legend: shares on their scale, others with their signs. */
function picture(rows, title, shares) {
  const flat = rows.flat().filter((value) => value !== null), low = flat.reduce((a, b) => Math.min(a, b)), high = flat.reduce((a, b) => Math.max(a, b));
  const most = Math.max(-low, high);
  const canvas = make("canvas", { role: "img", "aria-label": `${title}: all its numbers, from ${fixed(low)} to ${fixed(high)}` });
  paint(canvas, { values: rows.flat(), rows: rows.length, columns: rows[0].length }, shares ? Math.sqrt : (value) => value / (most || 1));
  canvas.className = "strip";
  return [canvas, shares ? legend(title) : legend(title, most)];
}
