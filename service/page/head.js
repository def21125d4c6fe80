// One head, close: lines between its tokens, its matrix, its equation, and the same as a table.

import { button, fixed, folded, legend, make, paint, shaded, table, token } from "./dom.js";
import { cosine, gated, mapOf, numbered, place } from "./session.js";
import { about } from "./overview.js";
import { Axes } from "./axes.js";
import { Columns } from "./columns.js";
import { Why } from "./why.js";

const SPECIALS = { drop: ["special tokens hidden"], renormalize: ["special tokens left out, the rest shared out again"] };

const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

/** The places of shares, the largest first. */
const ordered = (row) => row.map((_, i) => i).sort((a, b) => row[b] - row[a]);

const LEAST = 0.005; // of a share that gets a line: at most 200 of a row
const MOST_LINES = 2000; // of all tokens, the strongest
const MOST_IN_TABLE = 40; // places of which the whole matrix is a table; beyond it is that of one row

export class Head {
  /**
   * @param session what was asked
   * @param focus {place}: the token in focus, shared by all heads that are open
   * @param actions close(name), refocus(place, chosen), leads(head), failed(error, place); changed() when its map comes or goes
   */
  constructor(session, focus, actions) {
    Object.assign(this, { session, focus, actions, view: null });
    this.heading = make("div", { className: "bar" });
    this.canvas = make("canvas", { role: "img" });
    this.canvas.onpointermove = (event) => this.map && this.point(event);
    this.canvas.onclick = (event) => this.map && this.tap(event);
    this.said = make("p", { className: "value" });
    this.legend = make("div");
    this.columns = new Columns((place) => this.refocus(place), (place) => this.map && this.tell(...this.sided(place)));
    this.mark = make("i", { className: "mark" });
    this.axes = new Axes(make("div", { className: "frame" }, this.canvas, this.mark));
    this.mixture = make("div", { className: "mixture exact" });
    this.exact = make("div", { className: "exact" });
    this.why = new Why(() => ({ ...this.words(), how: [] }), actions.failed);
    this.columns.name(session.names);
    this.region = make("section", { className: "head" }, this.heading,
      make("div", { className: "look" }, this.columns.box,
        make("div", { className: "matrix" }, this.axes.box, this.legend, this.said), this.mixture),
      this.why.box, this.exact);
  }

  /** Shows a head, in the place of the one that was shown before: its small map until the exact one is there. */
  become(name) {
    this.name = name;
    this.info = this.session.all.find((head) => head.name === name);
    this.region.ariaLabel = `Head ${name}`;
    this.heading.replaceChildren(...this.title());
    this.map = null;
    this.slider = this.gate();
    return this;
  }

  title() {
    const close = button("Close", () => this.actions.close(this.name), { "aria-label": `Close ${this.name}` });
    this.about = make("span", { className: "note" });
    this.describe();
    return [make("h2", {}, this.name), this.about, close];
  }

  /** Says what is known of the head by now. */
  describe() {
    const said = about(this.info).join(" \u00b7 ");
    this.about.textContent = said[0].toUpperCase() + said.slice(1);
  }

  small() {
    paint(this.canvas, this.info.map);
    this.legend.replaceChildren(legend("share of attention"));
    this.canvas.ariaLabel = `The map of ${this.name}, pooled`;
    this.said.textContent = "The small map, enlarged; the exact values are loading.";
  }

  /** Shows the exact map for a view; one that was here before is drawn at once. */
  async load(view) {
    const asked = { ...view };
    this.view = asked;
    const kept = this.session.maps.get(this.name, asked);
    if (kept) return this.show(kept);
    this.map = null;
    this.actions.changed();
    this.region.ariaBusy = "true";
    this.small();
    await painted(); // first the picture, then what it takes of the processor to ask for the exact one
    if (this.view !== asked) return;
    try {
      const map = await mapOf(this.session, this.name, asked);
      if (this.view === asked && this.region.isConnected) this.show(map); // not another view, nor closed meanwhile
    } catch (error) {
      if (this.view !== asked) return;
      this.reveal(false);
      this.actions.failed(error, this.said);
    }
  }

  /** Shows what an exact map gives, or hides what the last head left. */
  reveal(yes) {
    for (const part of [this.columns.box, this.mark, this.mixture, this.why.box, this.exact]) part.hidden = !yes;
    this.region.ariaBusy = "false";
    this.said.textContent = yes ? "Queries down, keys across. Point at a cell, or tap it, for its value." : "This is the small map; the exact one could not be loaded.";
  }

