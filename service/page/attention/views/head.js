// One head, close: lines from the token in focus, its matrix, its equation, and the same as a table.

import { fixed, folded, make, scrolled, table, token } from "../dom.js";
import { paint, shade } from "../colours.js";
import { gated, cosine, mapOf, place } from "../session.js";
import { numbered } from "../words.js";

const SVG = "http://www.w3.org/2000/svg";
const ROW = 25.6; // of a token in the columns, in pixels: 1.6rem
const MOST_IN_TABLE = 40; // places of which the whole matrix is a table; beyond it is that of one row

export class Head {
  /**
   * @param name such as L5H11
   * @param session what was asked
   * @param focus {place}: the token in focus, shared by all heads that are open
   * @param actions close(), refocus(place), failed(error)
   */
  constructor(name, session, focus, actions) {
    Object.assign(this, { name, session, focus, actions });
    this.info = session.all.find((head) => head.name === name);
    this.region = make("section", { className: "head", "aria-label": `Head ${name}` });
    this.canvas = make("canvas", { role: "img" });
    this.said = make("p", { className: "value" });
    this.body = make("div");
    this.region.append(this.title(), this.body);
    this.map = null;
    this.small();
  }

  title() {
    const close = make("button", { type: "button", onclick: () => this.actions.close(this.name), "aria-label": `Close ${this.name}` }, "Close");
    const { role, stats } = this.info;
    const about = `${role ? `Role ${role}` : "No role"} \u00b7 contribution ${fixed(stats.contribution)} \u00b7 entropy ${fixed(stats.entropy)} nats`;
    return make("div", { className: "bar" }, make("h2", {}, this.name), make("span", { className: "note" }, about), close);
  }

  /** Shows the overview's map at once, until the exact one is there. */
  small() {
    paint(this.canvas, this.info.map);
    this.canvas.setAttribute("aria-label", `The map of ${this.name}, pooled`);
    this.body.replaceChildren(make("div", { className: "matrix" }, this.canvas, this.said));
  }

  async load(view) {
    const asked = { ...view };
    this.view = asked;
    this.region.ariaBusy = "true";
    try {
      const map = await mapOf(this.session, this.name, asked);
      if (this.view !== asked || !this.region.isConnected) return; // another view, or closed meanwhile
      this.map = map;
      this.labels = numbered(map.names);
      this.draw();
    } catch (error) {
      this.actions.failed(error);
    }
    this.region.ariaBusy = "false";
  }

  at(row, column) {
    return this.map.values[row * this.map.size + column];
  }

  /** What the token in focus attends to, or by whom it is attended. */
  row() {
    const here = Math.min(this.focus.place, this.map.size - 1);
    return Array.from({ length: this.map.size }, (_, i) => (this.view.direction === "to" ? this.at(here, i) : this.at(i, here)));
  }

  draw() {
    const here = Math.min(this.focus.place, this.map.size - 1);
    paint(this.canvas, { values: this.map.values, rows: this.map.size, columns: this.map.size });
    this.canvas.setAttribute("aria-label", `The map of ${this.name}: queries down, keys across; the table below has its values`);
    this.canvas.onpointermove = (event) => this.point(event);
    this.canvas.onclick = (event) => this.actions.refocus(this.pointed(event)[this.view.direction === "to" ? 0 : 1]);
    this.body.replaceChildren(
      make("div", { className: "look" }, this.lines(here), make("div", { className: "matrix" }, this.canvas, this.said)),
      this.equation(here), this.gate(), this.twin(here));
    if (!this.said.textContent) this.said.textContent = "Queries down, keys across. Point at a cell for its value.";
  }

