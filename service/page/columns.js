// A head's tokens in two columns, with lines between them. Made once for an axis, and only recoloured
// for another head or token: the reader's place and focus stay, and 512 tokens cost nothing anew.

import { button, draw, fixed, make, scrolled, shade, token } from "./dom.js";

const ROW = 25.6; // of a token, in pixels: 1.6rem
const LEVELS = 128; // of colour

export class Columns {
  /**
   * @param choose called with the place of a token that is to be in focus
   * @param tell called with the place of one whose share is to be said
   */
  constructor(choose, tell) {
    Object.assign(this, { choose, tell });
    this.left = make("ol", { onkeydown: (event) => this.key(event) });
    this.right = make("ol", { onpointerover: ({ target }) => this.point(target.closest("span")), onclick: ({ target }) => this.point(target.closest("span")) });
    this.svg = draw("svg", { "aria-hidden": "true", preserveAspectRatio: "none" });
    this.box = scrolled("", make("div", { className: "lines" }, this.left, this.svg, this.right));
    this.here = 0;
  }

  /** Names the rows, where they are others than before. */
  name(names) {
    if (this.names?.length === names.length && names.every((name, i) => name === this.names[i])) return;
    Object.assign(this, { names, levels: [] });
    this.buttons = names.map((name, i) => button(token(name), () => this.choose(i), { tabIndex: -1, "aria-pressed": "false" }));
    this.cells = names.map((name) => make("span", {}, token(name)));
    this.left.replaceChildren(...this.buttons.map((button) => make("li", {}, button)));
    this.right.replaceChildren(...this.cells.map((cell) => make("li", {}, cell)));
    this.svg.setAttribute("viewBox", `0 0 100 ${ROW * names.length}`);
    this.svg.setAttribute("height", ROW * names.length);
  }

  /** Draws the shares of the token in focus, and lines, each {from, to, share}; `label` says what they are. */
  show(head, row, lines, here, label, name) {
    this.box.ariaLabel = `Lines of ${head}`;
    this.left.ariaLabel = `Token that ${label}`;
    this.right.ariaLabel = `What ${name} ${label}`;
    this.row = row;
    row.forEach((share, i) => this.colour(i, Math.round(LEVELS * Math.sqrt(share))));
    this.svg.replaceChildren(...lines.map(line));
    this.focus(here);
  }

  /** Colours a cell, if its colour is another than before: of 512 shares most stay next to nothing. */
  colour(i, level) {
    if (this.levels[i] === level) return;
    this.levels[i] = level;
    shade(this.cells[i], level / LEVELS);
  }

  focus(here) {
    this.press(this.buttons[this.here], false);
    this.press(this.buttons[here], true);
    this.here = here;
  }

  /** Scrolls to a token. */
  see(here) {
    this.box.scrollTop = ROW * here - this.box.clientHeight / 2;
  }

  point(cell) {
    if (!cell || !this.row) return;
    cell.title = fixed(this.row[this.cells.indexOf(cell)]);
    this.tell(this.cells.indexOf(cell));
  }

  press(button, pressed) {
    button?.setAttribute("aria-pressed", pressed);
    if (button) button.tabIndex = pressed ? 0 : -1;
  }

  /** One stop of the Tab key; the arrows walk along the tokens. */
  key(event) {
    const last = this.buttons.length - 1, here = this.buttons.indexOf(document.activeElement);
    const steps = { ArrowDown: Math.min(last, here + 1), ArrowUp: Math.max(0, here - 1), Home: 0, End: last };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.buttons[steps[event.key]].focus();
    this.choose(steps[event.key]);
  }
}

function line({ from, to, share, faint }) {
  const y = (place) => ROW * (place + 0.5);
  return draw("line", { x1: 0, x2: 100, y1: y(from), y2: y(to), ...stroke(share, faint), "vector-effect": "non-scaling-stroke" });
}

/** How a line is drawn: thick and dark as its share is large; among all tokens' lines its opacity is its share. */
export const stroke = (share, faint) => ({ "stroke-width": 0.5 + 7 * share, "stroke-opacity": faint ? share : 0.15 + 0.85 * Math.sqrt(share) });
