// The grid of all heads: a small map each, its role, and what it contributes to its layer.

import { choice, fixed, folded, legend, make, more, paint, refill, refusal, table } from "./dom.js";

export const ORDERS = {
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
// What roles mean, where their names do not say it
const MEANT = { "delimiter sink": "looks at special tokens", broad: "looks everywhere alike", previous: "looks at the token before", next: "looks at the token after", self: "looks at itself", positional: "looks at a fixed distance" };
const WAITING = "The heads' roles are not available yet: the service may still be measuring them.";
const COLUMNS = ["contribution", "entropy", "previous", "next", "self", "cls", "sep", "distance"];

export class Overview {
  /**
   * @param section where it is drawn
   * @param ordered called when the reader chooses an order, with its name
   * @param toggle called with a head's name to open it, or to close it if it is open; `beside` keeps others open
   */
  constructor(section, ordered, toggle) {
    Object.assign(this, { section, ordered, toggle, order: "place", role: "all", found: new Map() });
  }

  /** Draws a session's heads; `more` are controls next to its own. */
  show(session, chosen, more) {
    Object.assign(this, { session, chosen, more, found: new Map() });
    if (!Object.hasOwn(ORDERS, this.order) || session.lacks.statistics) this.order = "place";
    if (!session.all.some((head) => roleOf(head) === this.role)) this.role = "all";
    this.draw();
  }

  /** Tells the heads' roles, once they are there or do not come; the reader's place in the grid is kept. */
  name() {
    this.roles.replaceChildren(...this.options());
    this.roles.value = this.role;
    this.notes.replaceChildren(...this.missing());
    for (const cell of this.cells) this.tell(cell);
    this.twin.replaceWith((this.twin = this.folded(this.twin.open)));
  }

  choose(chosen) {
    const changed = new Set([...this.chosen, ...chosen]);
    this.chosen = chosen;
    for (const cell of this.cells) if (changed.has(cell.dataset.head)) cell.setAttribute("aria-selected", chosen.includes(cell.dataset.head));
  }

  /** Orders the heads by what was found of them: {title, meaning, numbers by head's name, parts}; the largest first. */
  rank(order, found) {
    this.found.set(order, found);
    this.order = order;
    this.draw();
  }

  /** What was found that the heads are ordered by. */
  ranked() {
    return this.found.get(this.order);
  }

  listed() {
    const numbers = this.ranked()?.numbers, rank = numbers ? (head) => -numbers[head.name] : ORDERS[this.order][1];
    const kept = this.session.all.filter((head) => this.role === "all" || roleOf(head) === this.role);
    return kept.sort((a, b) => rank(a) - rank(b));
  }

  draw() {
    const known = this.session.lacks.statistics ? ["place"] : Object.keys(ORDERS);
    const orders = known.map((name) => [name, ORDERS[name][0]]);
    for (const [name, { title }] of this.found) orders.push([name, title]);
    const redraw = (field) => (value) => {
      this[field] = value;
      this.draw();
      if (field === "order") this.ordered(value);
    };
    const role = choice("Role", [], "", redraw("role"));
    this.roles = role.querySelector("select");
    this.roles.append(...this.options());
    this.roles.value = this.role;
    this.notes = make("div", {}, ...this.missing());
    const meaning = [...this.found.values()].map(({ title, meaning }) => make("p", { className: "note" }, this.found.size > 1 ? `What each ${title}: ${meaning}` : meaning));
    this.twin = this.folded(false);
    this.said = make("p", { className: "note help" }, "Arrow keys move, Enter opens a head, Shift and Enter opens it next to the others.");
    const grid = this.grid();
    refill(this.section,
      make("h2", {}, "All heads"),
      make("div", { className: "bar" },
        choice("Order", orders, this.order, redraw("order")),
        role,
        ...this.more),
      ...meaning, this.notes, more(grid, grid.children), grid, legend("share of attention in each small map, queries down, keys across; of long texts, pooled"), this.said, this.twin);
  }

  /** The roles that heads have, to choose from. */
  options() {
    const roles = this.waits() ? [] : [...new Set(this.session.all.map(roleOf))].sort();
    return ["all", ...roles].map((role) => make("option", { value: role }, named(role)));
  }

  waits() {
    return this.session.all.some(({ role }) => role === undefined);
  }

  /** What is not there, and why. */
  missing() {
    const { lacks } = this.session, why = Object.entries(lacks).map(([name, reason]) => refusal(`No ${name}: ${reason}`));
    return this.waits() && !lacks.roles ? [make("p", { className: "note" }, WAITING), ...why] : why;
  }

  folded(open) {
    const twin = folded("All heads as a table", () => this.table());
    twin.open = open;
    return twin;
  }

  grid() {
    const heads = this.listed(), width = Math.max(...this.session.all.map(({ head }) => head)) + 1;
    const most = Math.max(...heads.map(({ stats }) => stats?.contribution ?? 0));
    this.cells = heads.map((head) => this.cell(head, most));
    const first = this.cells.find((cell) => this.chosen.includes(cell.dataset.head)) ?? this.cells[0];
    if (first) first.tabIndex = 0;
    const rows = [];
    for (let i = 0; i < heads.length; i += width) {
      const layer = `L${heads[i].layer}`, whole = this.order === "place" && this.role === "all";
      const heading = whole ? [make("span", { role: "rowheader", "aria-label": `Layer ${heads[i].layer}` }, layer)] : [];
      rows.push(make("div", { role: "row" }, ...heading, ...this.cells.slice(i, i + width)));
    }
    return make("div", { role: "grid", "aria-label": "Heads", "aria-multiselectable": "true", onkeydown: (event) => this.key(event, width) }, ...rows);
  }

  cell(head, most) {
    const canvas = make("canvas", { "aria-hidden": "true" });
    paint(canvas, head.map);
    const label = make("span", {}, head.name), badge = make("span", { className: "badge" });
    const cell = make("div", { role: "gridcell", "aria-label": head.name, "aria-selected": this.chosen.includes(head.name), tabIndex: -1 }, canvas, label, badge);
    if (most) {
      const meter = make("i", { className: "meter" });
      meter.style.width = `${(100 * (head.stats.contribution ?? 0)) / most}%`;
      label.before(meter);
    }
    cell.dataset.head = head.name;
    this.tell(cell, head);
    cell.onclick = (event) => this.open(cell, event.shiftKey || event.ctrlKey || event.metaKey);
    cell.onfocus = cell.onpointerenter = () => (this.said.textContent = this.sentence(head));
    return cell;
  }

  /** Says on a head's cell what is known of it. */
  tell(cell, head = this.session.all.find(({ name }) => name === cell.dataset.head)) {
    cell.title = this.sentence(head);
    cell.lastChild.textContent = this.ranked() ? fixed(this.ranked().numbers[head.name]) : head.role ?? "";
  }

  sentence(head) {
    const found = [...this.found.values()].map(({ title, numbers }) => `${title} ${fixed(numbers[head.name])}`);
    return `${head.name}: ${[...about(head), ...found].join("; ")}.`;
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
    const columns = this.session.lacks.statistics ? [] : COLUMNS;
    const found = [...this.found.values()].flatMap(({ title, numbers, parts = {} }) => [[title, numbers], ...Object.entries(parts)]);
    const rows = this.listed().map((head) => [head.name, roleOf(head), ...columns.map((name) => fixed(head.stats[name])), ...found.map(([, numbers]) => fixed(numbers[head.name]))]);
    return table("What each head does with this text (mean over rows)", ["Head", "role", ...columns, ...found.map(([title]) => title)], rows);
  }
}

/** A role, and what it means where its name does not say it. */
const named = (role) => (role in MEANT ? `${role}: ${MEANT[role]}` : role);

const roleOf = ({ role }) => (role === undefined ? "not known" : role ?? "none");

/** What is known of a head, in words. */
export function about({ role, mechanism, stats }) {
  const roles = role === undefined ? "role not known" : role ? `role ${role}${role in MEANT ? ` (${MEANT[role]})` : ""}` : "no role";
  const by = mechanism ? [`goes by ${mechanism.query}\u2192${mechanism.key} (${fixed(mechanism.share, 2)} of how its scores vary comes from these parts of query and key; with shuffled weights up to ${fixed(mechanism.control, 2)})`] : [];
  return [roles, ...by, ...(stats ? [`contribution ${fixed(stats.contribution)}, entropy ${fixed(stats.entropy)} nats`] : [])];
}
