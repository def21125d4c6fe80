// The tokens along a matrix: its queries at the left, its keys above it, turned; of many, those that have room.

import { make, token } from "./dom.js";
import { thinned } from "./figure.js";

const LINE = 16; // of text, in pixels

export class Axes {
  /** @param frame what holds the matrix, and is as large as it */
  constructor(frame) {
    Object.assign(this, { frame, names: [] });
    [this.down, this.across] = ["down", "across"].map((way) => make("div", { className: `axis ${way}`, "aria-hidden": "true" }));
    this.box = make("div", { className: "plot" }, make("span"), this.across, this.down, frame);
    new ResizeObserver(() => this.draw()).observe(frame);
  }

  name(names) {
    this.names = names;
    this.every = null;
    this.draw();
  }

  draw() {
    const count = this.names.length, cell = this.frame.clientWidth / count, every = thinned(cell, LINE);
    if (!cell || (every === this.every && this.cell === cell)) return;
    Object.assign(this, { every, cell });
    const shown = this.names.map((name, i) => [name, i]).filter(([, i]) => i % every === 0 && (count - i - 0.5) * cell >= LINE / 2);
    for (const [axis, lane, tracks] of [[this.down, "gridRow", "gridTemplateRows"], [this.across, "gridColumn", "gridTemplateColumns"]]) {
      axis.style[tracks] = `repeat(${count}, minmax(0, 1fr))`;
      axis.replaceChildren(...shown.map(([name, i]) => {
        const label = make("span", { title: name }, token(name));
        label.style[lane] = String(i + 1);
        return label;
      }));
    }
  }
}
