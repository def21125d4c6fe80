// The page as a whole: what is asked, what is shown, and what happens between the parts.

import { ask, Refused, useKey } from "./api.js";
import { arrange, at, button, choice, make, refusal } from "./dom.js";
import { Head } from "./head.js";
import { Overview } from "./overview.js";
import { Pipeline } from "./pipeline.js";
import { open } from "./session.js";
import { tell, wait } from "./said.js";
import * as address from "./address.js";
import * as alike from "./alike.js";
import * as classes from "./classes.js";
import * as decide from "./decide.js";
import * as dominance from "./dominance.js";
import * as evidence from "./evidence.js";
import * as exports from "./exports.js";
import * as form from "./form.js";
import * as models from "./models.js";
import * as texts from "./texts.js";
import * as worth from "./worth.js";

const shown = { ...address.read(), open: [], focus: { place: 1, chosen: false }, session: null, alike: null, of: "text" };
const told = { model: false, tasks: [], ranks: texts.draw(at("texts"), failed) }; // of the model, once GET /info has answered
const overview = new Overview(at("overview"), ordered, toggle);
const pipeline = new Pipeline(at("pipeline"), failed);
let asked = 0; // of the presses of Show; what an earlier one brings is not drawn
let refocusDominance = () => {}, refreshExports = () => {};

const say = (text, bad = false) => {
  at("status").textContent = text;
  at("status").classList.toggle("bad", bad);
};

/** Says why something did not come: in a part of the page, next to a control, or for the whole. */
function failed(error, place = null) {
  if (!(error instanceof Refused)) throw error;
  if (error.status === 401) {
    at("keys").hidden = false;
    at("key").focus();
  }
  if (!place) say(error.message, true);
  else if (place.matches("section, div")) place.append(refusal(error.message));
  else tell(place, error.message, true);
}

/** Names the model, and offers what it can do; a service with keys says so only to who has one. */
async function introduce() {
  try {
    const info = await ask("info");
    at("model").textContent = `${info.model}: ${info.layers} layers of ${info.heads} heads, width ${info.width}`;
    Object.assign(told, { model: true, tasks: info.tasks ?? [] });
    told.ranks(told.tasks);
    form.offer(told.tasks);
    models.offer(at("models"), info);
  } catch (error) {
    failed(error);
  }
}

/** Asks for what the form holds, or an example, and draws it; `kept` in the address. */
async function show(given = form.read(), kept = true) {
  const turn = ++asked;
  if (Object.keys(given).some((name) => given[name] !== shown[name])) {
    shown.focus.chosen = false;
    if (address.found(shown.order)) shown.order = "place"; // found of other texts
  }
  Object.assign(shown, given);
  useKey(at("key").value);
  if (!told.model) introduce();
  const { text, other } = shown, classifies = told.tasks.includes("classify"), pair = other && (classifies || shown.together === "pair");
  for (const output of at("ask").querySelectorAll("output.said")) output.remove();
  if (!text) return say("Enter a text first.", true);
  if (shown.together === "evidence" && !other) return say("Enter a document first.", true);
  if (kept) address.write(shown);
  say("Loading\u2026");
  for (const id of ["evidence", "decide"]) if (id !== shown.together) at(id).replaceChildren();
  if (["evidence", "decide"].includes(shown.together)) at("classes").replaceChildren();
  if (shown.together === "evidence") return mark(turn);
  if (shown.together === "decide") return instead(turn, "decide", decide.find(shown, told.tasks), decide.draw, (section) => section.replaceChildren());
  const began = performance.now();
  Object.assign(shown, { of: "text", alike: null, compared: !!other && !pair });
  if (!shown.compared) hideAlike();
  if (classifies) classify(turn, pair ? { text, pair: other } : { text });
  else at("classes").replaceChildren();
  at("overview").ariaBusy = "true";
  shown.likened = shown.compared && compare(turn);
  shown.drawn = open(pair ? { text, pair: other } : { text }).then((opened) => {
    if (turn !== asked) return;
    shown.session = opened;
    draw();
    say(`${opened.sequence.tokens.length} tokens, ${opened.all.length} heads, ${Math.round(performance.now() - began)} ms.`);
  });
  try {
    await shown.drawn;
    if (turn === asked && address.found(shown.order)) await find(shown.order);
  } catch (error) {
    if (turn === asked) {
      forget();
      failed(error);
    }
  }
  if (turn === asked) at("overview").ariaBusy = "false";
}

/** Marks in the document what carries its score for the query. */
async function mark(turn) {
  const { text, other, view } = shown;
  await instead(turn, "evidence", evidence.find(text, other, view, told.tasks), (section, found) => evidence.draw(section, found, view, remark), (section) => evidence.clear(section, view, remark));
}

/** Says what the model's classes score, whether the heads come or not. */
function classify(turn, item) {
  const section = at("classes");
  shown.classes = null;
  const draw = (found) => classes.draw(section, (shown.classes = found), told.tasks.includes("rerank"));
  return fill(section, () => turn === asked, classes.find(item), draw, () => section.replaceChildren());
}

