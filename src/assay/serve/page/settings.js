// The sampler's settings: what is filled in is sent, what is empty is the server's default. Kept between visits.

import { $, remember } from "./dom.js";

const form = $("sampler");
const KEY = "assay.settings";

export function settings() {
  const found = {};
  for (const field of form.elements) {
    if (field.name && field.name !== "system" && field.value !== "") found[field.name] = Number(field.value);
  }
  return found;
}

export const systemPrompt = () => form.elements.system.value.trim();

function save() {
  const values = Object.fromEntries([...form.elements].filter((f) => f.name && f.value).map((f) => [f.name, f.value]));
  remember(KEY, JSON.stringify(values));
}

try {
  for (const [name, value] of Object.entries(JSON.parse(remember(KEY) ?? "{}"))) {
    if (form.elements[name]) form.elements[name].value = value;
  }
} catch { /* kept by something else */ }

form.addEventListener("input", save);
form.addEventListener("reset", () => setTimeout(save));
form.addEventListener("submit", (event) => event.preventDefault());

// Sheets close by their button, by Escape, and by a click outside.
for (const sheet of document.querySelectorAll("dialog.sheet")) {
  sheet.addEventListener("click", (event) => { if (event.target === sheet || event.target.closest("[data-close]")) sheet.close(); });
}
$("gear").addEventListener("click", () => $("settings").showModal());
