// Tabs, models, light and dark. The chat is here at once; the code of another view is fetched when it is opened.

import * as chat from "./chat.js";
import { $, make, remember, toast } from "./dom.js";
import { draw } from "./icons.js";
import * as models from "./models.js";
import * as replicas from "./replicas.js";

// The code of each view, and its stylesheets.
const VIEWS = {
  chat: [() => null],
  tokens: [() => import("./tokens.js"), "views.css"],
  layers: [() => import("./layers.js"), "views.css"],
  compare: [() => import("./compare.js"), "views.css"],
  diagnose: [() => import("./diagnose.js"), "views.css", "diagnose.css", "report.css"],
  server: [() => import("./server.js"), "views.css"],
};
const tabs = [...document.querySelectorAll('[role="tab"]')];
const started = new Map();
let current = "chat";

function style(file) {
  const href = `/page/${file}`;
  if (document.querySelector(`link[href="${href}"]`)) return null;
  return new Promise((done) => {
    const link = make("link", { rel: "stylesheet", href, onload: done, onerror: done });
    document.head.append(link);
  });
}

// A view has start(), once, and may have show(text) and hide(), each time.
async function begin([code, ...styles]) {
  const [module] = await Promise.all([code(), ...styles.map(style)]);
  module?.start?.();
  return module;
}

function view(name) {
  if (!started.has(name)) started.set(name, begin(VIEWS[name]));
  return started.get(name);
}

async function open(name, text) {
  current = name;
  for (const tab of tabs) {
    tab.setAttribute("aria-selected", String(tab.id === `tab-${name}`));
    tab.tabIndex = tab.id === `tab-${name}` ? 0 : -1;
  }
  let module = null;
  try {
    module = await view(name); // its styles are there before it is seen
  } catch (error) {
    started.delete(name); // the next click tries again
    toast(`The view could not be loaded: ${error.message}`);
  }
  if (current !== name) return;
  for (const tab of tabs) $(tab.getAttribute("aria-controls")).hidden = tab.id !== `tab-${name}`;
  $("tip").hidden = true;
  for (const [other, loaded] of started) if (other !== name) loaded.then((found) => found?.hide?.(), () => {});
  module?.show?.(text);
}

tabs.forEach((tab, i) => {
  const name = tab.id.slice(4);
  tab.addEventListener("click", () => open(name));
  tab.addEventListener("keydown", (event) => {
    const last = tabs.length - 1;
    const next = { ArrowRight: (i + 1) % tabs.length, ArrowLeft: (i + last) % tabs.length, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    open(tabs[next].id.slice(4));
    tabs[next].focus();
  });
});

function theme(name) {
  if (name === "light" || name === "dark") document.documentElement.dataset.theme = name;
}
theme(remember("assay.theme"));
$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  theme(next);
  remember("assay.theme", next);
});

draw(document);
const opening = (name, text) => { open(name, text); $(`tab-${name}`).focus(); };
try {
  await models.load();
} catch (error) {
  $("status").textContent = error.message;
}
await chat.start(opening);
$("model").addEventListener("change", chat.redraw);
replicas.start();
if (matchMedia("(hover: hover)").matches) $("input").focus();
