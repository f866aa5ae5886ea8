// The sampler's settings: what is filled in is sent, what is empty is the server's default. Kept between visits.

import { $ } from "./dom.js";

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
  try { localStorage.setItem(KEY, JSON.stringify(values)); } catch { /* private windows keep nothing */ }
}

try {
  for (const [name, value] of Object.entries(JSON.parse(localStorage.getItem(KEY) ?? "{}"))) {
    if (form.elements[name]) form.elements[name].value = value;
  }
} catch { /* as above */ }

form.addEventListener("input", save);
form.addEventListener("reset", () => setTimeout(save));
form.addEventListener("submit", (event) => event.preventDefault());
if (matchMedia("(max-width: 800px)").matches) $("settings").open = false;
