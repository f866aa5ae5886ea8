// Tabs, the list of models, light and dark; the rest is in the views.

import { get } from "./api.js";
import * as chat from "./chat.js";
import * as compare from "./compare.js";
import * as diagnose from "./diagnose.js";
import { $, make } from "./dom.js";
import * as layers from "./layers.js";
import * as server from "./server.js";
import * as replicas from "./replicas.js";
import * as tokens from "./tokens.js";

const tabs = [...document.querySelectorAll('[role="tab"]')];

function open(tab, focus = false) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (focus) tab.focus();
  $("tip").hidden = true;
  if (tab.id === "tab-tokens") tokens.show();
  server.watch(tab.id === "tab-server");
}

tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => open(tab));
  tab.addEventListener("keydown", (event) => {
    const last = tabs.length - 1;
    const next = { ArrowRight: (i + 1) % tabs.length, ArrowLeft: (i + last) % tabs.length, Home: 0, End: last }[event.key];
    if (next !== undefined) { event.preventDefault(); open(tabs[next], true); }
  });
});

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
}
try { theme(localStorage.getItem("assay.theme")); } catch { /* private windows keep nothing */ }
$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  theme(next);
  try { localStorage.setItem("assay.theme", next); } catch { /* as above */ }
});

async function models() {
  try {
    const { data } = await get("/v1/models");
    const options = data.map((m) => make("option", { value: m.id, title: `${m.context_length} positions` }, m.id));
    $("model").replaceChildren(...options);
    compare.models(options);
  } catch (error) {
    $("status").textContent = error.message;
  }
}

chat.start(() => { $("text").value = ""; open($("tab-tokens"), true); });
tokens.start();
layers.start();
compare.start();
diagnose.start();
replicas.start();
models();
$("input").focus();
