// The first view: the model, its size and speed, and four ways to begin.

import { $, make } from "./dom.js";
import { icon } from "./icons.js";
import { bytes, chosen, isRaw, knownSpeed, measure, parameters } from "./models.js";

export const SENTENCE = "Unbelievably, 3.14159 isn't one token.";
const CHAT = [
  { icon: "chat", title: "Why is the sky blue?", about: "Ask it something", ask: "Why is the sky blue? Answer in two sentences." },
  { icon: "edit", title: "Reverse a string in Python", about: "Let it write code", ask: "Write a Python function that reverses a string, and say in one line how it works." },
];
const RAW = [
  { icon: "chat", title: "Once upon a time", about: "Let it continue a story", ask: "Once upon a time" },
  { icon: "edit", title: "def reverse(text):", about: "Let it continue code", ask: "def reverse(text):\n" },
];
const INSIDE = [
  { icon: "tokens", title: "Break this into tokens", about: `“${SENTENCE}”`, view: "tokens", text: SENTENCE },
  { icon: "layers", title: "Watch it think, layer by layer", about: "“The capital of France is”", view: "layers", text: "The capital of France is" },
];

const TRIES = 20, WAIT = 3000; // milliseconds

let speedShown = null; // the element with the speed

const fact = (value, unit) => make("li", {}, make("b", {}, value), ` ${unit}`);
const say = (speed) => { speedShown?.replaceChildren(make("b", {}, speed.toFixed(speed < 10 ? 1 : 0)), " tokens/s here"); };

// Measure until it is known: a busy server is asked again while the first view is open.
async function learn(card) {
  for (let i = 0; i < TRIES && !$("welcome").hidden && chosen() === card; i += 1) {
    const found = knownSpeed(card.id) || await measure(card);
    if (found) { say(found); return; }
    await new Promise((done) => { setTimeout(done, WAIT); });
  }
}

// actions: ask(text), open(view, text)
export function welcome(actions) {
  const card = chosen();
  if (!card) return;
  const speed = knownSpeed(card.id);
  speedShown = make("li", { id: "speed" }, "speed not measured yet");
  if (speed) say(speed);
  const facts = make("ul", { class: "facts" }, fact(parameters(card.n_params), "parameters"), fact(bytes(card.size), "on disk"),
    fact(card.context_length.toLocaleString("en"), "tokens of context"), speedShown);
  const starters = [...(isRaw() ? RAW : CHAT), ...INSIDE].map((one) => make("button", { type: "button", onclick: () => (one.view ? actions.open(one.view, one.text) : actions.ask(one.ask)) },
    icon(one.icon), make("b", {}, one.title), make("span", {}, one.about)));
  const about = isRaw() ? [make("p", { class: "note" }, "A base model: it has no chat template, so it continues your text as it stands.")] : [];
  $("welcome").replaceChildren(make("div", {}, make("h2", {}, card.id), facts, ...about), make("div", { class: "starters" }, ...starters));
  if (!speed) learn(card);
}