  show(map) {
    this.map = map;
    this.actions.changed();
    this.labels = map.labels ??= numbered(map.names);
    this.numbers = null;
    paint(this.canvas, { values: map.values, rows: map.size, columns: map.size });
    this.legend.replaceChildren(legend(this.unit()));
    this.canvas.ariaLabel = `The map of ${this.name}: queries down, keys across; the table below has its values`;
    this.reveal(true);
    this.columns.name(map.names);
    this.axes.name(map.names);
    if (!this.actions.leads(this)) return this.draw();
    this.refocus(this.strongest(), false);
    this.columns.see(this.here());
  }

  /** Brings a place of the map into focus, here and in all that is open; `chosen` by the reader. */
  refocus(place, chosen = true) {
    this.actions.refocus(this.map.spans[place][0], chosen);
  }

  /** The word whose row has the largest share of another word or, where columns are looked at, that other word. */
  strongest() {
    this.map.strongest ??= this.pair();
    return this.map.strongest[this.view.direction === "to" ? 0 : 1];
  }

  /** The query and the key, two words, with the largest share. */
  pair() {
    const words = this.map.names.flatMap((name, i) => (!this.map.special[i] && /[\p{L}\p{N}]/u.test(name) ? [i] : []));
    let strongest = Array(2).fill(words[0] ?? this.here()), most = 0;
    for (const query of words) {
      for (const key of words) {
        if (query === key || this.at(query, key) <= most) continue;
        most = this.at(query, key);
        strongest = [query, key];
      }
    }
    return strongest;
  }

  /** What stands around a figure of it: its name and role, how it is looked at, and what its numbers are. */
  words() {
    const { specials, level } = this.view, how = [...(level === "word" ? ["by words"] : []), ...(SPECIALS[specials] ?? [])];
    const known = this.info.role ? `, role ${this.info.role}` : "", { text, pair } = this.session.item;
    return { title: `Head ${this.name}${known}`, how: how.length ? [how.join(", ")] : [], unit: this.unit(), texts: [text, ...(pair ? [pair] : [])] };
  }

  /** What its numbers are. */
  unit() {
    return this.view.weight === "value_norm" ? "share of the values' norms" : "share of attention";
  }

  direction() {
    return this.view.direction === "to" ? "attends to" : "is attended by";
  }

  at(row, column) {
    return this.map.values[row * this.map.size + column];
  }

  /** What the token in focus attends to, or by whom it is attended. */
  row() {
    const here = this.here();
    return Array.from({ length: this.map.size }, (_, i) => this.share(here, i));
  }

  /** The share of a token at the left with one at the right. */
  share(left, right) {
    return this.view.direction === "to" ? this.at(left, right) : this.at(right, left);
  }

  /** The place of the token in focus, or of the word that it is in. */
  here() {
    const place = this.map.spans.findIndex(([, end]) => this.focus.place < end);
    return place < 0 ? this.map.size - 1 : place;
  }

  /** The lines of the token in focus, or of all. */
  lines() {
    const faint = this.view.lines === "all", found = [];
    for (const from of faint ? this.labels.keys() : [this.here()])
      for (let to = 0; to < this.map.size; to++) if (this.share(from, to) > LEAST) found.push({ from, to, share: this.share(from, to), faint });
    return found.sort((a, b) => a.share - b.share).slice(-MOST_LINES); // the strongest on top
  }

  /** Draws what depends on the token in focus. */
  draw() {
    const here = this.here(), lines = this.lines();
    if (lines.length === MOST_LINES) this.said.textContent = `The strongest ${MOST_LINES} lines of all tokens.`;
    this.columns.show(this.name, this.row(), lines, here, this.direction(), this.labels[here]);
    const { map } = this, whole = map.size <= MOST_IN_TABLE;
    const fill = () => (this.map !== map ? "" : whole ? this.whole() : this.single(here)); // "": the head was left meanwhile
    if (!whole || !this.numbers) this.numbers = this.twin(fill, whole);
    this.mixture.replaceChildren(this.equation(here), this.slider);
    this.exact.replaceChildren(this.numbers);
    this.why.offer(this.session, this.name, map.spans[here][0]);
    this.why.box.hidden = this.view.direction === "by"; // a row's scores, which a column has not
    this.outline(here);
  }

