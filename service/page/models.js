// The models of the address, where there are several: each has this page below its own prefix.

import { ask, BASE } from "./api.js";

/** Offers the pages of the address's models; what this one shows goes along in the link. */
export async function offer(place, info) {
  const root = info.models ? BASE : new URL("..", BASE);
  const models = info.models ?? (BASE.pathname === "/" ? [] : (await ask("../info").catch(() => ({}))).models ?? []);
  if (!models.some(({ name }) => name === info.model)) return;
  const page = (prefix) => (prefix === "/" ? root : new URL(`${prefix.slice(1)}/`, root)).href;
  const select = place.querySelector("select");
  select.replaceChildren(...models.map(({ name, prefix }) => new Option(name, page(prefix), false, name === info.model)));
  select.onchange = () => location.assign(select.value + location.hash);
  place.hidden = false;
}