/** Draws a view in the place of the heads. */
async function instead(turn, name, asking, draw, clear) {
  const { text } = shown, section = at(name), began = performance.now();
  forget();
  hideAlike();
  const drawn = (found) => {
    draw(section, found);
    const { answer: { usage } } = found, saved = name === "evidence" ? "highlight" : name;
    exports.drawWhole(at("exports"), () => ({ texts: [text], answers: { [saved]: found.answer } }));
    say(`${usage.tokens ?? usage.input_tokens} tokens, ${Math.round(performance.now() - began)} ms.`);
  };
  await fill(section, () => turn === asked, asking, drawn, () => (clear(section), say("")));
}

/** Draws a part of the page once its answer comes, or why it does not, while it is `wanted`. */
async function fill(section, wanted, asking, draw, clear) {
  section.ariaBusy = "true";
  try {
    const found = await asking;
    if (!wanted()) return;
    draw(found);
  } catch (error) {
    if (!wanted()) return;
    clear();
    failed(error, at(decide.boxOf(error)) ?? section);
  }
  section.ariaBusy = "false";
  at("views").hidden = false;
}

/** Marks it anew, after a choice. */
function remark(name, value) {
  shown.view[name] = value;
  address.write(shown);
  say("Loading\u2026");
  mark(++asked);
}

/** Hides why two texts are alike; what comes of them yet is not drawn. */
function hideAlike() {
  Object.assign(at("alike"), { hidden: true, ariaBusy: "false" });
}

/** Says why two texts are alike, whether the heads come or not. */
function compare(turn) {
  const { text, other, view } = shown, { by } = view, section = at("alike");
  const act = { change, focus: (i, j, button) => carried(`pair ${i} ${j}`, button), carry: carried };
  const draw = (found) => alike.draw(section, (shown.alike = found), view, act);
  const clear = () => alike.clear(section, view, change);
  return fill(section, () => turn === asked && by === view.by, alike.why({ text }, { text: other }, view), draw, clear);
}

/** Says it anew, after a choice of what shares are of; the heads stay. */
function change(by) {
  shown.view.by = by;
  address.write(shown);
  shown.likened = compare(asked);
}

/** Takes away all that is shown of a text's heads. */
function forget() {
  shown.session = null;
  shown.open = [];
  for (const id of ["overview", "looks", "details", "dominance", "pipeline", "exports"]) at(id).replaceChildren();
  at("exports").hidden = true;
}

function draw() {
  const { session } = shown;
  at("views").hidden = false;
  shown.focus.place = Math.min(shown.focus.place, session.names.length - 1);
  shown.heads = shown.heads.filter((name) => session.all.some((head) => head.name === name));
  const moved = button("What each head is worth", ({ target }) => sweep(target, "Without each of", () => find("worth", target)));
  overview.order = address.found(shown.order) ? "place" : shown.order;
  overview.show(session, shown.heads, [...(shown.compared ? [ofWhich()] : []), moved]);
  name(session);
  pipeline.show(session);
  refocusDominance = dominance.draw(at("dominance"), session, shown.focus, failed);
  shown.open = [];
  details();
  const asked = [shown.text, shown.other];
  refreshExports = exports.draw(at("exports"), () => ({ texts: asked, heads: shown.open, answers: { ...session.answers, alike: shown.alike, classes: shown.classes, found: Object.fromEntries(overview.found) } }));
}

/** Tells the heads' roles in all that is shown, once they are there or do not come. */
async function name(session) {
  await session.named;
  if (session !== shown.session) return;
  overview.name();
  for (const head of shown.open) head.describe();
}

/** Lets the reader choose which of two compared texts the heads are shown of. */
function ofWhich() {
  return (shown.which = choice("Heads of", [["text", "the text"], ["other", "the other text"]], shown.of, async (which) => {
    const turn = ++asked;
    try {
      const session = await open({ text: shown[which] });
      if (turn !== asked) return;
      Object.assign(shown, { session, of: which });
      shown.focus.chosen = false;
      draw();
    } catch (error) {
      if (turn !== asked) return;
      draw(); // which heads are shown has not changed
      failed(error, shown.which);
    }
  }));
}

/** Opens the heads that are chosen, and only those; a head takes the place of one that goes. */
function details() {
  const kept = shown.open.filter(({ name }) => shown.heads.includes(name));
  const free = shown.open.filter((head) => !kept.includes(head));
  const fresh = new Set();
  shown.open = shown.heads.map((name) => {
    const open = kept.find((head) => head.name === name);
    if (open) return open;
    const head = (free.shift() ?? new Head(shown.session, shown.focus, actions)).become(name);
    fresh.add(head);
    return head;
  });
  if (!shown.open.length) at("looks").replaceChildren();
  else if (!at("looks").hasChildNodes()) at("looks").append(looks());
  arrange(at("details"), shown.open.map(({ region }) => region));
  for (const head of fresh) head.load(shown.view);
  refreshExports();
}