  /** Marks the row of the token in focus in the matrix; its column, if it is looked at. */
  outline(here) {
    const [from, size] = [`${(100 * here) / this.map.size}%`, `${100 / this.map.size}%`], whole = ["0", "100%"];
    const [[top, height], [left, width]] = this.view.direction === "to" ? [[from, size], whole] : [whole, [from, size]];
    Object.assign(this.mark.style, { top, height, left, width });
  }

  pointed(event) {
    const box = this.canvas.getBoundingClientRect(), size = this.map.size;
    const cell = (where, from, length) => Math.min(size - 1, Math.max(0, Math.floor(((where - from) / length) * size)));
    return [cell(event.clientY, box.top, box.height), cell(event.clientX, box.left, box.width)];
  }

  point(event) {
    this.tell(...this.pointed(event));
  }

  /** Chooses the token of a cell, and says the cell's value, which a finger cannot point at. */
  tap(event) {
    const cell = this.pointed(event);
    this.refocus(cell[this.view.direction === "to" ? 0 : 1]);
    this.tell(...cell);
  }

  /** The query and the key of a place in the right column. */
  sided(place) {
    return this.view.direction === "to" ? [this.here(), place] : [place, this.here()];
  }

  tell(query, key) {
    this.said.replaceChildren(token(this.map.names[query]), " \u2192 ", token(this.map.names[key]), `  ${fixed(this.at(query, key), 6)}`);
  }

  /** Z of the token in focus, as the sum of values that it is. */
  equation(here) {
    if (this.view.direction === "by") return make("p", { className: "note" }, "Columns do not sum to 1: each row is shared out by itself.");
    const row = this.row(), order = ordered(row), shown = order.slice(0, 6);
    const rest = order.slice(6).reduce((sum, i) => sum + row[i], 0);
    const sum = shown.map((i) => `${fixed(row[i], 2)} V_${this.labels[i]}`).join(" + ") + (order.length > 6 ? ` + rest ${fixed(rest, 2)}` : "");
    const most = order[0], own = fixed(row[here], 2);
    const dominated = most === here ? "its own value dominates" : `dominated by ${this.labels[most]} (own share ${own})`;
    const unit = this.view.weight === "value_norm" ? "Shares of the values' norms" : "Shares of attention";
    const others = order.length > 6 ? " The rest: all other tokens." : "";
    return make("div", {}, make("p", { className: "equation" }, make("bdi", {}, `Z_${this.labels[here]} = ${sum}`)), make("p", { className: "note" }, `${unit}: ${dominated}.${others}`));
  }

  /** A slider that scales the head, and how far the encoding moves. */
  gate() {
    const [layer, head] = place(this.name), moved = make("output", { "aria-label": `Cosine without ${this.name}` }, "1.0000");
    const slider = make("input", { type: "range", min: 0, max: 1, step: 0.1, value: 1, "aria-label": `Scale of ${this.name}` });
    slider.onchange = async () => {
      const { value } = slider;
      try {
        const vector = await gated(this.session, [{ layer, head, scale: Number(value) }]);
        if (value === slider.value) moved.textContent = fixed(cosine(this.session.pooled, vector)); // not moved on meanwhile
      } catch (error) {
        if (value !== slider.value) return;
        moved.textContent = "\u2013";
        this.actions.failed(error, slider);
      }
    };
    return make("p", { className: "bar" }, make("label", {}, "Scale this head", slider), make("span", {}, "cosine to the unchanged encoding ", moved));
  }

  /** The same as numbers. */
  twin(fill, opened) {
    const twin = folded("The matrix as a table", fill);
    twin.open = this.opened ?? opened;
    twin.addEventListener("toggle", () => (this.opened = twin.open));
    return twin;
  }

  whole() {
    const rows = this.labels.map((label, i) => [label, ...this.labels.map((_, j) => shaded(this.at(i, j), Math.sqrt(this.at(i, j))))]);
    return table(`${this.name}: each row is a query, each column a key`, ["Query", ...this.labels], rows);
  }

  single(here) {
    const row = this.row(), caption = `${this.name}: ${this.labels[here]} ${this.direction()}`;
    return table(caption, ["Token", "share"], ordered(row).map((i) => [this.labels[i], fixed(row[i])]));
  }
}
