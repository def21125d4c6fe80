// What came of an action, told next to the control that it was taken with.

import { make } from "./dom.js";

/** Tells it; what was told there before goes. */
export function tell(control, text, bad = false) {
  const next = control.nextElementSibling, said = next?.matches("output.said") ? next : make("output", { className: "said" });
  if (said !== next) control.after(said);
  said.textContent = text;
  said.classList.toggle("bad", bad);
}

/** Tells next to a button what it waits for, and how long it has: it is one request, whose answer comes whole. */
export async function wait(button, what, act) {
  if (button.ariaBusy === "true") return;
  const began = performance.now(), tick = () => tell(button, `${what}: ${Math.floor((performance.now() - began) / 1000)} s`);
  button.ariaBusy = "true";
  tick();
  const clock = setInterval(tick, 500);
  try {
    await act();
  } finally {
    clearInterval(clock);
    button.ariaBusy = "false";
    if (button.nextElementSibling?.textContent.startsWith(what)) tell(button, ""); // nothing came of it
  }
}