/** Makes the choices of how all open heads are shown. */
function looks() {
  const set = (field) => (value) => {
    shown.view[field] = value;
    address.write(shown);
    for (const head of shown.open) head.load(shown.view);
  };
  const { direction, lines, weight, specials, level } = shown.view;
  return make("div", { className: "bar", role: "group", "aria-label": "How heads are shown" },
    choice("The token", [["to", "attends to"], ["by", "is attended by"]], direction, set("direction")),
    choice("Lines", [["one", "of the token in focus"], ["all", "of all tokens"]], lines, set("lines")),
    choice("Weight", [["probability", "probability"], ["value_norm", "value norm"]], weight, set("weight")),
    choice("Special tokens", [["keep", "shown"], ["drop", "hidden: rows sum to less than 1"], ["renormalize", "left out, the rest shared out again"]], specials, set("specials")),
    choice("Level", [["token", "tokens"], ["word", "words"]], level, set("level")));
}

// A head that is opened leads to its strongest token, until the reader chooses one
const actions = { close, refocus, failed, changed: () => refreshExports(), leads: (head) => !shown.focus.chosen && head === shown.open.at(-1) };

/** Closes a head; who goes on with the keyboard is at its map again. */
function close(name) {
  toggle(name);
  overview.cells.find((cell) => cell.dataset.head === name)?.focus();
}

function toggle(name, beside = false, always = false) {
  const open = shown.heads.includes(name) && !always;
  if (open) shown.heads = shown.heads.filter((other) => other !== name);
  else shown.heads = beside ? [...shown.heads, name].slice(-address.MOST_HEADS) : [name];
  address.write(shown);
  overview.choose(shown.heads);
  details();
}

function refocus(place, chosen) {
  Object.assign(shown.focus, { place, chosen: shown.focus.chosen || chosen });
  for (const head of shown.open) if (head.map) head.draw();
  refocusDominance();
}

/** Orders the heads by what is found of them; says so next to a control, or for the whole. */
async function rank(order, asking, control) {
  const turn = asked;
  try {
    const found = await asking;
    if (turn !== asked) return false;
    overview.rank(order, found);
    const said = `Heads sorted by what each ${found.title}.`;
    for (const output of document.querySelectorAll("output.said")) if (output.textContent.startsWith("Heads sorted")) output.remove(); // they are no more
    control ? tell(control, said) : say(said);
    overview.cells[0].focus();
    return true;
  } catch (error) {
    failed(error, control);
    return false;
  }
}

/** Keeps the order of the heads in the address. */
function ordered(order) {
  shown.order = order;
  address.write(shown);
}

/** Orders the heads by what is asked of the service: what each is worth, adds to the score (in one of two ways), or to a pair of words. */
async function find(order, control = null) {
  const turn = asked, [, ...pair] = address.PAIR.exec(order)?.map(Number) ?? [];
  if (order !== "worth") await shown.likened;
  if (turn !== asked) return null;
  const { session, alike: likeness } = shown, about = pair.length ? alike.paired(likeness, pair) : {};
  if (order !== "worth" && !(likeness && about)) return null; // a pair or a score that these texts do not have
  const ways = { worth: () => worth.ofEncoding(session), score: () => worth.ofScore(likeness.texts), shares: () => worth.ofShares(likeness.texts) };
  const asking = pair.length ? worth.ofPair(likeness.request, pair, about.name) : ways[order]();
  if (!(await rank(order, asking, control))) return null;
  ordered(order);
  return about;
}

/** Leads from the score, or from a pair of words, to the heads that carry it, in one of the orders. */
const carried = (order, button) => sweep(button, order === "shares" ? "Shares of" : "Without each of", async () => {
  if (!(await drawn())) return tell(button, "There are no heads to sort.", true);
  const about = await find(order, button);
  if (!about) return;
  if (about.name) {
    Object.assign(shown.focus, { place: about.place, chosen: true });
    toggle(overview.cells[0].dataset.head, false, true);
  }
  at("overview").scrollIntoView();
});

const sweep = (button, what, act) => wait(button, `${what} ${shown.session?.all.length ?? "the"} heads`, act);

/** Tells whether the heads are there, once they are or are not to come. */
const drawn = () => shown.drawn.then(() => true, () => false);

/** Draws an example for who comes without a text, as the service computes it; the address stays as it is. */
function begin() {
  if (!told.model || asked || shown.text || form.read().text || form.read().other) return; // without a key nothing is computed
  form.fill(form.first());
  show(form.read(), false);
}

/** Fills the boxes with what the address holds; nothing is sent before the reader presses Show. */
function follow() {
  form.fill(shown);
  say(shown.text ? "This address holds a text. Press Show to send it to this service." : "");
}

// A shared address that is pasted into an open page, a step back from it, or one that is emptied.
addEventListener("hashchange", () => {
  const held = address.read();
  if (!held.text && location.hash) return; // a place on the page
  asked++;
  Object.assign(shown, held);
  shown.focus.chosen = false;
  forget();
  at("views").hidden = true;
  follow();
});
form.open(show);
follow();
introduce().then(begin);
