// The grid of all heads: a small map each, its role, and what it contributes to its layer.

import { choice, fixed, folded, make, refill, table } from "../dom.js";
import { paint } from "../colours.js";

const ORDERS = {
  place: ["layer and head", (head) => head.layer * 1000 + head.head],
  contribution: ["contribution", (head) => -head.stats.contribution],
  entropy: ["entropy, least first", (head) => head.stats.entropy],
  previous: ["looks at the previous token", (head) => -head.stats.previous],
  next: ["looks at the next token", (head) => -head.stats.next],
  self: ["looks at itself", (head) => -head.stats.self],
  cls: ["looks at the first special token", (head) => -head.stats.cls],
  sep: ["looks at separators", (head) => -head.stats.sep],
  distance: ["looks far", (head) => -head.stats.distance],
};
const COLUMNS = ["contribution", "entropy", "previous", "next", "self", "cls", "sep", "distance"];

export class Overview {
  /**
   * @param section where it is drawn
   * @param toggle called with a head's name to open it, or to close it if it is open; `beside` keeps others open
   */
  constructor(section, toggle) {
    Object.assign(this, { section, toggle, order: "place", role: "all", worth: null });
  }

  /** Draws a session's heads; `more` are controls beside its own. */
  show(session, chosen, more) {
    Object.assign(this, { session, chosen, more, worth: null });
    if (this.order === "worth") this.order = "place";
    this.draw();
  }

  choose(chosen) {
    const changed = new Set([...this.chosen, ...chosen]);
    this.chosen = chosen;
    for (const cell of this.cells) if (changed.has(cell.dataset.head)) cell.setAttribute("aria-selected", chosen.includes(cell.dataset.head));
  }

  /** Orders the heads by what they are worth: a number for each head's name, largest first. */
  rank(worth, title) {
    Object.assign(this, { worth, title, order: "worth" });
    this.draw();
  }

  listed() {
    const rank = this.order === "worth" ? (head) => -this.worth[head.name] : ORDERS[this.order][1];
    const kept = this.session.all.filter(({ role }) => this.role === "all" || (role ?? "none") === this.role);
    return kept.sort((a, b) => rank(a) - rank(b));
  }

  draw() {
    const roles = [...new Set(this.session.all.map(({ role }) => role ?? "none"))].sort();
    const orders = Object.entries(ORDERS).map(([name, [title]]) => [name, title]);
    if (this.worth) orders.push(["worth", this.title]);
    const redraw = (field) => (value) => ((this[field] = value), this.draw());
    this.said = make("p", { className: "note" }, "Arrow keys move, Enter opens a head, Shift and Enter opens it beside the others.");
    refill(this.section,
      make("h2", {}, "All heads"),
      make("div", { className: "bar" },
        choice("Order", orders, this.order, redraw("order")),
        choice("Role", [["all", "all"], ...roles.map((role) => [role, role])], this.role, redraw("role")),
        ...this.more),
      this.grid(), this.said,
      folded("All heads as a table", () => this.table()));
  }

  grid() {
    const heads = this.listed(), width = Math.max(...this.session.all.map(({ head }) => head)) + 1;
    const most = Math.max(...heads.map(({ stats }) => stats.contribution ?? 0));
    this.cells = heads.map((head) => this.cell(head, most));
    const first = this.cells.find((cell) => this.chosen.includes(cell.dataset.head)) ?? this.cells[0];
    if (first) first.tabIndex = 0;
    const rows = [];
    for (let i = 0; i < heads.length; i += width) rows.push(make("div", { role: "row" }, ...this.cells.slice(i, i + width)));
    return make("div", { role: "grid", "aria-label": "Heads", "aria-multiselectable": "true", onkeydown: (event) => this.key(event, width) }, ...rows);
  }

  cell(head, most) {
    const canvas = make("canvas", { "aria-hidden": "true" });
    paint(canvas, head.map);
    const meter = make("i", { className: "meter" });
    meter.style.width = `${(100 * (head.stats.contribution ?? 0)) / most}%`;
    const below = this.worth && this.order === "worth" ? fixed(this.worth[head.name]) : head.role ?? "";
    const label = make("span", {}, head.name), badge = make("span", { className: "badge" }, below);
    const cell = make("div", { role: "gridcell", "aria-label": head.name, "aria-selected": this.chosen.includes(head.name), title: this.sentence(head), tabIndex: -1 }, canvas, meter, label, badge);
    cell.dataset.head = head.name;
    cell.onclick = (event) => this.open(cell, event.shiftKey || event.ctrlKey || event.metaKey);
    cell.onfocus = () => (this.said.textContent = this.sentence(head));
    return cell;
  }

  sentence({ name, role, stats }) {
    const worth = this.worth ? `; ${this.title} ${fixed(this.worth[name])}` : "";
    return `${name}: ${role ? `role ${role}` : "no role"}; contribution ${fixed(stats.contribution)}, entropy ${fixed(stats.entropy)} nats${worth}.`;
  }

  open(cell, beside) {
    this.move(cell);
    this.toggle(cell.dataset.head, beside);
  }

  move(cell) {
    for (const other of this.cells) other.tabIndex = other === cell ? 0 : -1;
    cell.focus();
  }

  key(event, width) {
    const here = this.cells.indexOf(document.activeElement);
    const last = this.cells.length - 1;
    const steps = { ArrowRight: here + 1, ArrowLeft: here - 1, ArrowDown: here + width, ArrowUp: here - width, Home: 0, End: last };
    if (event.key === "Enter" || event.key === " ") this.open(this.cells[here], event.shiftKey);
    else if (event.key in steps) { if (this.cells[steps[event.key]]) this.move(this.cells[steps[event.key]]); }
    else return;
    event.preventDefault();
  }

  table() {
    const rows = this.listed().map((head) => [head.name, head.role ?? "none", ...COLUMNS.map((name) => fixed(head.stats[name])), ...(this.worth ? [fixed(this.worth[head.name])] : [])]);
    return table("What each head does with this text, means over its rows", ["Head", "role", ...COLUMNS, ...(this.worth ? [this.title] : [])], rows);
  }
}