  lines(here) {
    const row = this.row(), label = this.view.direction === "to" ? "attends to" : "is attended by";
    const left = make("ol", { "aria-label": `Token that ${label}` }, ...this.map.names.map((name, i) =>
      make("li", {}, make("button", { type: "button", "aria-pressed": i === here, onclick: () => this.actions.refocus(i) }, token(name)))));
    const right = make("ol", { "aria-label": `What ${this.labels[here]} ${label}` }, ...this.map.names.map((name, i) => {
      const cell = make("span", { title: fixed(row[i]) }, token(name));
      shade(cell, Math.sqrt(row[i]));
      return make("li", {}, cell);
    }));
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("viewBox", `0 0 100 ${ROW * row.length}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("height", ROW * row.length);
    row.forEach((share, i) => share > 0.005 && svg.append(line(here, i, share)));
    this.svg = svg;
    return scrolled(`Lines of ${this.name}`, make("div", { className: "lines" }, left, svg, right));
  }

  pointed(event) {
    const box = this.canvas.getBoundingClientRect(), size = this.map.size;
    const cell = (where, from, length) => Math.min(size - 1, Math.max(0, Math.floor(((where - from) / length) * size)));
    return [cell(event.clientY, box.top, box.height), cell(event.clientX, box.left, box.width)];
  }

  point(event) {
    const [query, key] = this.pointed(event);
    this.said.replaceChildren(token(this.map.names[query]), " \u2192 ", token(this.map.names[key]), `  ${fixed(this.at(query, key), 6)}`);
  }

  /** Z of the token in focus, as the sum of values that it is. */
  equation(here) {
    if (this.view.direction === "by") return make("p", { className: "note" }, "Columns do not sum to 1: each row is shared out by itself.");
    const row = this.row(), order = row.map((_, i) => i).sort((a, b) => row[b] - row[a]), shown = order.slice(0, 6);
    const rest = order.slice(6).reduce((sum, i) => sum + row[i], 0);
    const sum = shown.map((i) => `${fixed(row[i], 2)} V_${this.labels[i]}`).join(" + ") + (order.length > 6 ? ` + rest ${fixed(rest, 2)}` : "");
    const most = order[0], own = fixed(row[here], 2);
    const dominated = most === here ? "its own value dominates" : `dominated by ${this.labels[most]} (own share ${own})`;
    const unit = this.view.weight === "value_norm" ? "Shares of the values' norms" : "Shares of attention";
    return make("div", {}, make("p", { className: "equation" }, make("bdi", {}, `Z_${this.labels[here]} = ${sum}`)), make("p", { className: "note" }, `${unit}: ${dominated}.`));
  }

  /** A slider that scales the head, and how far the encoding moves. */
  gate() {
    const [layer, head] = place(this.name), moved = make("output", { "aria-label": `Cosine without ${this.name}` }, "1.0000");
    const slider = make("input", { type: "range", min: 0, max: 1, step: 0.1, value: 1, "aria-label": `Scale of ${this.name}` });
    slider.onchange = async () => {
      try {
        moved.textContent = fixed(cosine(this.session.pooled, await gated(this.session, [{ layer, head, scale: Number(slider.value) }])));
      } catch (error) {
        this.actions.failed(error);
      }
    };
    return make("p", { className: "bar" }, make("label", {}, "Scale this head", slider), make("span", {}, "cosine of the encoding to the untouched one ", moved));
  }

  /** The same as numbers. */
  twin(here) {
    const fill = this.map.size <= MOST_IN_TABLE ? () => this.whole() : () => this.single(here);
    const twin = folded("As a table", fill);
    twin.open = this.opened ?? this.map.size <= MOST_IN_TABLE;
    twin.addEventListener("toggle", () => (this.opened = twin.open));
    return twin;
  }

  whole() {
    const rows = this.labels.map((label, i) => [label, ...this.labels.map((_, j) => {
      const cell = make("td", { className: "shade" }, fixed(this.at(i, j)));
      shade(cell, Math.sqrt(this.at(i, j)));
      return cell;
    })]);
    return table(`${this.name}: each row is a query, each column a key`, ["Query", ...this.labels], rows);
  }

  single(here) {
    const row = this.row(), order = row.map((_, i) => i).sort((a, b) => row[b] - row[a]);
    const caption = `${this.name}: ${this.labels[here]} ${this.view.direction === "to" ? "attends to" : "is attended by"}`;
    return table(caption, ["Token", "share"], order.map((i) => [this.labels[i], fixed(row[i])]));
  }
}

function line(from, to, share) {
  const line = document.createElementNS(SVG, "line");
  const y = (place) => ROW * (place + 0.5);
  for (const [name, value] of Object.entries({ x1: 0, x2: 100, y1: y(from), y2: y(to), "stroke-width": 0.5 + 7 * share, "stroke-opacity": 0.15 + 0.85 * Math.sqrt(share), "vector-effect": "non-scaling-stroke" })) line.setAttribute(name, value);
  return line;
}
